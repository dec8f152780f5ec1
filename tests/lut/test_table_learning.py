"""The predictor that is trained on a table's entries."""

import functools
import random
from dataclasses import replace

import pytest

from harness.latency.layer_latency import positive
from harness.lut.chain_rows import ChainRow
from harness.lut.learning import learn_predictor, training_examples
from harness.lut.table import Entry
from harness.network.fusion.fusion_rules import DEFAULT_RULES
from harness.network.layers import cut
from harness.network.model_references import load_network
from harness.predictor.features.key_features import describe
from harness.predictor.features.layer_features import LEAST_SAMPLES
from harness.predictor.predictor import Predictor
from harness.predictor.roofline.device_tiling import DeviceTiling


@pytest.fixture(autouse=True)
def known_tiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the search for the tiling, which takes most of a training: what is learnt from does not depend on it."""
    monkeypatch.setattr("harness.predictor.fit.find_tiling", lambda *_: DeviceTiling(1, 1, 1, ((1, 16, 1),)))


def seconds_of(signature: str) -> float:
    """Return the latency on a device with a launch of 2 µs and 10^10 multiplications a second."""
    layer = describe(signature)
    assert layer is not None
    return 2e-6 + layer.macs / 1e10


@functools.cache
def entries() -> tuple[Entry, ...]:
    """Return a network's layers with their latencies on this device."""
    keys = {layer.key.digest: layer for layer in cut(load_network("builtin:squeezenet"), DEFAULT_RULES)}
    return tuple(
        Entry(key, "chip", layer.op, known_s, 1e-8, 9, True, "cold", "", "", 1, "p", "b", text, known_s, 1e-8)
        for key, layer in sorted(keys.items())[: LEAST_SAMPLES + 2]
        for text in [layer.key.text]
        for known_s in [seconds_of(text)]
    )


@functools.cache
def learnt() -> bytes:
    """Return the predictor of these entries."""
    return learn_predictor(entries())


def test_a_table_of_few_layers_teaches_nothing() -> None:
    """A table with too few different layers has no predictor."""
    assert learn_predictor(()) == b""
    few = entries()[: LEAST_SAMPLES - 1]
    assert learn_predictor(few) == b""
    assert learn_predictor([*few, *(replace(entry, context="outside") for entry in few)]) == b""


def test_entries_teach_what_they_hold() -> None:
    """The predictor is within 10 % of half of its entries."""
    predictor = Predictor(learnt())
    layers = [describe(entry.signature) for entry in entries()]
    known = [layer for layer in layers if layer is not None]
    errors = sorted(
        abs(found.latency_s / entry.latency_s - 1)
        for found, entry in zip(predictor.predict_all(known), entries(), strict=True)
    )
    assert errors[len(errors) // 2] < 0.1


def test_layers_below_resolution_add_up_to_what_was_measured() -> None:
    """Positive latencies of layers that take no time are too long together; what is learnt from them is not."""
    draw = random.Random(2)
    signatures = [one.signature for one in entries()]
    noise = [positive(draw.gauss(2e-7, 1e-6), 1e-6, 9) for _ in range(400)]
    short = [
        replace(
            entries()[0],
            key=f"{number:016x}",
            signature=signatures[number % len(signatures)],
            op="Conv",
            latency_s=one.latency_s,
            stderr_s=one.stderr_s,
            resolved=one.resolved,
            remainder_s=one.remainder_s,
            remainder_stderr_s=one.remainder_stderr_s,
        )
        for number, one in enumerate(noise)
    ]
    learnt_s = sum(example.latency_s for example in training_examples(short))
    assert sum(one.latency_s for one in short) > 3 * 400 * 2e-7
    assert learnt_s == pytest.approx(400 * 2e-7, rel=0.4)
    assert learnt_s == pytest.approx(sum(one.remainder_s for one in short), rel=0.05)


def test_entries_in_a_neighbourhood_take_the_place_of_others() -> None:
    """The predictor learns entries in a neighbourhood and ignores those of the same layers without one."""
    near = [replace(entry, context="chip@0123abcd") for entry in entries()]
    misleading = [replace(entry, latency_s=10 * entry.latency_s) for entry in entries()]
    assert learn_predictor([*misleading, *near]) == learnt()


def test_products_in_chains_are_learnt_by_themselves() -> None:
    """Of chained layers, products teach their latency in context, and all others that in their neighbourhood."""
    chained = [replace(entry, context="chip@0123abcd", latency_s=3 * entry.latency_s) for entry in entries()]
    rows = [ChainRow("0" * 16, 0, entry.key, entry.context) for entry in chained]
    found = {one.layer: one.latency_s for one in training_examples([*entries(), *chained], rows)}
    factors = {layer.operator.split("/")[0]: set[int]() for layer in found}
    for entry in entries():
        layer = describe(entry.signature, entry.context)
        assert layer is not None
        factors[layer.operator.split("/")[0]].add(round(found[layer] / entry.latency_s))
    assert factors == {"mac": {1}, "move": {3}}
    assert learn_predictor([*entries(), *chained], rows) != learn_predictor([*entries(), *chained])


def test_keys_of_another_version_are_left_out() -> None:
    """Entries whose keys cannot be parsed are not learnt."""
    strange = [replace(entry, signature="another version|x0:float32[1]") for entry in entries()]
    assert learn_predictor(strange) == b""
