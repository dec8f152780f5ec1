"""The work of layers and what bounds them."""

from pathlib import Path

import numpy as np
import pytest
from nullbench import build_network

from device_agents.emulated_npu.machine import load_preset
from harness.lut.layer_work import DeviceRoofs, LayerWork, WorkedLayer
from harness.lut.table_choice import open_lut
from harness.network.fusion.fusion_rules import DEFAULT_RULES
from harness.network.keyed_network import keyed
from harness.network.model_references import load_network

NO_ROOF = float("inf")


def layers_of(path: Path, latency_s: float) -> list[WorkedLayer]:
    """The first three convolutions of a network, of 8 to 32 channels, with a latency."""
    network = keyed(load_network(str(build_network(path))), DEFAULT_RULES)
    return [WorkedLayer(layer.key.text, latency_s) for layer in network.layers[:3]]


def bounds(path: Path, rates: tuple[float, ...], latency_s: float = 1.0) -> list[str | None]:
    """What bounds these layers on a device with these roofs."""
    found = DeviceRoofs(np.array(rates)).works(layers_of(path, latency_s))
    return [one.bound for one in found if isinstance(one, LayerWork)]


def test_work_is_that_of_the_shapes(tmp_path: Path) -> None:
    """A convolution of 8 to 32 channels over 16 by 16 pixels has its multiply-adds and bytes."""
    works = DeviceRoofs(None).works(layers_of(tmp_path / "chain.onnx", 1.0))
    first = works[0]
    assert first is not None and first.macs == 16 * 16 * 9 * 8 * 32
    assert first.moved_bytes == 4 * (8 * 16 * 16 + 9 * 8 * 32 + 32 * 16 * 16)
    assert all(one is not None and one.bound is None for one in works)


@pytest.mark.parametrize(
    ("rates", "bound"),
    [
        ((1e4, NO_ROOF, NO_ROOF), "arithmetic"),
        ((NO_ROOF, 1e3, NO_ROOF), "weights"),
        ((NO_ROOF, NO_ROOF, 1e3), "features"),
    ],
)
def test_the_work_that_takes_the_latency_bounds_a_layer(tmp_path: Path, rates: tuple[float, ...], bound: str) -> None:
    """On a device where only one kind of work takes time, it bounds every convolution."""
    assert bounds(tmp_path / "chain.onnx", rates) == [bound] * 3


def test_no_bound_is_named_where_it_is_not_clear(tmp_path: Path) -> None:
    """Work far below its roof, and two kinds of work that take about equally long, bound nothing."""
    path = tmp_path / "chain.onnx"
    assert bounds(path, (1e4, NO_ROOF, NO_ROOF), latency_s=1e6) == [None] * 3
    macs, weights = 16 * 16 * 9 * 8 * 32, 4 * 9 * 8 * 32
    assert bounds(path, (float(macs), float(weights), NO_ROOF))[0] is None
    assert bounds(path, (float(macs), 3.0 * weights, NO_ROOF))[0] == "arithmetic"


def test_a_table_shows_the_roofs_of_its_machine(tmp_path: Path) -> None:
    """The published table has the rates of npu01's multipliers and of its external memory, within 5 %."""
    machine, rates = load_preset("edge"), DeviceRoofs.of(open_lut("npu01", workspace=tmp_path)).rates
    assert rates is not None
    assert rates[0] == pytest.approx(machine.mfu.multipliers * machine.clock_hz, rel=0.05)
    assert rates[1] == pytest.approx(machine.ddr.bytes_per_s, rel=0.05)


def test_keys_of_other_versions_have_no_work() -> None:
    """A text that is no key has neither multiply-adds nor bytes."""
    assert DeviceRoofs(None).works([WorkedLayer("no key", 1.0)]) == (None,)
