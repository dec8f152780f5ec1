"""Tonight's watch compared with earlier nights: what became slower, since when, and what could not be detected.

A layer, a network or the device counts as changed if three conditions hold. Tonight's samples have another distribution
than those of the nights at the current level (Mann-Whitney's rank test). The difference exceeds the scatter between
nights (Student's t). It is at least the threshold. Both tests are corrected for all subjects of the night (Holm).
"""

from collections.abc import Sequence

import numpy as np

from harness.measure.fusion.significance import holm
from harness.settings import SLOWDOWN_THRESHOLD
from harness.slowdowns.detection_power import LEVEL
from harness.slowdowns.findings import Comparison, Finding
from harness.slowdowns.night_tracks import Nights, all_tracks
from harness.slowdowns.verdicts import ChangeLimits, decide, findings_of, smallest_detectable
from harness.slowdowns.watch_series import WatchSeries


def compare_nights(
    tonight: WatchSeries, earlier: Sequence[WatchSeries], *, threshold: float = SLOWDOWN_THRESHOLD, level: float = LEVEL
) -> Comparison:
    """Compare a night with the earlier ones of the same device and clock, given in any order.

    `threshold` is the smallest relative change that counts; `level` is the probability of any finding for a device that
    did not change.
    """
    same = [one for one in earlier if (one.device, one.clock) == (tonight.device, tonight.clock)]
    series = [*sorted(same, key=lambda night: (night.date, night.campaign)), tonight]
    if not same:
        return Comparison()
    nights = Nights.of(series)
    tracks, scatter, each = all_tracks(nights, level)
    limits = ChangeLimits(threshold, level / 2, each)
    verdicts = [decide(track, each) for track in tracks]
    corrected = holm([one.size.p_value for one in verdicts])
    findings = [
        finding
        for one, p_value in zip(verdicts, corrected, strict=True)
        for finding in findings_of(one, p_value, series, limits)
    ]
    last, before = nights.adjusted[-1], nights.adjusted[:-1]
    return Comparison(
        nights=len(same),
        findings=tuple(sorted(findings, key=_importance)),
        detectable=tuple(smallest_detectable(one, limits) for one in verdicts),
        host_change=last.host - float(np.median([one.host for one in before])),
        scatter=scatter.value,
    )


def _importance(finding: Finding) -> tuple[bool, int, float]:
    """Sort current findings before passed ones, the device before networks before layers, then by size."""
    return finding.state == "passed", ["device", "network", "layer"].index(finding.subject.kind), -finding.change
