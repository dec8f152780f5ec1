"""What a device reports about a loaded probe besides samples: its runtime's graph and the true latency of each layer.

Agent and host share these values, as they share `wire`. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple


@dataclass(frozen=True)
class Revealed:
    """The graph that a runtime executes for a model: the name of a format, and content in that format."""

    format: str
    content: bytes


@dataclass(frozen=True)
class TrueOverhead:
    """Latency of host preprocessing, driver and transfers alone: a, b and c without noise."""

    a_s_per_byte: float
    b_s_per_byte: float
    c_s: float


@dataclass(frozen=True)
class TrueLayer:
    """A layer as the device executes it: the nodes of the sent model that it computes, and its true latency."""

    name: str
    nodes: Tuple[str, ...]
    latency_s: float


@dataclass(frozen=True)
class Truth:
    """The oracle's answer for a probe: the device's own time, and the layers whose latencies add up to it.

    An emulated device reports exact values. A runtime reports its own profile of the layers, and no `overhead`.
    """

    overhead: Optional[TrueOverhead]
    makespan_s: float
    layers: Tuple[TrueLayer, ...]
