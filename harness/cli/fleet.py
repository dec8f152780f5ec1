"""Devices side by side: what `harness profile` shows of them while they are measured, and after."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from harness.cli.output import note, print_json, print_table
from harness.cli.profile_space import show_space
from harness.cli.progress import show_lines, show_progress, stop_on_interrupt
from harness.errors import gravest
from harness.text import printable

if TYPE_CHECKING:
    from harness.fleet.job import Job, JobOutcome
    from harness.measure.profiling import ProfileResult
    from harness.measure.progress import Observer
    from harness.space.profiling import SpaceProfile
    from harness.workspace import Workspace


def profile_devices(jobs: Sequence[Job], workspace: Workspace, json: bool) -> None:
    """Runs one job per device and shows what came of them.

    Raises the error of the device where there is one; of several, that with the gravest exit code.
    """
    from harness.fleet.execution import IMPATIENT, Patience
    from harness.fleet.local import LocalEngine

    alone = len(jobs) == 1
    with follow(jobs) as observer, stop_on_interrupt() as stop:
        engine = LocalEngine(workspace, IMPATIENT if alone else Patience(), observer=observer)
        outcomes = _collect(engine.run(jobs, stop), alone)
    outcomes.sort(key=lambda outcome: [job.device for job in jobs].index(outcome.job.device))
    failures = [outcome.failure for outcome in outcomes if outcome.failure is not None]
    if not alone:
        _show_all(outcomes, json)
    elif outcomes[0].space is not None:
        _show_explored(outcomes[0].space, json)
    elif outcomes[0].result is not None:
        _show_one(outcomes[0].result, outcomes[0].golden_s, json)
    code = gravest(failure.exit_code for failure in failures)
    for failure in failures:
        if failure.exit_code == code:
            raise failure.error()


@contextlib.contextmanager
def follow(jobs: Sequence[Job]) -> Iterator[Callable[[Job], Observer]]:
    """Observers of jobs: a bar for one, plain lines now and then for several."""
    with contextlib.ExitStack() as shown:
        if len(jobs) == 1:
            only = shown.enter_context(show_progress(jobs[0].device))
            yield lambda _: only
        else:
            lines = {job.device: show_lines(job.device) for job in jobs}
            yield lambda job: lines[job.device]


def _collect(running: Iterator[JobOutcome], alone: bool) -> list[JobOutcome]:
    outcomes = []
    for outcome in running:
        outcomes.append(outcome)
        if not alone:
            note(f"{outcome.job.device}: {_ending(outcome)}")
    return outcomes


def _ending(outcome: JobOutcome) -> str:
    if outcome.failure is not None:
        return printable(f"{outcome.failure.what}. {outcome.failure.why}")
    return f"done after {outcome.attempts} tries" if outcome.attempts > 1 else "done"


def _show_one(result: ProfileResult, golden_s: float | None, json: bool) -> None:
    if json:
        print_json(**asdict(result), golden_s=golden_s)
    else:
        show_result(result)


def _show_explored(found: SpaceProfile, json: bool) -> None:
    if json:
        print_json(**asdict(found))
    else:
        show_space(found)


def _show_all(outcomes: Sequence[JobOutcome], json: bool) -> None:
    done = [outcome.result for outcome in outcomes if outcome.result is not None]
    if json:
        print_json(
            devices=[_facts(outcome) for outcome in outcomes],
            campaign=[result.campaign for result in done],
            probes=sum(result.probes for result in done),
            samples=sum(result.samples for result in done),
            device_seconds=sum(result.device_seconds for result in done),
            wall_seconds=max((result.wall_seconds for result in done), default=0.0),
        )
        return
    header = ("device", "campaign", "probes", "samples", "on the device s", "in all s", "tries", "")
    print_table(header, [_row(outcome) for outcome in outcomes], left=1)


def _facts(outcome: JobOutcome) -> dict[str, Any]:
    facts: dict[str, Any] = {"device": outcome.job.device, "attempts": outcome.attempts, "golden_s": outcome.golden_s}
    if outcome.result is not None:
        facts.update(asdict(outcome.result))
    if outcome.failure is not None:
        facts["error"] = {key: value for key, value in asdict(outcome.failure).items() if key != "trace"}
    return facts


def _row(outcome: JobOutcome) -> tuple[str, ...]:
    result, failure = outcome.result, outcome.failure
    if result is None:
        said = "" if failure is None else f"{failure.kind}: {failure.what}"
        return (outcome.job.device, "", "", "", "", "", str(outcome.attempts), said)
    return (
        result.device, str(result.campaign), str(result.probes), f"{result.samples:,}", f"{result.device_seconds:.2f}",
        f"{result.wall_seconds:.1f}", str(outcome.attempts), "resumed" if result.resumed else "",
    )  # fmt: skip


def show_result(result: ProfileResult) -> None:
    """What one campaign on one device came to."""
    print(
        f"{result.device}  campaign {result.campaign}{' (resumed)' if result.resumed else ''}"
        f"  {result.probes} probes  {result.samples:,} samples, {result.median_runs:g} runs of a probe (median)"
        f"  {result.device_seconds:.2f} s on the device  {result.wall_seconds:.1f} s in all"
    )
    if result.refused:
        note(f"{result.refused} probes were refused by the device; `harness lut build` leaves their layers out")
    if result.unsettled:
        note(f"{result.unsettled} probes did not reach the target interval; their entries carry a wider one")
    if result.drift > 0.05:
        note(f"The reference probe drifted by {result.drift:.1%}: clock, temperature or load changed meanwhile")
    note(f"Next: harness lut build --device {result.device}")
