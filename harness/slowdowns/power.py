"""How many runs show a change, and how small a change they show."""

from __future__ import annotations

import math
from statistics import NormalDist

LEVEL = 0.005
"""Probability that a night tells anything of a device that did not change, over all layers and networks."""
POWER = 0.98
"""Probability that a night tells a change for which its runs were planned."""
EARLIER = 1
"""Earlier nights that a plan counts on: the first comparison has one."""
_RANK_EFFICIENCY = 0.85
"""Of the 20 % trimmed mean and the rank test on normal samples, the smaller one, against the mean."""
_COMMON = 2.5
"""By how much what is not the samples' own adds to the variance of a difference: what is common to all probes and had
to be freed, scatter between nights, and that one earlier night tells that scatter badly."""
_NORMAL = NormalDist()


def level_of_subject(level: float, subjects: int) -> float:
    """The part of a comparison's level at which one of so many subjects is judged.

    One half of the level is for what tonight tells, one for what the nights before tell.
    """
    return level / 2 / max(1, subjects)


def critical(subjects: int, level: float = LEVEL) -> float:
    """Standard errors beyond which one of so many subjects counts as changed in either direction."""
    return -_NORMAL.inv_cdf(level_of_subject(level, subjects) / 2)


def level_of_each(comparisons: int) -> float:
    """LEVEL, shared among all comparisons of a night."""
    return LEVEL / max(1, comparisons)


def runs_needed(change_s: float, spread_s: float, subjects: int, level: float = LEVEL) -> float:
    """Runs a night that show such a change of a probe with this spread of its samples; infinite for no change."""
    if change_s <= 0:
        return math.inf
    wanted = critical(subjects, level) + _NORMAL.inv_cdf(POWER)
    return (wanted * spread_s / change_s) ** 2 * (1 + 1 / EARLIER) * _COMMON / _RANK_EFFICIENCY


def smallest_change_s(spread_s: float, runs: float, subjects: int, level: float = LEVEL) -> float:
    """The change that so many runs a night show: the inverse of `runs_needed`."""
    wanted = critical(subjects, level) + _NORMAL.inv_cdf(POWER)
    return wanted * spread_s * math.sqrt((1 + 1 / EARLIER) * _COMMON / _RANK_EFFICIENCY / runs)
