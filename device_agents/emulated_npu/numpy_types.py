"""Types of NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Int64Array = np.ndarray[Any, np.dtype[np.int64]]
