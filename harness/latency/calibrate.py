"""From the samples of null probes to the overhead: drift taken out, summaries, fit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from harness.latency.drift import SLOW_DRIFT, level_error, level_factors, levelled
from harness.latency.overhead import Overhead, fit_overhead
from harness.measure.summary import summarise
from harness.probe.overhead_terms import OverheadTerms
from harness.samples import Sample


def overhead_of_samples(
    samples: Mapping[str, Sequence[Sample]], terms: Mapping[str, OverheadTerms], clock: str, *, spans_drift: bool
) -> Overhead:
    """The overhead by the calibration probes' samples, round by round.

    `spans_drift` tells that the rounds lay at random moments of a span longer than what drifts: then their own
    differences say all of it, and nothing is allowed for slower drift. Raises IllConditionedDesign.
    """
    factors = level_factors(samples, clock)
    unseen = 0.0 if spans_drift else SLOW_DRIFT
    nulls = [(terms[probe], summarise(levelled(taken, factors), clock)) for probe, taken in samples.items() if taken]
    return fit_overhead(nulls, drift=math.hypot(level_error(factors), unseen))
