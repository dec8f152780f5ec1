"""The runtimes that execute probes on a device.

A backend is a class with the members of `Backend`, in a separate module or folder, and one line in BACKENDS.
It reports everything else that agent and host need to know: its clock and what it reveals in `hello`, wrong options
as `Refused`.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Dict, Mapping, Optional, Protocol, Sequence, Tuple, runtime_checkable

from device_agents.messages import LoadReport, LoadRequest, Revealed, Sample, Truth
from device_agents.resource_errors import is_out_of_memory


@dataclass(frozen=True)
class Registration:
    """Where a backend's class is, or a function that chooses one, and whether its devices are virtual.

    Virtual devices compute latencies on a clock of their own and occupy no cores: any number of sessions may measure on
    one of them at the same time, and each gets the same results as if it ran by itself. `threads` says whether the
    backend has the option `threads`.
    """

    place: str
    virtual: bool = False
    threads: bool = False


BACKENDS: Mapping[str, Registration] = {
    "onnxruntime": Registration("onnxruntime.provider_backend.open_onnxruntime", threads=True),
    "openvino": Registration("openvino.openvino_backend.open_openvino", threads=True),
    "emulated-npu": Registration("emulated_npu.EmulatedNpuBackend", virtual=True),
    "null": Registration("null.NullBackend", virtual=True),
    "command": Registration("command.command_backend.CommandBackend"),
}


class Refused(Exception):
    """The runtime does not accept a probe or an option; the message gives the runtime's reason."""


class Backend(Protocol):
    """One runtime with its settings, inside the worker process.

    `clock` names the clock of its samples that latencies use: "cpu", "wall" or "device". `reveals` lists what it
    reports about its graph: "fusion" and "chains" in the answer of `load`, or "unfused" where each layer's latency
    is independent of its neighbours, so that the host searches for no fusion. "kept" promises that a loaded probe takes
    about twice its weights of the memory that `fingerprint.state` reports, so that many may stay loaded. "placement"
    promises that `load` refuses a network with nodes that another device would run.
    """

    name: str
    clock: str
    reveals: Tuple[str, ...]

    def fingerprint(self) -> Dict[str, str]:
        """Return the runtime, its version and the settings that change latency."""

    def load(self, request: LoadRequest) -> Optional[Revealed]:
        """Make weights and inputs, load the model and run it once; raises Refused.

        Returns the runtime's graph if the request asks for it and the backend reveals fusion.
        """

    def unload(self, probe: str) -> None:
        """Free what `load` made."""

    def run(self, probe: str) -> Sample:
        """Run a loaded probe once and time it."""


@runtime_checkable
class HasOracle(Protocol):
    """A backend that also reports true layer latencies; only sessions opened for validation may ask for them."""

    def oracle(self, probe: str) -> Truth:
        """Return the true latencies of a loaded probe."""


@runtime_checkable
class PreparesProbes(Protocol):
    """A backend that compiles many models together in less time than `load` takes for one after the other."""

    def prepare(self, models: Sequence[bytes]) -> None:
        """Do for these models what `load` would do; `load` reports what is wrong with one of them."""


@runtime_checkable
class LoadsSideBySide(Protocol):
    """A backend whose `load` may run in several threads at the same time."""

    def loads_at_once(self) -> int:
        """Return how many threads may load."""


@runtime_checkable
class ReportsLoading(Protocol):
    """A backend that also reports how it loaded a probe."""

    def load_report(self, probe: str) -> LoadReport:
        """Return how a loaded probe was loaded."""


def create(name: str, options: Dict[str, Any]) -> Backend:
    """Return a new backend; raises Refused if it is unknown, its runtime is missing or an option is wrong."""
    if name not in BACKENDS:
        raise Refused(f"this agent has no backend {name!r}; it has {', '.join(BACKENDS)}")
    module, _, kind = BACKENDS[name].place.rpartition(".")
    try:
        backend: Backend = getattr(import_module(f"{__name__}.{module}"), kind)(options)
    except ImportError as error:
        what = "has no memory for" if is_out_of_memory(error) else "cannot import"
        raise Refused(f"the Python of the device {what} the runtime of backend {name!r}: {error}") from error
    except (ValueError, TypeError) as error:
        raise Refused(f"an option of backend {name!r} is wrong: {error}") from error
    return backend
