"""Interruptions: what long runs take beyond short ones because something stops a core for microseconds.

Timers, interrupts and the host stop a core a few hundred times a second, each time for 10 to 100 µs. Most runs of a
probe of 100 µs meet none, so its median has none. A network of several milliseconds meets some in each run: it takes
longer than the medians of its layers together, by the same share whatever its length. With several threads, each one
that is stopped delays all.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np

from harness.array_types import Floats, Ints

LONG_S = 5e-3
"""Length of successive runs that together meet as many interruptions as usual."""
_HALF_S = 1e-3
"""Length of runs of which half meet one; that of successive runs of three campaigns, see docs/method_measurement.md."""
_SHARE, _DOUBT = 0.5, 1 / math.sqrt(12)
"""Mean and standard deviation of the share of what series show that networks have: anything between nothing and all.

The runs of a series are of many probes. Each finds the caches as the one before it left them, which also adds to some
runs and not to others."""
_Seconds = TypeVar("_Seconds", float, Floats)


def interruptions_of(runs_s: Floats, usual_s: Floats) -> float:
    """Return the share by which long series of successive runs exceed the sum of the usual latencies of these runs."""
    ends_s = np.cumsum(usual_s)
    series: Ints = np.unique((ends_s / LONG_S).astype(np.int64), return_inverse=True)[1]
    shares = np.bincount(series, runs_s) / np.bincount(series, usual_s)
    return max(0.0, float(np.median(shares)) - 1) if ends_s[-1] >= LONG_S else 0.0


def lengthening(latency_s: _Seconds, interruptions: float) -> tuple[_Seconds, _Seconds]:
    """Return the time of a network over the sum of its parts, which is `latency_s`, and the error of this factor."""
    shown = interruptions * latency_s**2 / (latency_s**2 + _HALF_S**2)
    return 1 + _SHARE * shown, _DOUBT * shown
