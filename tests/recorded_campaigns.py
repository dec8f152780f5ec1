"""Campaigns as their forecasts met them: recorded from real commands, and replayed on a clock of their own.

`python tests/recorded_campaigns.py FILE.json COMMAND …` runs a command of `harness` and records it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from harness.measure import progress
from harness.measure.forecast import CampaignForecast, ClosingForecast, ProcessForecast
from harness.measure.reference import GOLDEN_POLICY


@dataclass(frozen=True)
class Moment:
    """A time since the command began, and the time left that was forecast then."""

    at_s: float
    left_s: float


def replay(path: Path) -> tuple[list[Moment], float]:
    """Return the forecasts of a recorded command at its events, and how long it took."""
    events = json.loads(path.read_text())
    return list(_moments(events)), float(events[-1][0])


def _moments(events: list[list[Any]]) -> Iterator[Moment]:
    campaign: CampaignForecast | None = None
    processes: ProcessForecast | None = None
    closing, opened_s = ClosingForecast(0.0, 0.0, 0.0), 0.0
    for at_s, name, values in events:
        if name == "CampaignForecast":
            campaign = CampaignForecast(*values)
        elif name == "ProcessForecast":
            processes = ProcessForecast(*values)
        elif name == "ClosingForecast":
            closing, opened_s = ClosingForecast(*values), at_s
        elif name == "begin" and processes is not None:
            processes.begin(values, at_s)
        elif name == "opened" and processes is not None:
            processes.opened(at_s)
        elif name == "ended" and campaign is not None:
            campaign.ended(*values[:3], kept=values[3])
        elif name in ("loading", "loaded", "visited"):
            getattr(campaign, name)(*values)
        if name == "step":
            yield Moment(at_s, values)
            continue
        left_s = None if campaign is None or name in ("begin", "opened", "end") else campaign.remaining_s
        if left_s is not None:
            later_s = closing.later_s(at_s - opened_s + left_s)
            left_s = left_s + later_s if processes is None else processes.remaining_s(left_s, at_s)
        if left_s is not None:
            yield Moment(at_s, left_s)


def _record(events: list[list[Any]]) -> None:
    """Make the forecasts write down what they meet; campaigns of the reference probe alone are left out."""
    start_s = time.monotonic()

    def note(name: str, values: object) -> None:
        if name == "opened" and any(one[1] == "opened" for one in events):  # the first one counts
            return
        events.append([round(time.monotonic() - start_s, 3), name, values])

    def is_reference(self: CampaignForecast) -> bool:
        return len(self.sizes) == 1 and list(map(list, self.passes)) == [list(GOLDEN_POLICY.passes)]

    def wrap(kind: type, name: str, written: Callable[[Any, list[Any]], object]) -> None:
        inner = getattr(kind, name)

        def outer(self: Any, *values: Any, **named: Any) -> Any:
            found = inner(self, *values, **named)
            if kind is not CampaignForecast or not is_reference(self):
                shown = [round(one, 4) if isinstance(one, float) else one for one in (*values, *named.values())]
                note({"__init__": kind.__name__}.get(name, name), written(self, shown))
            return found

        setattr(kind, name, outer)

    def whole(self: CampaignForecast, _: list[Any]) -> object:
        return [list(self.sizes), [list(one) for one in self.passes], list(self.rounds), self.prior_s]

    wrap(CampaignForecast, "__init__", whole)
    for name in ("loading", "loaded", "visited", "ended"):
        wrap(CampaignForecast, name, lambda _, values: values)
    wrap(ProcessForecast, "__init__", lambda self, _: [list(self.loads), self.after_s, self.after_openings])
    wrap(ClosingForecast, "__init__", lambda self, _: list(astuple(self)))
    wrap(ProcessForecast, "begin", lambda _, values: values[0])
    wrap(ProcessForecast, "opened", lambda _, _values: None)
    inner = progress.steps_of

    def steps_of(observe: progress.Observer, *stage: Any) -> Callable[[int, int], None]:
        def written(state: progress.Progress) -> None:
            if state.remaining_s is not None:
                note("step", round(state.remaining_s, 3))
            observe(state)

        return inner(written, *stage)

    progress.steps_of = steps_of  # before the modules that use it are loaded


def main() -> None:
    """Record one command."""
    from harness.cli.app import main as run

    events: list[list[Any]] = []
    _record(events)
    start_s = time.monotonic()
    try:
        run(sys.argv[2:])
    finally:
        events.append([round(time.monotonic() - start_s, 3), "end", None])
        Path(sys.argv[1]).write_text(json.dumps(events, separators=(",", ":")))


if __name__ == "__main__":
    main()
