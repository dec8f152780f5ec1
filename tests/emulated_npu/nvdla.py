"""ResNet-50 as in NVDLA's performance sheet, and its frames per second on machines configured alike."""

from fractions import Fraction
from functools import cache
from typing import Any

from published_figures.nvdla_sheet import SheetLayer, SheetMachine, network_cycles
from published_figures.published import read_anchor, resnet50_sheet

from device_agents.emulated_npu.compiler.graph.hardware_graph import (
    Graph,
    HardwareLayer,
    LazyConstant,
    Value,
    View,
    ViewAxis,
)
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.stages import compile_graph
from device_agents.emulated_npu.machine import find_machine
from device_agents.emulated_npu.timing.simulation import simulate_program
from device_agents.emulated_npu.unit_commands import DataType, Function
from device_agents.emulated_npu.unit_settings import Settings

ROWS: list[dict[str, Any]] = read_anchor("nvdla_resnet50")["primer"]["rows"]


def _no_values(*_: object) -> object:
    raise AssertionError("only the time of the sheet's network is asked for")


def _rows(sampled: bool) -> list[SheetLayer]:
    """Return the rows of the sheet, with or without those whose stride skips pixels."""
    return [row for row in resnet50_sheet() if sampled or row.kernel_h >= row.stride]


@cache
def sheet_network(sampled: bool) -> Graph:
    """Return rows of the sheet as independent layers; pooling, bias and activation are free there."""
    shown: dict[str, Value] = {}

    def view(name: str, kind: Any, shape: tuple[int, ...]) -> View:
        shown[name] = Value(name, shape, DataType.FLOAT32, (0, 2, 3, 1), kind, kind == "activation")
        return View(name, (0,) * 4, tuple(ViewAxis(size, axis) for axis, size in enumerate(shape)))

    layers: list[HardwareLayer] = []
    for row in _rows(sampled):
        index = len(layers)
        kernel, stride = row.kernel_h, row.stride
        side = -(-row.height // stride)
        result = (1, row.kernels, side, side)
        source = view(f"x{index}", "input", (1, row.in_channels, row.height, row.width))
        residual = view(f"r{index}", "input", result) if row.residual else None
        settings = Settings(kernel=(1, kernel, kernel), stride=(1, stride, stride), pad=(0, kernel // 2, kernel // 2))
        weights = LazyConstant(
            f"w{index}", (row.kernels, row.in_channels, kernel, kernel), DataType.FLOAT32, (), _no_values
        )
        target = view(f"y{index}", "activation", result)
        layers.append(
            HardwareLayer(
                index, row.name, (), Function.CONVOLVE, (source,), target, settings, weights, residual=residual
            )
        )
    inputs = tuple(name for name, value in shown.items() if value.kind == "input")
    outputs = tuple(name for name, value in shown.items() if value.is_output)
    return Graph(shown, tuple(layers), inputs, outputs, (), len(layers))


@cache
def frames_per_s(macs: int, fences: bool, *, sampled: bool = True) -> float:
    """Return the frames per second of the event-driven model, with or without a barrier between layers.

    `sampled` includes the convolutions whose stride skips pixels.
    """
    machine = find_machine(f"nvdla-{macs}")
    compiled = compile_graph(sheet_network(sampled), machine, Options("layers", fences=fences))
    return 1e12 / simulate_program(compiled.program, machine).makespan_ps


def sheet_frames_per_s(row: dict[str, Any], *, sampled: bool) -> float:
    """Return the frames per second by the sheet's formulas, without Winograd."""
    machine = SheetMachine(row["macs"], row["buffer_kb"], Fraction(str(row["dram_gb_per_s"])), winograd=False)
    return float(10**9 / network_cycles(_rows(sampled), machine))
