"""Runs of commands as their line of progress met them: recorded from real commands, and replayed.

`python tests/recorded_runs.py FILE.json COMMAND …` runs a command of `harness` and adds it to the runs of the file.
`python tests/recorded_runs.py` writes the runs of the package: the first one of each file in `measure/recorded`. The
folder `loaded` there has runs of a machine with 20 to 30 other tasks, `earlier` those of an earlier program.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harness.measure.progress import Progress
from harness.measure.time_left import USUAL, Run, TimeLeft

RECORDED = Path(__file__).parent / "measure" / "recorded"
_APART_S = 0.1
"""Of reports of one phase that come sooner, the first and the last are recorded."""
_SHOWN_S = 1.0
"""What a line shows at least, and therefore how far off it may be."""
_MOMENTS = 300
Event = tuple[float, str, float | None, float | None, float | None, dict[str, float]]


@dataclass(frozen=True)
class RecordedRun:
    """The reports of a run, each with its time, phase, effort, share, next share and the effort of phases to come.

    Times count from the start of the process.
    """

    began_s: float
    events: tuple[Event, ...]
    end_s: float

    @classmethod
    def of(cls, record: Any) -> RecordedRun:
        """Return the run of a record in a file."""
        events = (
            (*one[:4], one[5] if len(one) > 5 else None, one[4] if len(one) > 4 else {}) for one in record["events"]
        )
        return cls(record["began_s"], tuple(events), record["end_s"])

    def replayed(self, earlier: Sequence[Run] = ()) -> Iterator[tuple[float, TimeLeft]]:
        """Yield moments after the first tenth, each with the time left as it knows it then."""
        now = [self.began_s]
        time_left = TimeLeft(earlier, lambda: now[0], before_s=self.began_s)
        waiting = list(self.events)
        for step in range(_MOMENTS):
            at_s = self.end_s * (0.1 + 0.9 * step / _MOMENTS)
            while waiting and waiting[0][0] <= at_s:
                now[0], phase, effort, share, following, ahead = waiting.pop(0)
                time_left.see(Progress(phase, 0, 0, effort=effort, share=share, next_share=following, ahead=ahead))
            now[0] = at_s
            yield at_s, time_left

    @property
    def run(self) -> Run:
        """The times of its phases."""
        *_, (_, last) = self.replayed()
        return last.run

    def within_a_factor_of_two(self, earlier: Sequence[Run] = ()) -> float:
        """Return for which part of the time after the first tenth the time left is within a factor of two."""
        good = 0
        for at_s, time_left in self.replayed(earlier):
            true_s, known_s = self.end_s - at_s, time_left.remaining_s
            if known_s is not None:
                shown_s = max(_SHOWN_S, known_s)
                good += true_s / 2 <= shown_s <= 2 * true_s or abs(shown_s - true_s) <= _SHOWN_S
        return good / _MOMENTS


def read_runs(path: Path) -> list[RecordedRun]:
    """Return the runs of a file, in their order."""
    return [RecordedRun.of(record) for record in json.loads(path.read_text())]


def write_usual() -> None:
    """Write the runs of the package: file `lut_build_cpu01.json` has those of `lut build cpu01`."""
    usual = {path.stem.replace("_", " "): read_runs(path)[0].run for path in sorted(RECORDED.glob("*.json"))}
    phases = {name: [(one.name, round(one.seconds, 2), one.effort) for one in run] for name, run in usual.items()}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(run)}" for name, run in phases.items())
    USUAL.write_text(f"{{\n{lines}\n}}\n")


def _is_soon_after(event: Sequence[Any], other: Sequence[Any]) -> bool:
    """Return whether an event adds only newer numbers to another one of the same phase."""
    known, earlier = ((one[1], one[2] is None, one[3] is None) for one in (event, other))
    return known == earlier and not other[4] and event[0] - other[0] < _APART_S


def record() -> None:
    """Record one run."""
    start_s, began_s = time.monotonic(), 0.0
    events: list[list[Any]] = []
    inner = TimeLeft.see

    def see(self: TimeLeft, progress: Progress) -> None:
        nonlocal began_s
        inner(self, progress)
        at_s, phase = round(time.monotonic() - start_s, 3), progress.phase or progress.stage
        if not events:
            began_s = round(self.run[0].seconds and at_s - sum(one.seconds for one in self.run), 3)
        share = None if progress.share is None else round(progress.share, 4)
        following = None if progress.next_share is None else round(progress.next_share, 4)
        event = [at_s, phase, progress.effort, share, dict(progress.ahead), following]
        if len(events) > 1 and all(map(partial(_is_soon_after, event), events[-2:])):
            events.pop()
        events.append(event)

    TimeLeft.see = see  # type: ignore[method-assign]
    from harness.cli.app import main as run

    try:
        run(sys.argv[2:])
    except SystemExit as end:
        if end.code:
            raise
    path = Path(sys.argv[1])
    known = json.loads(path.read_text()) if path.exists() else []
    record = {"began_s": began_s, "events": events, "end_s": round(time.monotonic() - start_s, 3)}
    path.write_text(json.dumps([*known, record], separators=(",", ":")) + "\n")
    for number in range(len(known) + 1):
        runs = read_runs(path)
        earlier = [one.run for one in runs[:number]]
        print(
            f"run {number}: {runs[number].end_s} s, {runs[number].within_a_factor_of_two(earlier):.0%}", file=sys.stderr
        )


if __name__ == "__main__":
    record() if sys.argv[1:] else write_usual()
