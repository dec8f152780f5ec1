"""The places off chip of what chains read and write: values, weights, and the memory of other cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer
from device_agents.emulated_npu.compiler.graph.regions import Region
from device_agents.emulated_npu.compiler.planning.memory_places import Buffer


@dataclass(frozen=True)
class Destination:
    """Cores of one group that read a value of this core; `region` is the part that they read.

    `buffer` is the value in the memory of their group: the first core gets the data, the others a notification. It is
    None if they share the memory with this core: all get a notification.
    """

    cores: tuple[int, ...]
    buffer: Buffer | None
    region: Region


Destinations = tuple[Destination, ...]


@dataclass(frozen=True)
class Externals:
    """The places off chip: of values by name, and of packed weights and constants of layers by address in DDR.

    `sends` has the destinations of values that other cores read. A value that is only sent has no place here.
    """

    values: Mapping[str, Buffer]
    weights: Mapping[str, int]
    constants: Mapping[str, int]
    sends: Mapping[str, Destinations] = field(default_factory=dict)


def weight_key(layer: HardwareLayer) -> str:
    """Return the name of the packed weights of a layer or a slice."""
    return f"{layer.index}/{layer.fixed_weights.name}"


def factor_scale_key(layer: HardwareLayer) -> str:
    """Return the name of scale and shift of a product of two computed tensors."""
    return f"{layer.index}/factor_scale"
