"""What executes probes on a device. A backend is a class with the members of `Backend`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Protocol, Tuple, runtime_checkable


@dataclass(frozen=True)
class Sample:
    """One timed run, from the input arrays handed over to the output arrays back."""

    wall_ns: int
    cpu_ns: Optional[int] = None
    device_ns: Optional[int] = None
    preemptions: int = 0


@dataclass(frozen=True)
class LoadRequest:
    """A probe as it comes over the wire: the model without its weights, and how to make these."""

    probe: str
    model: bytes
    weights: List[Dict[str, Any]]
    inputs: List[Dict[str, Any]]
    output_bytes: int
    reveal: bool = False


@dataclass(frozen=True)
class Revealed:
    """What the runtime made of a model: the name of a format and the content in it."""

    format: str
    content: bytes


class Refused(Exception):
    """The runtime does not accept this probe; the message is the runtime's own."""


@dataclass(frozen=True)
class TrueOverhead:
    """What host preprocessing, driver and transfers alone take (S1.3): a, b and c without noise."""

    a_s_per_byte: float
    b_s_per_byte: float
    c_s: float


@dataclass(frozen=True)
class TrueLayer:
    """A layer as the device executes it, with the nodes of the model that it stands for, and its true latency."""

    name: str
    nodes: Tuple[str, ...]
    latency_s: float


@dataclass(frozen=True)
class Truth:
    """What only the device itself knows of a loaded probe.

    An emulated device tells it without noise; a runtime tells its own profile of the layers, and no
    `overhead`. The latencies of the layers add up to `makespan_s`, the device's own time.
    """

    overhead: Optional[TrueOverhead]
    makespan_s: float
    layers: Tuple[TrueLayer, ...]


class Backend(Protocol):
    """One runtime with its settings, inside the worker process."""

    name: str
    clock: str
    tells: Tuple[str, ...]

    def fingerprint(self) -> Dict[str, str]:
        """Runtime, its version and the settings that change latency."""

    def load(self, request: LoadRequest) -> Optional[Revealed]:
        """Makes weights and inputs, loads the model and runs it once; raises Refused.

        Where the request asks to reveal and the backend tells, returns what the runtime made of the model.
        """

    def unload(self, probe: str) -> None:
        """Frees what `load` made."""

    def run(self, probe: str) -> Sample:
        """One timed run of a loaded probe."""


@runtime_checkable
class HasOracle(Protocol):
    """A backend that also knows the truth; only sessions opened for validation may ask for it."""

    def oracle(self, probe: str) -> Truth:
        """The truth about a loaded probe."""


def create(name: str, options: Dict[str, Any]) -> Backend:
    """The backend of that name; raises Refused where it is unknown, its runtime is missing or an option is wrong."""
    try:
        return _create(name, options)
    except ImportError as error:
        raise Refused(f"the runtime of backend {name!r} is not installed here: {error}") from error
    except (ValueError, TypeError) as error:
        raise Refused(f"an option of backend {name!r} is wrong: {error}") from error


def _create(name: str, options: Dict[str, Any]) -> Backend:
    if name == "onnxruntime":
        from device_agents.backends.onnxruntime import OnnxRuntimeBackend

        return OnnxRuntimeBackend(options)
    if name == "openvino":
        from device_agents.backends.openvino import OpenVinoBackend

        return OpenVinoBackend(options)
    if name == "null":
        from device_agents.backends.null import NullBackend

        return NullBackend(options)
    if name == "emulated-npu":
        from device_agents.backends.emulated_npu import EmulatedNpuBackend

        return EmulatedNpuBackend(options)
    if name == "command":
        from device_agents.backends.command import CommandBackend

        return CommandBackend(options)
    raise Refused(f"this agent has no backend {name!r}")
