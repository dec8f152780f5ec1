"""About how long layers take to compile for the emulated NPU, relative to each other."""

import math
from collections.abc import Sequence

from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer
from device_agents.emulated_npu.machine import Machine

_EACH_LAYER = 40.0
"""The effort of any layer, to which the root of its products for each multiplier is added. With this, _IN_PARTS and
_DIVIDED, a unit of effort took 0.2 to 0.5 ms of CPU time in four of five compilations of five networks."""
_IN_PARTS = 2.0
"""How many times as long a compilation takes if a layer does not fit into the NB as a whole."""
_DIVIDED = 1.5
"""How many times as long a compilation takes if features and weights share a buffer."""


def compiling_effort(layers: Sequence[HardwareLayer], machine: Machine) -> float:
    """Return about how long a compilation takes.

    A layer that does not fit into the NB is planned with halo buffers of several sizes, and one that shares its buffer
    with weights for each division of it.
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
    """Return sizes whose product is the number of products in each element of the output; zero for a layer without."""
    if layer.matrix:
        return layer.inputs[0].shape[-1:]
    return (0,) if layer.weights is None else layer.weights.shape[1:]
