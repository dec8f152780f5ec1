"""The settings that all sessions of a backend share: threads, optimization level, execution provider and memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Mapping, Optional

import onnxruntime

from device_agents.backends.option_reader import OptionReader

CPU = "CPUExecutionProvider"
_ENDING = "ExecutionProvider"
_ALIASES = {"directml": "dml"}
_MEMORY = {
    "CUDAExecutionProvider": "cuda",
    "TensorrtExecutionProvider": "cuda",
    "NvTensorRTRTXExecutionProvider": "cuda",
    "DmlExecutionProvider": "dml",
    "CANNExecutionProvider": "cann",
}
"""The memory that a provider's device computes in, by the name that ONNX Runtime gives it; others use the host's."""
_STOP_SPINNING = "session.force_spinning_stop"
_shared_threads: Optional[int] = None
OPTIONS = {"threads", "optimization", "provider", "provider_options", "allow_fallback"}
_LEVELS = ("all", "extended", "basic", "disabled")


@dataclass(frozen=True)
class Provider:
    """An execution provider with its options.

    `memory` names the device's own memory, None if it computes in that of the host. Nodes that the provider does not
    execute run on the CPU if `allow_fallback` is true, and are an error otherwise.
    """

    name: str = CPU
    options: Mapping[str, Any] = field(default_factory=dict)
    allow_fallback: bool = False

    @property
    def memory(self) -> Optional[str]:
        """Name of the device's own memory."""
        return _MEMORY.get(self.name)

    @property
    def device_id(self) -> int:
        """Number of the device, by the option that the providers with own memory share; 0 by default."""
        number = str(self.options.get("device_id", 0))
        return int(number) if number.isdigit() else 0

    @property
    def short_name(self) -> str:
        """The name without its ending, for example CUDA."""
        return _short(self.name)


def read_provider(read: OptionReader) -> Provider:
    """Return the provider that the options of a backend select; raises Refused with the names that this build has."""
    options, allow_fallback = read.table("provider_options"), read.flag("allow_fallback", False)
    wanted = read.text("provider", "CPU")
    available = onnxruntime.get_available_providers()
    by_name = {_short(name).lower(): name for name in available}
    asked = _short(wanted).lower()
    name = by_name.get(_ALIASES.get(asked, asked))
    if name is None:
        names = ", ".join(sorted(map(_short, available)))
        raise read.wrong("provider", f"must be one that this build of onnxruntime has: {names}; it is {wanted[:80]!r}")
    if name == CPU and options:
        raise read.wrong("provider_options", "needs a provider other than CPU")
    return Provider(name, options, allow_fallback)


def _short(name: str) -> str:
    return name[: -len(_ENDING)] if name.endswith(_ENDING) else name


class ThreadPool:
    """How sessions with `threads` threads get them.

    A session has its own pool by default, and its threads spin for a while after each run. A campaign loads dozens
    of sessions, whose pools then take the cores from each other. One shared pool spins from one run to the next, as the
    pool of a network that runs by itself does.

    `kind` is "none" for one thread, "shared" for one pool of the process, and "own" for releases before 1.23: each
    session has a pool there, which stops spinning when a run ends.
    """

    def __init__(self, threads: int) -> None:
        """Create the pool of the process for several threads; raises ValueError if it has one of another size."""
        self._threads = threads
        self.kind = "none" if threads == 1 else "shared" if _share(threads) else "own"

    def apply(self, options: Any) -> None:
        """Set the options of a session."""
        options.inter_op_num_threads = 1
        if self.kind == "shared":
            options.use_per_session_threads = False
            return
        options.intra_op_num_threads = self._threads
        if self.kind == "own":
            options.add_session_config_entry(_STOP_SPINNING, "1")


def _share(threads: int) -> bool:
    """Return whether this release lets sessions share a pool, and create it.

    All sessions of the process must use it from then on, and its size cannot be changed.
    """
    global _shared_threads
    create: Optional[Callable[[int, int], None]] = getattr(onnxruntime, "set_global_thread_pool_sizes", None)
    if create is None:
        return False
    if _shared_threads is None:
        create(threads, 1)
        _shared_threads = threads
    if _shared_threads != threads:
        raise ValueError(f"this process has a pool of {_shared_threads} threads, which cannot become {threads}")
    return True


class SessionSettings:
    """Settings read from the options of a backend; sessions share one arena and one pool of threads."""

    def __init__(self, backend: str, options: Dict[str, Any]) -> None:
        """Read options; raises Refused for wrong ones, and for a provider that this build does not have."""
        read = OptionReader(backend, options, OPTIONS)
        self.threads = read.threads()
        self._level = read.one_of("optimization", _LEVELS, "all")
        self.provider = read_provider(read)
        self._pool = ThreadPool(self.threads)
        onnxruntime.set_default_logger_severity(4)
        memory = onnxruntime.OrtMemoryInfo(
            "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
        )
        onnxruntime.create_and_register_allocator(memory, None)

    def fingerprint(self) -> Dict[str, str]:
        """Return runtime, version and settings."""
        settings = f"threads={self.threads},pool={self._pool.kind},optimization={self._level}"
        return {
            "runtime": "onnxruntime",
            "runtime_version": onnxruntime.__version__,
            "settings": f"{settings},provider={self.provider.short_name}",
        }

    def session_options(self, level: Optional[str] = None) -> Any:
        """Return new options of a session, with the optimization `level` if it is given."""
        options = onnxruntime.SessionOptions()
        self._pool.apply(options)
        options.log_severity_level = 4
        level = level or self._level
        constant = "ORT_DISABLE_ALL" if level == "disabled" else f"ORT_ENABLE_{level.upper()}"
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, constant)
        options.add_session_config_entry("session.use_env_allocators", "1")
        return options
