"""About how long layers take to compile for the emulated NPU, relative to each other."""

import math
from collections.abc import Sequence

from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer
from device_agents.emulated_npu.machine import Machine

_EACH_LAYER = 40.0
"""The effort that a layer takes beside the root of its products for each multiplier. With it, _IN_PARTS and _DIVIDED, a
unit of effort took 0.2 to 0.5 ms of the processor in four of five compilations of five networks for seven machines."""
_IN_PARTS = 2.0
"""How many times as long a compilation takes if a layer does not fit in a buffer whole."""
_DIVIDED = 1.5
"""How many times as long a compilation takes if features and weights share a buffer."""


def compiling_effort(layers: Sequence[HardwareLayer], machine: Machine) -> float:
    """Return about how long a compilation takes.

    A layer that a buffer does not hold is planned with several halo buffers, and with each division of a common buffer.
    """
    largest = max((sum(math.prod(view.shape) for view in (*one.reads, one.output)) for one in layers), default=0)
    plans = _IN_PARTS if largest * machine.data_type.bytes > machine.nb_bytes else 1.0
    divisions = _DIVIDED if machine.shared_buffer else 1.0
    return plans * divisions * tiling_effort(layers, machine)


def tiling_effort(layers: Sequence[HardwareLayer], machine: Machine) -> float:
    """Return about how long it takes to plan each layer once: the more products for each multiplier, the more tiles."""
    products = sum(math.sqrt(math.prod((*one.output.shape, *_taps(one)))) for one in layers)
    return _EACH_LAYER * len(layers) + products / math.sqrt(machine.mfu.multipliers)


def _taps(layer: HardwareLayer) -> tuple[int, ...]:
    """Return the sizes whose product is how many factors each element of the output has; zero without factors."""
    if layer.matrix:
        return layer.inputs[0].shape[-1:]
    return (0,) if layer.weights is None else layer.weights.shape[1:]
