"""What a night measures, defers, repeats and skips, with engines that measure nothing."""

import math
import threading
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Literal

import pytest
from night_lab import NIGHT, Between, Lab, PretendEngine, quarantined, statuses, unreachable

from harness.errors import EngineError, Interrupted, UnknownDevice
from harness.fleet.profile_outcome import Failure, ProfileOutcome
from harness.fleet.store import FleetStore
from harness.nightly.night import forecast, run_night
from harness.nightly.night_plan import load_plan
from harness.nightly.status import night_status


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """A workspace with one null device and three networks."""
    return Lab(tmp_path / "lab")


def test_devices_out_of_service_are_skipped_with_the_reason(lab: Lab) -> None:
    """A device in maintenance is skipped with the reason and does not affect the exit code."""
    lab.set_devices("one", "two")
    with FleetStore(lab.workspace.fleet) as store:
        store.mark("one", "maintenance", "new fan")
    engine = PretendEngine(lab.workspace, errors={"two/a": unreachable()})
    report = lab.run(lab.plan("a", nightly="retries = 0"), engine=engine)
    assert engine.ran == ["two/a"]
    assert report.devices[0].sets[0].status == "skipped" and "new fan" in report.devices[0].sets[0].reason
    assert report.exit_code == 4 and [item.device for item in report.attention] == ["two"]


def test_jobs_that_a_retry_may_help_are_tried_again(lab: Lab) -> None:
    """Failures that a retry may help are tried again at the end, up to `retries` times; others are not."""
    errors = {"one/a": unreachable()}
    engine = PretendEngine(lab.workspace, errors=errors)
    lab.run(lab.plan("a", "b", nightly="retries = 2"), engine=engine)
    assert engine.ran == ["one/a", "one/b", "one/a", "one/a"]
    bad = PretendEngine(lab.workspace, errors={"one/a": quarantined()})
    lab.run(lab.plan("a", nightly="retries = 2"), date(2026, 11, 21), bad)
    assert bad.ran == ["one/a"]


def test_budget_defers_and_nothing_is_deferred_for_ever(lab: Lab) -> None:
    """Sets beyond the budget are deferred; the next night begins with them, and old ones need attention."""
    plan = lab.plan("a", "b", "c", nightly='budget = "10s"\nmax_age = "1d"')
    seconds = {"a": 6.0, "b": 6.0, "c": 6.0}
    seen: list[list[str]] = []
    for day in range(10, 14):
        engine = PretendEngine(lab.workspace, seconds)
        report = lab.run(plan, date(2026, 11, day), engine)
        seen.append(engine.ran)
        assert lab.run(plan, date(2026, 11, day), engine).measured == 0, "the same night measures no more"
    # The first night measures until the budget is spent, because costs are unknown; later nights know them.
    assert seen == [["one/a", "one/b"], ["one/c"], ["one/a"], ["one/b"]]
    assert statuses(report) == {"one/c": "deferred", "one/a": "deferred", "one/b": "done"}
    overdue = [item.what for item in report.attention if item.kind == "budget"]
    assert overdue == ["The budget is too small for c (2 nights old)"]
    assert night_status(lab.workspace).devices[0].deferred == ("c", "a")


def test_forgotten_samples_are_measured_again(lab: Lab) -> None:
    """A job counts as done only while the journal has its samples."""
    plan, engine = lab.plan("a"), PretendEngine(lab.workspace)
    lab.run(plan, engine=engine)
    lab.workspace.journal.unlink()
    lab.run(plan, engine=engine)
    assert engine.ran == ["one/a", "one/a"]


def test_lost_scheduler_still_makes_a_report(lab: Lab) -> None:
    """If the engine fails, the report has what was measured and the reason for the rest; the next run continues."""

    def lose(_: int) -> None:
        raise EngineError("The scheduler is gone", next_step="Start it")

    plan = lab.plan("a", "b")
    report = lab.run(plan, engine=Between(PretendEngine(lab.workspace), lose))
    assert statuses(report) == {"one/a": "done", "one/b": "skipped"}
    assert [item.kind for item in report.attention] == ["EngineError"] and report.exit_code == 4
    published = report.devices[0].published
    assert published.kept_because == "b was not measured" and published.failure is None
    engine = PretendEngine(lab.workspace)
    lab.run(plan, engine=engine)
    assert engine.ran == ["one/b"]


def test_stop_keeps_what_was_measured(lab: Lab) -> None:
    """A stopped night is reported, with the running job as not reached; the next run continues."""
    stop = threading.Event()

    class Stopped(PretendEngine):
        def run(self, jobs, stop):  # type: ignore[no-untyped-def]
            yield next(super().run(jobs[:1], stop))
            stop.set()
            yield ProfileOutcome(jobs[1], "", "", 1, failure=Failure.of(Interrupted("Stopped on request")))

    plan = lab.plan("a", "b")
    report = run_night(plan, lab.workspace, night=NIGHT, engine=Stopped(lab.workspace), stop=stop)
    assert (report.stopped, report.exit_code, statuses(report)) == (True, 130, {"one/a": "done", "one/b": "skipped"})
    assert report.devices[0].published.kept_because == "b was not measured"
    assert [one.exit_code for one in night_status(lab.workspace).nights] == [130]
    engine = PretendEngine(lab.workspace)
    again = lab.run(plan, engine=engine)
    assert engine.ran == ["one/b"] and not again.stopped and statuses(again) == {"one/a": "done", "one/b": "done"}
    assert [one.night for one in night_status(lab.workspace).nights] == [NIGHT.isoformat()], "the report is replaced"


def test_stop_after_the_budget_was_spent_leaves_nothing_out(lab: Lab) -> None:
    """A job that would not have started is deferred, whether the night was stopped or not."""
    plan, stop = lab.plan("a", "b", nightly='budget = "5s"\norder = "listed"'), threading.Event()
    engine = Between(PretendEngine(lab.workspace, {"a": 9.0}), lambda _: stop.set())
    report = run_night(plan, lab.workspace, night=NIGHT, engine=engine, stop=stop)
    assert report.stopped and statuses(report) == {"one/a": "done", "one/b": "deferred"}


def test_job_whose_worker_was_stopped_failed(lab: Lab) -> None:
    """A job whose worker was shut down fails with that reason, is tried again, and keeps the previous table."""
    engine = PretendEngine(lab.workspace, errors={"one/b": Interrupted("Stopped on request")})
    report = lab.run(lab.plan("a", "b"), engine=engine)
    assert engine.ran == ["one/a", "one/b", "one/b"]
    (_, row), published = report.devices[0].sets, report.devices[0].published
    assert (row.status, report.exit_code) == ("failed", 4) and "worker was stopped" in row.reason
    assert published.kept_because.startswith("b was not measured") and published.failure is None
    assert (report.measured, report.stopped) == (1, False)


@pytest.mark.parametrize("word", ["maintenance", "retired"])
def test_device_taken_out_half_way_keeps_its_table(lab: Lab, word: Literal["maintenance", "retired"]) -> None:
    """If a person takes a device out of service between two sets, no table without the second is built."""

    def take_out(_: int) -> None:
        with FleetStore(lab.workspace.fleet) as store:
            store.mark("one", word, "board is open")

    plan = lab.plan("a", "b", nightly='order = "listed"\nbudget = "100s"')
    report = lab.run(plan, engine=Between(PretendEngine(lab.workspace), take_out))
    assert statuses(report) == {"one/a": "done", "one/b": "skipped"}
    assert report.devices[0].published.kept_because == "b was not measured"
    assert report.devices[0].sets[1].reason == f"{word}: board is open"


def test_quarantine_keeps_out_what_waits_for_its_golden_probe(lab: Lab) -> None:
    """Quarantine also excludes campaigns that wait for a golden probe, so that no later run includes them."""
    errors = {"one/a": unreachable(), "one/b": quarantined()}
    engine = PretendEngine(lab.workspace, errors=errors, spent_s=1.0)
    lab.run(lab.plan("a", "b", nightly="retries = 0"), engine=engine)
    assert [excluded for _, _, excluded in lab.campaigns()] == ["one is not as it was; slower than its band"] * 2


def test_time_of_failed_jobs_counts(lab: Lab) -> None:
    """The device time of a failed job is reported and counts against the night's budget."""
    engine = PretendEngine(lab.workspace, errors={"one/a": unreachable()}, spent_s=20.0)
    report = lab.run(lab.plan("a", "b", nightly='budget = "10s"\norder = "listed"\nretries = 0'), engine=engine)
    assert statuses(report) == {"one/a": "failed", "one/b": "deferred"} and engine.ran == ["one/a"]
    assert report.devices[0].device_s == 20.0 and report.measured == 0


def test_numbers_that_are_none_end_no_night(lab: Lab) -> None:
    """A NaN from a worker is reported as null, and its job is not repeated."""

    class Nonsense(PretendEngine):
        def run(self, jobs, stop):  # type: ignore[no-untyped-def]
            for outcome in super().run(jobs, stop):
                result = replace(outcome.result, device_seconds=math.nan)
                yield replace(outcome, golden_s=math.nan, result=result)

    plan, engine = lab.plan("a"), Nonsense(lab.workspace, spent_s=3.0)
    report = lab.run(plan, engine=engine)
    (row,) = report.devices[0].sets
    assert (row.status, row.golden_s, row.device_s) == ("done", None, 3.0)
    assert lab.run(plan, engine=engine).measured == 0 and engine.ran == ["one/a"]


def test_forecast_lists_jobs_in_their_order(lab: Lab) -> None:
    """The forecast lists the jobs that run, in their order, and changes nothing."""
    plan = lab.plan("a", "b", nightly='budget = "10s"')
    assert [one.due.set.name for one in forecast(plan, lab.workspace, night=NIGHT) if one.starts] == ["a"]
    lab.run(plan, engine=PretendEngine(lab.workspace))
    done = forecast(plan, lab.workspace, night=NIGHT)
    assert all(one.done and not one.starts for one in done)
    later = forecast(plan, lab.workspace, night=date(2026, 11, 22))
    assert [(one.due.staleness.nights, one.due.cost_s, one.starts) for one in later] == [(2, 1.0, True)] * 2


def test_unknown_device_ends_the_night_before_it_begins(lab: Lab) -> None:
    """A device that is not in the inventory is an error of the plan."""
    plan = lab.plan("a")
    lab.set_devices("other")
    path = lab.root / "nightly.toml"
    path.write_text(path.read_text().replace("all = true", 'devices = ["one"]'))
    assert plan.sets
    with pytest.raises(UnknownDevice):
        lab.run(load_plan(path))
