"""What a table's entries teach its predictor."""

from __future__ import annotations

import functools
from dataclasses import replace

import onnx
import pytest

from harness.errors import LutCorrupt
from harness.lut.learning import learn_predictor
from harness.lut.table import Entry
from harness.network.fusion_rules import DEFAULT_RULES
from harness.network.layers import cut
from harness.network.models import load_network
from harness.predictor.features.key_features import describe
from harness.predictor.fit import LEAST_SAMPLES
from harness.predictor.predictor import Predictor


def seconds_of(signature: str) -> float:
    """A device that launches in 2 µs and multiplies ten thousand million times a second."""
    layer = describe(signature)
    assert layer is not None
    return 2e-6 + layer.macs / 1e10


@functools.cache
def entries() -> tuple[Entry, ...]:
    """The layers of a network as this device has them."""
    keys = {layer.key.digest: layer for layer in cut(load_network("builtin:squeezenet"), DEFAULT_RULES)}
    return tuple(
        Entry(key, "chip", layer.op, seconds_of(layer.key.text), 1e-8, 9, True, "cold", "", "", 1, "p", "b",
              layer.key.text)
        for key, layer in sorted(keys.items())[: LEAST_SAMPLES + 2]
    )  # fmt: skip


@functools.cache
def learnt() -> bytes:
    """What these entries teach."""
    return learn_predictor(entries())


def test_a_table_of_few_layers_teaches_nothing() -> None:
    """No predictor, rather than one that knows nothing; entries that are the same layer count once."""
    assert learn_predictor(()) == b""
    few = entries()[: LEAST_SAMPLES - 1]
    assert learn_predictor(few) == b""
    assert learn_predictor([*few, *(replace(entry, context="outside") for entry in few)]) == b""


def test_entries_teach_what_they_hold() -> None:
    """The predictor comes near to them in the median."""
    predictor = Predictor(learnt())
    layers = [describe(entry.signature) for entry in entries()]
    known = [layer for layer in layers if layer is not None]
    errors = sorted(
        abs(found.latency_s / entry.latency_s - 1)
        for found, entry in zip(predictor.predict_all(known), entries(), strict=True)
    )
    assert errors[len(errors) // 2] < 0.1


def test_entries_in_a_neighbourhood_take_the_place_of_others() -> None:
    """Layers are learnt as networks run them: an entry of a context alone does not count beside those of places."""
    near = [replace(entry, context="chip@0123abcd") for entry in entries()]
    misleading = [replace(entry, latency_s=10 * entry.latency_s) for entry in entries()]
    assert learn_predictor([*misleading, *near]) == learnt()


def test_keys_of_another_version_are_left_out() -> None:
    """What cannot be described cannot be learnt from."""
    strange = [replace(entry, signature="another version|x0:float32[1]") for entry in entries()]
    assert learn_predictor(strange) == b""


def test_a_predictor_of_other_operators_is_refused() -> None:
    """What no predictor is made of, a loop for instance, is not run; nor is one whose results do not fit."""
    model = onnx.load_model_from_string(learnt())
    strange = onnx.ModelProto()
    strange.CopyFrom(model)
    strange.graph.node[0].op_type = "Loop"
    with pytest.raises(LutCorrupt, match="Loop"):
        Predictor(strange.SerializeToString())
    odd = onnx.ModelProto()
    odd.CopyFrom(model)
    for output in odd.graph.output:
        if output.name == "spread":
            output.name = odd.graph.node[0].output[0]
    layer = describe(entries()[0].signature)
    assert layer is not None
    with pytest.raises(LutCorrupt):
        Predictor(odd.SerializeToString()).predict(layer)
