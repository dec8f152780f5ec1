"""OpenVINO's counters: the time of each executed node."""

from __future__ import annotations

from typing import Any, Callable, Dict, List

_MICROSECONDS = 1e6


class Counters:
    """Runs of a model compiled with counters, which report the mean of all runs so far in whole microseconds.

    Two consecutive means give the time of one run, to within as many microseconds as there were runs. Over many runs
    the rounding errors cancel out.
    """

    def __init__(self, infer: Callable[[], Any], read: Callable[[], Any], runs: int) -> None:
        self._infer = infer
        self._read = read
        self._runs = runs
        self._totals_us: List[Dict[str, float]] = [self._totals()]

    def run(self) -> None:
        """Run once."""
        self._infer()
        self._runs += 1
        self._totals_us.append(self._totals())

    def per_run_us(self) -> Dict[str, List[float]]:
        """Return for each executed node its time in each call of `run`, in microseconds."""
        last = self._totals_us[-1]
        numbers = range(1, len(self._totals_us))
        return {
            name: [self._totals_us[at][name] - self._totals_us[at - 1][name] for at in numbers]
            for name in last
            if last[name]
        }

    def _totals(self) -> Dict[str, float]:
        totals: Dict[str, float] = {}
        for node in self._read():
            mean_us = round(node.real_time.total_seconds() * _MICROSECONDS)
            totals[node.node_name] = totals.get(node.node_name, 0.0) + self._runs * mean_us
        return totals
