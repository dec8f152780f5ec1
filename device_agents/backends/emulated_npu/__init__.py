"""The emulated NPU as a backend: its options and clock, models compiled once by content, and compiling on all cores."""

from __future__ import annotations

from device_agents.backends.emulated_npu.emulated_npu_backend import EmulatedNpuBackend

__all__ = ["EmulatedNpuBackend"]
