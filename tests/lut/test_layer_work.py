"""The work of layers and what bounds them."""

from __future__ import annotations

from pathlib import Path

import pytest
from nullbench import build_network

from harness.lut.layer_work import DeviceRates, LayerWork
from harness.network.fusion_rules import DEFAULT_RULES
from harness.network.keyed_network import keyed
from harness.network.model_references import load_network


def layers_of(path: Path) -> list[tuple[str, str]]:
    """The keys and contexts of a network's layers."""
    network = keyed(load_network(str(build_network(path))), DEFAULT_RULES)
    return [(layer.key.text, layer.context) for layer in network.layers]


def test_work_is_that_of_the_shapes(tmp_path: Path) -> None:
    """A convolution of 8 to 32 channels over 16 by 16 pixels has its multiply-adds and bytes."""
    works = DeviceRates(None).works(layers_of(tmp_path / "chain.onnx"))
    first = works[0]
    assert first is not None and first.macs == 16 * 16 * 9 * 8 * 32
    assert first.moved_bytes == 4 * (8 * 16 * 16 + 9 * 8 * 32 + 32 * 16 * 16)
    assert all(one is not None and one.bound is None for one in works)


@pytest.mark.parametrize(
    ("seconds", "bound"),
    [
        ((1e-3, 0.0, 0.0, 1e-9), "arithmetic"),
        ((0.0, 1e-3, 0.0, 1e-9), "weights"),
        ((0.0, 0.0, 1e-3, 1e-9), "features"),
        ((1e-15, 1e-15, 1e-15, 1.0), "start"),
    ],
)
def test_the_largest_term_bounds_a_layer(tmp_path: Path, seconds: tuple[float, ...], bound: str) -> None:
    """On a device where only one rate matters, it bounds every convolution."""
    import numpy as np

    found = DeviceRates(np.array(seconds)).works(layers_of(tmp_path / "chain.onnx")[:3])
    assert [one.bound for one in found if isinstance(one, LayerWork)] == [bound] * 3


def test_keys_of_other_versions_have_no_work() -> None:
    """A text that is no key has neither multiply-adds nor bytes."""
    assert DeviceRates(None).works([("no key", "map")]) == (None,)
