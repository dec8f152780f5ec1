"""Reasons why a convolution, or all of them, cannot be computed by DFT (S4.1)."""

from __future__ import annotations

from dataclasses import dataclass

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph, HardwareLayer
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.emulator_errors import UnsupportedOperator
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.unit_commands import DataType

_ONES = (1, 1, 1)


class NoDft(UnsupportedOperator):
    """A forced DFT is impossible for the machine, the block or the kernel; the message names value and limit."""


@dataclass(frozen=True)
class DirectConvolution:
    """A convolution that is computed directly because it cannot be by DFT."""

    name: str
    reason: str


def obstacle(layer: HardwareLayer, graph: Graph) -> str:
    """Return why a convolution cannot be computed by DFT, in a few words; "" if it can."""
    settings, axes = layer.settings, len(layer.output.axes) - 2
    if layer.weights is None:
        return "its kernel is not constant"
    if axes != 2:
        return f"{axes} spatial {'axis' if axes == 1 else 'axes'}, not 2"
    if settings.stride != _ONES:
        return f"stride {_pair(settings.stride)}"
    if settings.dilation != _ONES:
        return f"dilation {_pair(settings.dilation)}"
    types = {graph.values[view.value].dtype for view in (layer.output, *layer.reads)} | {layer.weights.dtype}
    others = sorted(kind.name.lower() for kind in types - {DataType.FLOAT32})
    return f"values of {' and '.join(others)}" if others else ""


def _pair(sizes: tuple[int, int, int]) -> str:
    return f"{sizes[1]} x {sizes[2]}"


def is_convolution(layer: HardwareLayer) -> bool:
    """Return whether a layer is a convolution, with or without groups, and no matrix product."""
    return layer.function.multiplies and not layer.matrix


def direct_convolutions(graph: Graph) -> tuple[DirectConvolution, ...]:
    """Return the convolutions of a graph that cannot be computed by DFT, with reasons, in its order."""
    of_dft = {index for one in graph.dft for index in one.layers}
    found = [layer for layer in graph.layers if is_convolution(layer) and layer.index not in of_dft]
    return tuple(DirectConvolution(layer.name, reason) for layer in found if (reason := obstacle(layer, graph)))


def check_options(options: Options, machine: Machine, limit: int) -> None:
    """Raise ContradictoryOptions, or NoDft if the machine rules the options out; `limit` is its longest block."""
    options.check_dft()
    if options.conv_algorithm == "odd-dft" and machine.data_type is not DataType.FLOAT32:
        what = f"{machine.name} computes in {machine.data_type.name.lower()}, which has no convolution by DFT"
        raise NoDft(what, "Spectra need float32", "Choose a machine that computes in float32, or another algorithm")
    if options.dft_block is not None:
        _check_block(options.dft_block, limit)


def _check_block(length: int, limit: int) -> None:
    what = f"A block of {length} is not possible"
    if length < 3 or length % 2 == 0:
        raise NoDft(what, "the length of a block is odd and at least 3", f"Choose {max(3, length | 1)}")
    if length > limit:
        why = f"the longest that the buffers of this machine hold is {limit}"
        raise NoDft(what, why, f"Choose at most {limit}")
