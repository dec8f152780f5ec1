"""ONNX Runtime on the host, which folds constants and infers shapes; only devices measure."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def run_once(model: bytes, feeds: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, np.ndarray[Any, Any]] | None:
    """Return the values of `outputs` by name, or None if ONNX Runtime cannot run the model."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # must be set before import; otherwise the wheel sends telemetry
    import numpy
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        values = session.run(list(outputs), dict(feeds))
    except Exception:  # the runtime's exceptions have no narrower common base
        return None
    return {name: numpy.asarray(value) for name, value in zip(outputs, values, strict=True)}
