"""Test whether a device fuses two neighbouring operators, from what they save together over several shapes.

A saving is compared with the time of the smaller operator by itself: a fused pair saves most of it, others save
nothing. The boundary is one half, both answers need evidence, and the rest is undecided. The share `saving = share *
own` is fitted over all shapes, each weighted by the errors of its probes. No saving counts for more than `own`: savings
beyond it, such as a reorder that disappears, are no further evidence and differ between shapes. If shapes disagree more
than their errors allow, the error of the share grows accordingly (Birge's ratio).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from harness.measure.summary import Measurement

HALF = 0.5
ADDITIVITY = {"cpu": 0.005, "wall": 0.005, "device": 0.0005}
"""How exactly times add up, as a share of their sum, by clock: only a host shares its caches between operators."""
RESOLVED = 3.0
"""How many standard errors a time must exceed to count as more than zero."""
_NORMAL = NormalDist()


@dataclass(frozen=True)
class ShapeSaving:
    """The saving of two neighbours in one shape and the time of the smaller by itself, in seconds with standard errors.

    `excess_stderr_s` is the standard error of `saving_s - HALF * own_s`, whose terms share measurements.
    """

    saving_s: float
    own_s: float
    stderr_s: float
    excess_stderr_s: float


@dataclass(frozen=True)
class Verdict:
    """The fitted share of the smaller operator's time that is saved, and the evidence on either side of one half.

    `p_fused` is the probability of such a saving if less than half were saved, `p_apart` if more were. `matched` shapes
    were probed, and `fused` of them saved more than half.
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
    """Return the saving in one shape from its six probes, which `harness.probe.fusion_probes` plans."""
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
    """The faster of two groups, each with the probe of its inputs, among those that take a measurable time.

    A group that takes no time has nothing to save, and a negative time only shows the uncertainty.
    """

    def own_s(group: tuple[Measurement, Measurement]) -> float:
        return group[0].latency_s - group[1].latency_s

    clear = [group for group in groups if own_s(group) > RESOLVED * math.hypot(group[0].stderr_s, group[1].stderr_s)]
    return min(clear, key=own_s) if clear else max(groups, key=own_s)


def fit_verdict(savings: Sequence[ShapeSaving]) -> Verdict:
    """Return the verdict over all shapes; both p-values are 1 if the smaller operator takes no time in any shape."""
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
    """Return p-values that hold for all of these tests together, by Holm's correction, in the order given."""
    order = sorted(range(len(p_values)), key=lambda at: p_values[at])
    adjusted, largest = [1.0] * len(p_values), 0.0
    for rank, at in enumerate(order):
        largest = max(largest, min(1.0, p_values[at] * (len(p_values) - rank)))
        adjusted[at] = largest
    return tuple(adjusted)
