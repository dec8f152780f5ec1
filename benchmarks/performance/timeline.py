"""Where the wall time of a campaign goes: the seconds of each of its stages, without those of stages inside it.

    python -m benchmarks.performance.timeline

Prints the stages of one campaign on `cpu01` and of one over SSH on loopback.
"""

import contextlib
import functools
import importlib
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.performance.campaigns import CPU_MODELS, board, profiled
from benchmarks.performance.measuring import Run

OTHER, RUNS = "other", "runs and waits for their samples"
_STAGES = (
    ("harness.measure.request", "ProfileRequest.read_networks", "reading networks"),
    ("harness.fleet.connections", "open_session", "starting agents"),
    ("harness.fleet.execution", "measure_further_processes", "further processes"),
    ("harness.fleet.execution", "check_golden", "golden probes"),
    ("harness.fleet.execution", "check_golden_again", "golden probes"),
    ("harness.measure.profiling", "cut_as_reported", "fusion"),
    ("harness.measure.profiling", "with_neighbours", "planning"),
    ("harness.measure.profiling", "plan_probes", "planning"),
    ("harness.measure.campaign", "prepare", "compiling"),
    ("harness.measure.loaded_probes", "LoadedProbes.load", "loading"),
    ("harness.device.session", "AgentSession.drop", "dropping"),
    ("harness.measure.device_requests", "DeviceRequests._confirmed", RUNS),
    ("harness.measure.device_requests", "DeviceRequests._visit", "journal"),
    ("harness.measure.campaign", "CampaignRun._due", "choosing visits"),
    ("harness.measure.campaign", "CampaignRun._most_worthwhile", "choosing visits"),
    ("harness.measure.campaign_forecast", "CampaignProgress._report", "progress"),
)
_WHOLE = ("golden probes", "further processes")
"""Stages that are campaigns of their own, and are not divided."""


@dataclass
class Timeline:
    """Seconds by stage; the present stage is on top of the stack."""

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _stack: list[str] = field(default_factory=lambda: [OTHER])
    _since_s: float = field(default_factory=time.perf_counter)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count what happens inside as this stage."""
        self._turn()
        self._stack.append(self._stack[-1] if self._stack[-1] in _WHOLE else name)
        try:
            yield
        finally:
            self._turn()
            self._stack.pop()

    def _turn(self) -> None:
        now_s = time.perf_counter()
        self.seconds[self._stack[-1]] += now_s - self._since_s
        self._since_s = now_s

    def _timed(self, work: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(work)
        def run(*given: Any, **named: Any) -> Any:
            with self.stage(name):
                return work(*given, **named)

        return run

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Count the stages of what runs inside."""
        with contextlib.ExitStack() as patches:
            for module, path, name in _STAGES:
                owner, _, attribute = path.rpartition(".")
                place: Any = importlib.import_module(module)
                place = getattr(place, owner) if owner else place
                patches.enter_context(mock.patch.object(place, attribute, self._timed(getattr(place, attribute), name)))
            self._since_s = time.perf_counter()
            yield
            self._turn()


def show_timeline(run: Run, device: str, devices: str) -> None:
    """Run a campaign and print its stages, with the time on the device apart from what surrounds it."""
    timeline = Timeline()
    with timeline.watching():
        found = profiled(run, device, CPU_MODELS, devices)
    device_s, wall_s = found.result.device_seconds, found.took.wall_s
    rows = {**timeline.seconds, RUNS: timeline.seconds[RUNS] - device_s, "time on the device": device_s}
    print(f"{device}: {wall_s:.1f} s, {wall_s / device_s:.2f} times the time on the device")
    for name, seconds in sorted(rows.items(), key=lambda row: -row[1]):
        print(f"  {name}: {seconds:.2f} s ({seconds / wall_s:.1%})")


def main() -> None:
    """Run the campaigns and print their stages."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), quick=False)
        with board(run) as devices:
            for device in ("cpu01", "board") if devices else ("cpu01",):
                show_timeline(run, device, devices)


if __name__ == "__main__":
    main()
