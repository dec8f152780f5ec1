"""The weights that a device loads ahead, found from the chains of a table."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from test_table_learning import entries

from harness.lut.chain_rows import VIEW, ChainRow
from harness.lut.learning import learn_predictor
from harness.lut.table import Entry
from harness.lut.weights_ahead import weights_ahead
from harness.predictor.features.key_features import describe
from harness.predictor.predictor import Predictor
from harness.predictor.roofline.device_tiling import DeviceTiling

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
    found = weights_ahead(known, [ChainRow(NETWORK, VIEW, "0" * 16, "chip"), *rows], predictor)
    features = [describe(known[row.place].signature, "chip") for row in rows]
    loads = predictor.weight_loads([one for one in features if one is not None])
    assert loads.left(found) == pytest.approx(loads.left(ahead_bytes))
    assert found <= ahead_bytes


def test_tables_without_whole_networks_show_nothing(predictor: Predictor) -> None:
    """Without chains, or with a layer that was not measured alone, nothing is loaded ahead."""
    known, rows = table(predictor, 1 << 20)
    assert weights_ahead(known, [], predictor) == 0
    del known[rows[3].key, "chip"]
    assert weights_ahead(known, rows, predictor) == 0
