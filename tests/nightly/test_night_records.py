"""What nights store, and what later versions and scripts read of it."""

from dataclasses import replace
from pathlib import Path

import pytest
from night_lab import NIGHT, Lab, PretendEngine, unreachable

from harness.fleet.store import FleetStore
from harness.nightly.night_report import AttentionItem, Change, NightReport, SetComparison, SetRow, gravest
from harness.nightly.set_comparison import was_reported
from harness.nightly.status import night_status
from harness.workspace import Workspace


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """A workspace with one null device and three networks."""
    return Lab(tmp_path / "lab")


def test_gravest_code_counts() -> None:
    """The exit code is the gravest of several: 1 > 3 > 4 > 5 > 6 > 7."""
    assert [gravest(codes) for codes in ([], [0, 7], [7, 5, 4], [6, 7], [3, 4], [7, 1, 3])] == [0, 7, 4, 6, 3, 1]


def test_row_survives_the_store(lab: Lab) -> None:
    """The record of a job is read back unchanged, including its failure."""
    lab.run(lab.plan("a", nightly="retries = 0"), engine=PretendEngine(lab.workspace, errors={"one/a": unreachable()}))
    with FleetStore(lab.workspace.fleet) as store:
        (job,) = store.jobs(NIGHT.isoformat())
    row = SetRow.from_record(job.outcome)
    assert row.failure is not None and row.failure.what == "one does not answer" and row.failure.exit_code == 4
    assert (row.set, row.status, job.name) == ("a", "failed", row.job)


def test_changes_in_the_reports_of_earlier_nights_are_found(tmp_path: Path) -> None:
    """A slower layer that an earlier report lists is not new; the status counts what needed attention.

    Reports of versions that were never released are left out.
    """
    change = {"subject": "layer a", "state": "new", "change": 0.05, "fresh": True, "summary": "layer a is slower"}
    compared = [{"device": "d", "set": "s", "changes": [change], "detectable": {"layer b": 0.01}}]
    reports = [("2026-11-01", "f", {"compared": compared, "attention": [], "regressions": [change]})]
    slower = Change("d", "s", "layer a", "layer", "a", "", (), "step", 0.04, (0, 0.1), 0.0, 1.0, "n", True, (), "")
    assert was_reported(slower, "2026-11-02", reports)
    assert not was_reported(replace(slower, change=-0.04), "2026-11-02", reports)
    assert not was_reported(replace(slower, subject="layer b"), "2026-11-02", reports)
    workspace = Workspace(tmp_path)
    with FleetStore(workspace.fleet) as store:
        for night, key in (("2026-10-31", "chores"), ("2026-11-01", "attention")):
            store.record_report(night, {"exit_code": 4, "devices": [], "regressions": [], key: [{}, {}]})
    (night,) = night_status(workspace).nights
    assert (night.exit_code, night.attention) == (4, 2)


def test_keys_of_a_report_are_the_names_of_its_fields() -> None:
    """Scripts and later nights find a report's lists under the names that the report has from Python."""
    change = Change("d", "s", "layer a", "layer", "a", "", (), "new", 0.04, (0, 0.1), 0.0, 1.0, "n", True, (), "slower")
    item = AttentionItem("d", "disk", "w", "y", "n")
    report = NightReport("n", "p", "s", "f", 1, (), (item,), (SetComparison("d", "s", 1, True, changes=(change,)),))
    data = report.data
    keys = {"night", "plan", "started", "finished", "measured", "devices", "attention", "compared", "stopped"}
    assert {*data} == keys | {"exit_code", "regressions", "improvements"}
    assert data["attention"][0]["kind"] == "disk" and data["regressions"] == data["compared"][0]["changes"]
    assert data["regressions"][0]["summary"] == "slower" and data["exit_code"] == 7
