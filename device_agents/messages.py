"""Values that agent and host share, as they share `wire`: a probe to load, a timed run, and facts about a loaded probe.

Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional, Sequence, Tuple

MOST_PUTS, MOST_PUT_AHEAD_BYTES = 16, 1 << 20
"""How many `put` requests an agent holds, and the payload of those after the first one."""


@dataclass(frozen=True)
class LoadRequest:
    """A probe as it is sent: the model without its weights, and how the device makes weights and inputs.

    `reveal` asks for the graph that the runtime executes. Without `runs` the probe is loaded for its graph alone, which
    needs no chains.
    """

    probe: str
    model: bytes
    weights: Sequence[Dict[str, Any]]
    inputs: Sequence[Dict[str, Any]]
    output_bytes: int
    reveal: bool = False
    runs: bool = True


@dataclass(frozen=True)
class Sample:
    """One timed run of a loaded probe, from its input arrays to its output arrays.

    `cpu_ns` and `device_ns` are None where the device does not report them. `preemptions` counts how often the run
    was interrupted by other work on the device.
    """

    wall_ns: int
    cpu_ns: Optional[int] = None
    device_ns: Optional[int] = None
    preemptions: int = 0


@dataclass(frozen=True)
class Revealed:
    """The graph that a runtime executes for a model: the name of a format, and content in that format."""

    format: str
    content: bytes


@dataclass(frozen=True)
class LoadReport:
    """How a probe was loaded: the seconds that its session or compilation took, and its nodes that run on the CPU.

    `compile_s` is None where the runtime is not asked; it contains neither weights nor the first runs. `first_run_s` is
    the wall time of the first run. `on_cpu` names nodes of the sent model that the device was to run, as far as the
    runtime keeps their names. The others are the resident set of the process that holds the runtime: before, after
    loading and the first run, and at most meanwhile. They are None if the device does not report them.
    """

    compile_s: Optional[float] = None
    on_cpu: Tuple[str, ...] = ()
    first_run_s: Optional[float] = None
    before_bytes: Optional[int] = None
    loaded_bytes: Optional[int] = None
    peak_bytes: Optional[int] = None


@dataclass(frozen=True)
class TrueOverhead:
    """Overhead without layers: a, b and c of host preprocessing, driver and transfers, without noise."""

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
