"""ONNX Runtime on this host, which computes values and shapes. Nothing is measured with it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from device_agents.backends.onnx_bytes import with_packed

if TYPE_CHECKING:
    import numpy as np

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before the runtime is imported: its wheels report to their vendor

OUT_OF_MEMORY = ("bad_alloc", "bad allocation", "Failed to allocate memory", "Available memory", "MemoryError")
"""What the runtime says if it gets no memory, and Python."""


def is_shortage(error: Exception) -> bool:
    """Return whether an exception of numpy or the runtime means that there was too little memory."""
    return isinstance(error, MemoryError) or any(text in str(error) for text in OUT_OF_MEMORY)


def refusals() -> tuple[type[Exception], ...]:
    """Return the runtime's exceptions for an operator without a kernel, and for a session that cannot be made."""
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime

    return runtime.NotImplemented, runtime.Fail


def session_options(threads: int = 0, level: Literal["ENABLE_ALL", "DISABLE_ALL"] = "ENABLE_ALL") -> Any:
    """Return the options of a session that prints no messages, with an optimization level.

    0 leaves the number of threads to the runtime.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{level}")
    return options


def open_session(model: bytes, options: Any, weights: Mapping[str, np.ndarray[Any, Any]] | None = None) -> Any:
    """Return a session on the CPU; `weights` are the values of external initializers by name.

    Raises the runtime's exceptions, which have no narrower common base than Exception.
    """
    import onnxruntime

    model, weights = with_packed(model, weights or {})
    if weights:
        # The values must live until the session exists.
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in weights.values()]
        options.add_external_initializers(list(weights), values)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
