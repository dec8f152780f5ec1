"""ResNet-50 on machines configured as NVDLA's performance sheet, event by event, against the sheet."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from device_agents.emulated_npu.command import DataType, Function, Settings
from device_agents.emulated_npu.compiler.layers import Constant, Graph, Layer, Value, View, ViewAxis
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.pipeline import compile_graph
from device_agents.emulated_npu.machine import find_machine
from device_agents.emulated_npu.timing import simulate_program

sys.path.insert(0, str(Path(__file__).parents[1] / "anchors"))

from published import read_anchor, resnet50_sheet

ROWS: list[dict[str, Any]] = read_anchor("nvdla_resnet50")["primer"]["rows"]
TOLERANCE = 0.15


def _no_values(*_: object) -> object:
    raise AssertionError("only the time of the sheet's network is asked for")


@cache
def sheet_network() -> Graph:
    """The rows of the sheet as layers that do not follow each other; pooling, bias and activation are free there."""
    shown: dict[str, Value] = {}

    def view(name: str, kind: Any, shape: tuple[int, ...]) -> View:
        shown[name] = Value(name, shape, DataType.FLOAT32, (0, 2, 3, 1), kind, kind == "activation")
        return View(name, (0,) * 4, tuple(ViewAxis(size, axis) for axis, size in enumerate(shape)))

    layers: list[Layer] = []
    for row in resnet50_sheet():
        index = len(layers)
        kernel, stride = row.kernel_h, row.stride
        side = -(-row.height // stride)
        result = (1, row.kernels, side, side)
        source = view(f"x{index}", "input", (1, row.in_channels, row.height, row.width))
        residual = view(f"r{index}", "input", result) if row.residual else None
        settings = Settings(kernel=(1, kernel, kernel), stride=(1, stride, stride), pad=(0, kernel // 2, kernel // 2))
        weights = Constant(
            f"w{index}", (row.kernels, row.in_channels, kernel, kernel), DataType.FLOAT32, (), _no_values
        )
        target = view(f"y{index}", "activation", result)
        layers.append(
            Layer(index, row.name, (), Function.CONVOLVE, (source,), target, settings, weights, residual=residual)
        )
    inputs = tuple(name for name, value in shown.items() if value.kind == "input")
    outputs = tuple(name for name, value in shown.items() if value.is_output)
    return Graph(shown, tuple(layers), inputs, outputs, (), len(layers))


def _fps(macs: int, fences: bool) -> float:
    machine = find_machine(f"nvdla-{macs}")
    compiled = compile_graph(sheet_network(), machine, Options("layers", fences=fences))
    return 1e12 / simulate_program(compiled.program, machine).makespan_ps


@pytest.mark.long
@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["macs"]))
def test_event_driven_within_15_percent_of_the_sheet(row: dict[str, Any]) -> None:
    """With a barrier between layers and no Winograd the machine needs what the sheet says, within 15 %."""
    assert abs(_fps(row["macs"], True) / row["direct_fps"] - 1) <= TOLERANCE


@pytest.mark.long
@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["macs"]))
def test_without_the_barrier_layers_overlap(row: dict[str, Any]) -> None:
    """What the barrier costs is time: without it the same network is no slower."""
    assert _fps(row["macs"], False) >= _fps(row["macs"], True)
