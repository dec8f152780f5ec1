"""When the comparison of a network with its estimate is decided, so that no further process needs to measure it.

Processes differ by more than the samples of one show, so each process counts as one observation. After each process the
rule computes an interval for the latency and one for the spread between processes. The comparison is decided if both
verdicts, whether the interval of the estimate holds and whether its error exceeds the floor, are the same for every
value in these intervals. Both hold together, at all looks of a network, with the probability CONFIDENCE.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Stop = Literal["decided", "target", "most processes"]
"""Why no further process measured a network: its verdicts are decided, its latency is within the target of the repeat
policy, or the maximum number of processes have measured it."""
CONFIDENCE = 0.95
FEWEST_PROCESSES = 3
"""With fewer, the spread between them says little."""


@dataclass(frozen=True)
class StoppingRule:
    """The rule for one network, with the estimate that it is compared with.

    At most `most_processes` measure it, and fewer if the 95 % interval of its latency is within `target`. The first
    look is after FEWEST_PROCESSES.
    """

    estimated_s: float
    interval_s: tuple[float, float]
    target: float
    most_processes: int

    def stop(self, processes_s: Sequence[float], halfwidth_s: float) -> Stop | None:
        """Return why the processes suffice whose medians are given, None if another one should measure.

        `halfwidth_s` is that of the 95 % interval of the latency.
        """
        if len(processes_s) >= FEWEST_PROCESSES:
            if self._is_decided(processes_s):
                return "decided"
            if halfwidth_s <= self.target * statistics.median(processes_s):
                return "target"
        return "most processes" if len(processes_s) >= self.most_processes else None

    def _is_decided(self, processes_s: Sequence[float]) -> bool:
        from scipy.special import chdtri, stdtrit

        count, mean_s, spread_s = len(processes_s), statistics.fmean(processes_s), statistics.stdev(processes_s)
        looks = max(1, self.most_processes - FEWEST_PROCESSES + 1)
        # Each look may be wrong about the latency or about the spread, on either side.
        tail = (1 - CONFIDENCE) / looks / 4
        half_s = float(-stdtrit(count - 1, tail)) * spread_s / math.sqrt(count)
        low_s, high_s = mean_s - half_s, mean_s + half_s
        least_s, most_s = (spread_s * math.sqrt((count - 1) / float(chdtri(count - 1, p))) for p in (tail, 1 - tail))
        holds = self.interval_s[0] <= low_s and high_s <= self.interval_s[1]
        fails = high_s < self.interval_s[0] or low_s > self.interval_s[1]
        inside = low_s <= self.estimated_s <= high_s
        nearest_s, farthest_s = sorted(abs(self.estimated_s - end_s) for end_s in (low_s, high_s))
        beyond = not inside and nearest_s > most_s
        return (holds or fails) and (beyond or farthest_s <= least_s)
