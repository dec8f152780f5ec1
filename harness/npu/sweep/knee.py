"""The knee of a curve: the value from which a larger parameter stops paying."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

from harness.npu.sweep.axis import scale_of

Better = Literal["lower", "higher"]

SENSITIVITY = 0.1
"""A curve whose distance from its chord is at most this fraction of its height has no knee."""

FLAT = 0.02
"""A curve whose worst value is within this fraction of its best has no knee."""

_ROUNDING = 1e-9


def knee(xs: Sequence[float], ys: Sequence[float], better: Better = "lower") -> int | None:
    """Return the index of the knee of a curve over ascending `xs`, or None if it has none.

    The knee is Kneedle's (Satopaa, Albrecht, Irwin, Raghavan: Finding a "Kneedle" in a haystack, 2011): both axes are
    scaled to 0 … 1, and it is the first of the points farthest from the chord between the first and the last point, on
    the side where `ys` are better than the chord. If `xs` are spaced by a factor (`scale_of`), both axes are
    logarithmic: a curve c + 1/x then has its knee near x = 1/c, and 1/x, which gains the same by every doubling, has
    none.

    Each value is replaced by the best one reached so far, counted from the worse end, so the curve is monotone.

    A curve of fewer than three points, and one that is straight, flat or bent the other way, has no knee. `SENSITIVITY`
    and `FLAT` replace Kneedle's sensitivity, which depends on the number of points; here they are few.
    """
    if len(xs) < 3 or not all(math.isfinite(y) for y in ys):
        return None
    ys = _best_so_far(ys, better)
    if max(ys) - min(ys) <= FLAT * max(map(abs, ys)):
        return None
    if scale_of(xs) == "log" and min(ys) > 0:
        xs, ys = [math.log(x) for x in xs], [math.log(y) for y in ys]
    sign = 1 if better == "lower" else -1
    width, height = xs[-1] - xs[0], max(ys) - min(ys)
    chord = [ys[0] + (x - xs[0]) / width * (ys[-1] - ys[0]) for x in xs]
    distances = [sign * (line - y) / height for line, y in zip(chord, ys, strict=True)]
    farthest = max(distances)
    if farthest <= SENSITIVITY:
        return None
    return next(at for at, each in enumerate(distances) if each >= farthest - _ROUNDING)


def _best_so_far(ys: Sequence[float], better: Better) -> list[float]:
    """Return the best value up to each place, counted from the worse end."""
    best = min if better == "lower" else max
    if best(ys[0], ys[-1]) == ys[-1]:
        return list(itertools.accumulate(ys, best))
    return list(itertools.accumulate(reversed(ys), best))[::-1]
