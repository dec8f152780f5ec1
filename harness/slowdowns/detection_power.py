"""Statistical power: the runs that detect a change, and the change that a number of runs detects."""

import math
from statistics import NormalDist

LEVEL = 0.005
"""Probability that a night reports any change of a device that did not change, over all layers and networks."""
POWER = 0.98
"""Probability that a night detects a change for which its runs were planned."""
EARLIER = 1
"""Earlier nights that a plan assumes: the first comparison has one."""
_RANK_EFFICIENCY = 0.85
"""Efficiency of the 20 % trimmed mean or the rank test on normal samples, whichever is lower, against the mean."""
_COMMON = 2.5
"""Factor on the variance of a difference for what samples do not show. That is the adjustment for what all probes have
in common, scatter between nights, and how badly one earlier night determines that scatter."""
_NORMAL = NormalDist()


def level_of_subject(level: float, subjects: int) -> float:
    """Return the level of significance of one subject of `subjects`.

    Half of the comparison's level is for changes of tonight, half for changes of the nights before.
    """
    return level / 2 / max(1, subjects)


def level_of_each(comparisons: int) -> float:
    """Return the level of each comparison: all comparisons of a night share LEVEL."""
    return LEVEL / max(1, comparisons)


def runs_needed(change_s: float, spread_s: float, subjects: int, level: float = LEVEL) -> float:
    """Return the runs per night that detect a change of a probe with this spread of samples; infinite for none."""
    if change_s <= 0:
        return math.inf
    wanted = _detected_errors(subjects, level)
    return (wanted * spread_s / change_s) ** 2 * (1 + 1 / EARLIER) * _COMMON / _RANK_EFFICIENCY


def smallest_change_s(spread_s: float, runs: float, subjects: int, level: float = LEVEL) -> float:
    """Return the smallest change that `runs` per night detect: the inverse of `runs_needed`."""
    wanted = _detected_errors(subjects, level)
    return wanted * spread_s * math.sqrt((1 + 1 / EARLIER) * _COMMON / _RANK_EFFICIENCY / runs)


def _detected_errors(subjects: int, level: float) -> float:
    """Return the smallest detectable change of one subject of `subjects`, in standard errors."""
    return -_NORMAL.inv_cdf(level_of_subject(level, subjects) / 2) + _NORMAL.inv_cdf(POWER)
