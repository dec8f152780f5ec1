"""The real matrices of a DFT of odd length 2N + 1 of real data, and of its inverse (S4.3, S4.4, S4.6).

The first direction gives the lines u = 0 .. N; lines -u are their conjugates. Across the lines the results are
numbered by `v`: 0 .. N are F[u, v], and N + 1 .. 2N are F[-u, 1 .. N], computed of the conjugate line. Together
with line 0, of which 0 .. N suffice, these are the (L * L + 1) / 2 independent ones. The first index of a result is
its frequency, the second the position; where there are two parts, they are the last index.
"""

from __future__ import annotations

import numpy as np

from device_agents.emulated_npu.numpy_types import Float64Array


def _angles(length: int, positions: int) -> Float64Array:
    """Return the angle of frequencies 0 .. N at every position, one row per frequency."""
    turns = np.outer(np.arange(length // 2 + 1), np.arange(positions)) % length
    return np.asarray(2 * np.pi / length * turns, np.float64)


def lines(length: int, positions: int, sign: int = -1) -> Float64Array:
    """Return the matrix (positions, 2 (N + 1)) from a real row to lines 0 .. N, with adjacent real and imaginary parts.

    `sign` is the sign of the exponent: +1 yields the conjugate, which a correlation needs of its kernel.
    """
    angles = _angles(length, positions)
    return np.stack([np.cos(angles), sign * np.sin(angles)], axis=1).reshape(-1, positions).T


def _directions(length: int) -> Float64Array:
    """Return +1 for the results of line u, -1 for those of line -u."""
    return np.where(np.arange(length) <= length // 2, 1.0, -1.0)[:, None]


def _across(length: int, positions: int) -> tuple[Float64Array, Float64Array]:
    """Return cosine and sine of result v at every position: 0 .. N, then 1 .. N."""
    angles = _angles(length, positions)
    both = np.concatenate([angles, angles[1:]])
    return np.cos(both), np.sin(both)


def across_real(length: int, positions: int, sign: int = -1) -> Float64Array:
    """Return the matrix (L, positions, 2) from a line to the real parts of F[u, 0 .. N] and F[-u, 1 .. N]."""
    cosine, sine = _across(length, positions)
    return np.stack([cosine, -sign * _directions(length) * sine], axis=2)


def across_imaginary(length: int, positions: int, sign: int = -1) -> Float64Array:
    """Return the matrix (L, positions, 2) from a line to the imaginary parts of F[u, 0 .. N] and F[-u, 1 .. N]."""
    cosine, sine = _across(length, positions)
    return np.stack([sign * sine, _directions(length) * cosine], axis=2)


def inverse_real(length: int, valid: int) -> Float64Array:
    """Return the matrix (valid, L, 2) from a line u >= 1 to the real parts of its first `valid` positions."""
    cosine, sine = _across(length, valid)
    return np.stack([cosine.T, -sine.T], axis=2)


def inverse_imaginary(length: int, valid: int) -> Float64Array:
    """Return the matrix (valid, L, 2) from a line u >= 1 to the imaginary parts of its first `valid` positions."""
    cosine, sine = _across(length, valid)
    return np.stack([sine.T, cosine.T], axis=2) * _directions(length)[None]


ACROSS = {"real": across_real, "imaginary": across_imaginary}
INVERSE = {"real": inverse_real, "imaginary": inverse_imaginary}
"""The matrices across the lines, and of their inverse, by part of the result."""


def inverse_line_0(length: int, valid: int) -> Float64Array:
    """Return the matrix (valid, N + 1, 2) from results 0 .. N of line 0 to its first `valid` positions, over L * L."""
    angles = _angles(length, valid).T
    twice = np.where(np.arange(angles.shape[1]) == 0, 1.0, 2.0)
    return np.stack([np.cos(angles) * twice, -np.sin(angles) * twice], axis=2) / length**2


def inverse_lines(length: int, valid: int) -> Float64Array:
    """Return the matrix (valid, N, 2) from lines 1 .. N of a position to their part of the first `valid` outputs."""
    angles = _angles(length, valid)[1:].T
    return np.stack([np.cos(angles), -np.sin(angles)], axis=2) * (2 / length**2)
