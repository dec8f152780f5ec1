"""The weights that a device loads ahead, and the error of sums, found from the chains of a table."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_table_learning import entries

from harness.estimation.layer_estimates import sum_of_layers
from harness.latency.overhead import Overhead
from harness.lut.chain_rows import VIEW, ChainRow
from harness.lut.learning import learn_predictor
from harness.lut.table import Entry, Lut
from harness.lut.weights_ahead import ChainFit, fit_chains
from harness.network.fusion.fusion_rules import DEFAULT_RULES
from harness.network.keyed_network import keyed
from harness.network.model_references import load_network
from harness.predictor.features.key_features import describe
from harness.predictor.features.layer_features import LayerFeatures
from harness.predictor.predictor import Predictor
from harness.predictor.roofline.device_tiling import DeviceTiling
from harness.predictor.roofline.weight_loads import WeightLoads

NETWORK = "0123456789abcdef"


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    """Return a predictor of the layers of a network, whose tiling is not searched for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.predictor.fit.find_tiling", lambda *_: DeviceTiling(1, 1, 1, ((1, 16, 1),)))
        return Predictor(learn_predictor(entries()))


def table(predictor: Predictor, ahead_bytes: int) -> tuple[dict[tuple[str, str], Entry], list[ChainRow]]:
    """Return the entries of single layers and of their chains, and the rows of these, on a device that loads ahead."""
    alone = sorted(entries(), key=lambda one: -one.latency_s)
    features = [describe(one.signature, one.context) for one in alone]
    left = predictor.weight_loads([one for one in features if one is not None]).left(ahead_bytes)
    near = [
        replace(one, context=f"chip@{at:08x}", remainder_s=share * one.remainder_s)
        for at, (one, share) in enumerate(zip(alone, left.tolist(), strict=True))
    ]
    rows = [ChainRow(NETWORK, at, one.key, one.context) for at, one in enumerate(near)]
    return {one.place: one for one in itertools.chain(alone, near)}, rows


@pytest.mark.parametrize("ahead_bytes", [0, 1 << 15, 1 << 18, 1 << 20])
def test_the_buffer_of_a_device_is_found(predictor: Predictor, ahead_bytes: int) -> None:
    """Chains of a device that loads ahead show how far: the size that is found leaves as much of every layer."""
    known, rows = table(predictor, ahead_bytes)
    views = [ChainRow(NETWORK, VIEW, "0" * 16, "chip")]
    found = fit_chains(known, [*views, *rows], predictor.weight_loads).ahead_bytes
    features = [describe(known[row.place].signature, "chip") for row in rows]
    loads = predictor.weight_loads([one for one in features if one is not None])
    assert loads.left(found) == pytest.approx(loads.left(ahead_bytes))
    assert found <= ahead_bytes


def test_what_chains_take_beyond_single_layers_is_an_error(predictor: Predictor) -> None:
    """Chains that take 1.2 times as long as their layers by themselves show an error of a fifth; others show none."""
    known, rows = table(predictor, 0)
    assert fit_chains(known, rows, predictor.weight_loads).error == pytest.approx(0.0, abs=1e-9)
    chained = [known[row.place] for row in rows]
    longer = known | {one.place: replace(one, remainder_s=1.2 * one.remainder_s) for one in chained}
    assert fit_chains(longer, rows, predictor.weight_loads).error == pytest.approx(math.log(1.2))


def test_tables_without_whole_networks_show_nothing(predictor: Predictor) -> None:
    """Without chains, or with a layer that was not measured alone, nothing is loaded ahead."""
    known, rows = table(predictor, 1 << 20)
    assert fit_chains(known, [], predictor.weight_loads) == ChainFit(0, 0.0)
    del known[rows[3].key, "chip"]
    assert fit_chains(known, rows, predictor.weight_loads) == ChainFit(0, 0.0)


def slow_loads(_: Predictor, layers: Sequence[LayerFeatures]) -> WeightLoads:
    """Return the loads of layers on a device that loads 1 GB of weights in the time of 100 billion multiply-adds."""
    weight_bytes = np.array([one.weight_bytes for one in layers], dtype=np.float64)
    others_s = np.array([one.macs for one in layers]) / 1e11
    launch_s, picks = np.full(len(layers), 1e-6), np.zeros(len(layers), dtype=bool)
    return WeightLoads(weight_bytes, weight_bytes / 1e9, others_s, others_s / 4, launch_s, 4.0, picks)


def test_measured_layers_hide_and_use_loads_like_others(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of a predicted layer does not depend on whether the layers around it are measured or predicted."""
    monkeypatch.setattr(Lut, "loaded_predictor", predictor)
    monkeypatch.setattr(Predictor, "weight_loads", slow_loads)
    network = keyed(load_network("builtin:squeezenet"), DEFAULT_RULES)
    overhead = Overhead({}, (), {}, 1.0, 1.0, 1.0, 0.0, 0)

    def latencies_s(ahead_bytes: int, known: Sequence[Entry]) -> list[tuple[float | None, str]]:
        monkeypatch.setattr(Lut, "weights_ahead", ahead_bytes)
        own = Lut(Path(), "d", "", "device", "joint", {}, overhead, DEFAULT_RULES, known)
        return [(one.latency_s, one.source) for one in sum_of_layers(network, own).estimates]

    plain, shorter = latencies_s(0, ()), latencies_s(1 << 17, ())
    mixed = latencies_s(1 << 17, entries()[::2])
    assert any(left != whole for left, whole in zip(shorter, plain, strict=True))
    assert len({source == "measured" for _, source in mixed}) == 2
    assert all(one == other for one, other in zip(mixed, shorter, strict=True) if one[1] != "measured")
