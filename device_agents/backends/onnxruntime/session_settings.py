"""The settings that all sessions of a backend share: threads, optimization level, execution provider and memory."""

from __future__ import annotations

from typing import Any, Dict, Optional

import onnxruntime

from device_agents.backends.onnxruntime.providers import read_provider
from device_agents.backends.onnxruntime.thread_pool import ThreadPool
from device_agents.backends.option_reader import OptionReader

OPTIONS = {"threads", "optimization", "provider", "provider_options", "allow_fallback"}
_LEVELS = ("all", "extended", "basic", "disabled")


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
