"""Whether a device fuses two neighbours: a test of what they save together, over several shapes.

A saving counts against the time that the smaller of the two takes by itself: where they are fused, most of that is
gone; where they are not, nothing is. The boundary is the half, so both answers need evidence, and what is neither
is left undecided. Savings are fitted by one share `saving = share * own` over the shapes, each weighted by the
errors of its probes, and none for more than all of `own`: what goes beyond, like a reorder that falls away, is no
further evidence and differs from shape to shape. Where shapes disagree more than these errors allow, the error of
the share grows with them (Birge's ratio).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from harness.measure.summary import Measurement

HALF = 0.5
ADDITIVITY = {"cpu": 0.005, "wall": 0.005, "device": 0.0005}
"""How exactly times add up, as a share of their sum, by clock: a host's caches are shared, a device's memory is not."""
RESOLVED = 3.0
"""Standard errors by which a time differs from nothing."""
_NORMAL = NormalDist()


@dataclass(frozen=True)
class ShapeSaving:
    """What two neighbours save in one shape, and what the smaller takes alone, in seconds with standard errors.

    `excess_stderr_s` is that of `saving_s - HALF * own_s`, which have measurements in common.
    """

    saving_s: float
    own_s: float
    stderr_s: float
    excess_stderr_s: float


@dataclass(frozen=True)
class Verdict:
    """The fitted share of the smaller one's own time that is saved, and the evidence on either side of the half.

    `p_fused` is the chance of such a saving if less than half were saved, `p_apart` if more were; `matched` shapes
    were probed and `fused` of them saved more than half.
    """

    share: float
    stderr: float
    p_fused: float
    p_apart: float
    matched: int
    fused: int


def shape_saving(
    first: Measurement,
    second: Measurement,
    both: Measurement,
    between: Measurement,
    first_inputs: Measurement,
    second_inputs: Measurement,
) -> ShapeSaving:
    """The saving in one shape from its six probes; see `harness.probe.pairs`."""
    saving_s = first.latency_s + second.latency_s - both.latency_s - between.latency_s
    group, inputs = _smaller((first, first_inputs), (second, second_inputs))
    own_s = group.latency_s - inputs.latency_s
    model_variance = (ADDITIVITY[both.clock] * both.latency_s) ** 2
    probes = (first, second, both, between)
    variance = model_variance + sum(probe.stderr_s**2 for probe in probes)
    # The group's own probe counts whole in the saving and half in what it is compared with.
    others = sum(probe.stderr_s**2 for probe in probes if probe is not group)
    excess = model_variance + others + (1 - HALF) ** 2 * group.stderr_s**2 + (HALF * inputs.stderr_s) ** 2
    return ShapeSaving(saving_s, max(0.0, own_s), math.sqrt(variance), math.sqrt(excess))


def _smaller(*groups: tuple[Measurement, Measurement]) -> tuple[Measurement, Measurement]:
    """The group that takes least time of those that take any that can be told, with the probe of its inputs.

    One that takes none has nothing to save, and one that seems to take less only shows how uncertain that is.
    """

    def own_s(group: tuple[Measurement, Measurement]) -> float:
        return group[0].latency_s - group[1].latency_s

    told = [group for group in groups if own_s(group) > RESOLVED * math.hypot(group[0].stderr_s, group[1].stderr_s)]
    return min(told, key=own_s) if told else max(groups, key=own_s)


def judge(savings: Sequence[ShapeSaving]) -> Verdict:
    """The verdict over the shapes; nothing is known (`p` of one) where the smaller takes no time in any shape."""
    weights = [one.own_s / one.excess_stderr_s**2 for one in savings]
    power = sum(weight * one.own_s for weight, one in zip(weights, savings, strict=True))
    fused = sum(one.saving_s > HALF * one.own_s for one in savings)
    if power <= 0:
        return Verdict(0.0, math.inf, 1.0, 1.0, len(savings), fused)
    saved_s = [min(one.saving_s, one.own_s) for one in savings]
    share = sum(weight * one_s for weight, one_s in zip(weights, saved_s, strict=True)) / power
    misfit = sum(
        ((one_s - share * one.own_s) / one.excess_stderr_s) ** 2 for one_s, one in zip(saved_s, savings, strict=True)
    )
    birge = max(1.0, math.sqrt(misfit / (len(savings) - 1))) if len(savings) > 1 else 1.0
    stderr = birge / math.sqrt(power)
    above = (share - HALF) / stderr
    return Verdict(share, stderr, _NORMAL.cdf(-above), _NORMAL.cdf(above), len(savings), fused)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm's correction: p-values that hold for all of these tests together, in the order given."""
    order = sorted(range(len(p_values)), key=lambda at: p_values[at])
    adjusted, largest = [1.0] * len(p_values), 0.0
    for rank, at in enumerate(order):
        largest = max(largest, min(1.0, p_values[at] * (len(p_values) - rank)))
        adjusted[at] = largest
    return tuple(adjusted)
