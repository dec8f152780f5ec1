"""Types of NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from device_agents.emulated_npu.unit_commands import DataType

Array = np.ndarray[Any, Any]
Float64Array = np.ndarray[Any, np.dtype[np.float64]]
Int64Array = np.ndarray[Any, np.dtype[np.int64]]

NUMPY_TYPES: Mapping[DataType, np.dtype[Any]] = {kind: np.dtype(kind.name.lower()) for kind in DataType}
"""The element type in NumPy of every element type in memory."""
