"""A .npy file whose rows are read part by part.

The file is not memory-mapped: if another program shortened it, a signal would end the process.
"""

from __future__ import annotations

import math
import tokenize
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from harness.errors import ConfigurationError, reason_of

_MALFORMED = (ValueError, TypeError, OverflowError, RecursionError, SyntaxError, tokenize.TokenError)
"""What NumPy raises for a damaged header."""
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


@dataclass(frozen=True)
class ArrayFile:
    """An array of one or two axes in a file, at an `offset`; by columns if it `is_fortran`."""

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_fortran: bool
    offset: int

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def __getitem__(self, part: slice) -> NDArray[Any]:
        """Return consecutive rows; raises ConfigurationError if the file has become shorter."""
        first, last, _ = part.indices(len(self))
        count, columns = last - first, math.prod(self.shape[1:])
        try:
            with self.path.open("rb") as file:
                if self.is_fortran:
                    held = np.stack([self._read(file, at * len(self) + first, count) for at in range(columns)], axis=-1)
                else:
                    held = self._read(file, first * columns, count * columns)
        except OSError as error:
            raise ConfigurationError(f"{self.path} cannot be read", why=reason_of(error)) from error
        return held.reshape(count, *self.shape[1:])

    def _read(self, file: BinaryIO, first: int, count: int) -> NDArray[Any]:
        file.seek(self.offset + first * self.dtype.itemsize)
        content = file.read(count * self.dtype.itemsize)
        if len(content) < count * self.dtype.itemsize:
            raise _too_short(self.path, self.offset + math.prod(self.shape) * self.dtype.itemsize)
        return np.frombuffer(content, self.dtype)


def open_array(path: Path) -> ArrayFile:
    """Read the header of a .npy file; raises ConfigurationError if it is none, or lacks a part of its array."""
    if not path.is_file():  # a pipe has no parts
        raise ConfigurationError(f"{path} is not a file", next_step="Name a .npy file, or random:N")
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            if version not in _HEADERS:
                raise ValueError(f"its format has version {version[0]}.{version[1]}")
            shape, is_fortran, dtype = _HEADERS[version](file)
            offset = file.tell()
    except (OSError, *_MALFORMED) as error:
        step = "Save it with numpy.save"
        raise ConfigurationError(f"{path} is not a .npy file", why=reason_of(error)[:200], next_step=step) from error
    if dtype.hasobject or not dtype.itemsize or any(type(one) is not int or one < 0 for one in shape):
        raise ConfigurationError(f"{path} does not hold numbers", next_step="Save an array of numbers with numpy.save")
    found = ArrayFile(path, shape, dtype, bool(is_fortran), offset)
    size = offset + math.prod(shape) * dtype.itemsize
    if path.stat().st_size < size:
        raise _too_short(path, size)
    return found


def _too_short(path: Path, size: int) -> ConfigurationError:
    why = f"Its header announces {size:,} bytes"
    step = "Save it again with numpy.save, under another name if it is being used"
    return ConfigurationError(f"{path} is too short", why=why, next_step=step)
