"""The types of arrays that every part of the host shares."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = np.ndarray[Any, Any]
Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
