"""Whole nights on null devices: jobs are measured once, complete tables published, and results reported."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest
from night_lab import Between, Lab, PretendEngine, statuses
from processes import is_stopped, sabotaged, workers
from scripted_agent import start_scripted

from harness.device.inventory import Device
from harness.device.local import start_here
from harness.device.transport import Connection
from harness.fleet.local_engine import LocalEngine
from harness.fleet.store import FleetStore
from harness.nightly.night_lock import lock_file, running
from harness.nightly.night_plan import load_plan
from harness.nightly.night_report import NightReport
from harness.nightly.status import night_status

WAIT_S = 300.0


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """A workspace with one null device and three networks."""
    return Lab(tmp_path / "lab")


def series(lab: Lab) -> list[tuple[object, ...]]:
    """Return every series of the journal with its campaign's job, without golden probes."""
    database = sqlite3.connect(lab.workspace.journal)
    try:
        return database.execute(
            "SELECT json_extract(settings, '$.job'), campaign, batch, round, position,"
            " (SELECT count(*) FROM samples WHERE series=series.id) FROM series JOIN campaigns ON campaigns.id=campaign"
            " WHERE json_extract(settings, '$.purpose') IN ('profile', 'watch')"
            " ORDER BY 2, 3, 4, 5"
        ).fetchall()
    finally:
        database.close()


def wait_for(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Wait until the condition holds; fail if the process ends before."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline and process.poll() is None, process.communicate()
        time.sleep(0.02)


def start(lab: Lab, *words: str, **faults: int) -> subprocess.Popen[str]:
    """Start `harness nightly` as a process, whose workers have planted faults."""
    command = [sys.executable, "-m", "harness", "nightly", *words, "--workspace", str(lab.root)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": {**os.environ, **sabotaged(**faults)}}
    return subprocess.Popen(command, **streams, text=True, start_new_session=True)  # type: ignore[call-overload]


def test_killed_night_goes_on_and_doubles_nothing(lab: Lab, runtime_folder: Path) -> None:
    """A killed night resumes: each job has one campaign, each visit one series, and the device a table."""
    lab.plan("a", "b", runs=30)
    killed = start(lab, "run", "--night", "2026-11-19", stops_after=500)
    try:
        wait_for(lambda: any(map(is_stopped, workers(runtime_folder))), killed)
        wait_for(lambda: _count(lab) > 0, killed)
    finally:
        os.killpg(killed.pid, signal.SIGKILL)
        killed.communicate()
    assert running(lab.workspace) is None
    assert not lab.tables()
    before = series(lab)
    night = date(2026, 11, 19)
    plan = lab.plan("a", "b", runs=30)
    report = lab.run(plan, night)
    assert report.exit_code == 0 and statuses(report) == {"one/a": "done", "one/b": "done"}
    assert [complete for _, complete, _ in lab.campaigns()] == [True, True]
    assert len({job for job, _, _ in lab.campaigns()}) == 2
    after = series(lab)
    assert after[: len(before)] == before or set(before) <= set(after), "what was measured was kept"
    assert len({row[1:5] for row in after}) == len(after), "no place is measured twice"
    assert len(lab.tables()) == 1

    again = lab.run(plan, night)
    assert again.measured == 0 and series(lab) == after and len(lab.tables()) == 1
    first, second = (_steady(one) for one in (report, again))
    assert first == second and again.exit_code == report.exit_code


def _count(lab: Lab) -> int:
    try:
        return len(series(lab))
    except sqlite3.OperationalError:  # the tables are being made
        return 0


def _steady(report: NightReport) -> str:
    """Return a report without its times and without who measured."""
    found = report.data
    for key in ("finished", "measured"):
        found.pop(key)
    for device in found["devices"]:
        for row in device["sets"]:
            row.pop("now")
    return json.dumps(found, sort_keys=True)


@pytest.mark.usefixtures("devices_in_process")
def test_a_network_of_a_set_that_is_refused_does_not_fail_the_set(lab: Lab) -> None:
    """The other networks are measured and published, with progress; the report lists the refused one by its file."""
    lab.set_devices("one")
    (lab.root / "b.onnx").write_bytes(b"no network")
    path = lab.root / "nightly.toml"
    path.write_text(
        '[nightly]\ndevices = ["one"]\n[[set]]\nname = "a"\nnetworks = ["a.onnx", "b.onnx", "c.onnx"]\nruns = 5\n'
    )
    report = lab.run(load_plan(path))
    assert statuses(report) == {"one/a": "done"} and report.exit_code == 3
    (item,) = report.attention
    assert item.kind == "InvalidNetwork" and str(lab.root / "b.onnx") in item.what and "left out of a" in item.what
    assert report.devices[0].published.table == f"one/{lab.tables('one')[0]}"
    stages = list(lab.table_stages)
    assert len(stages) > 3 and "one: done" in stages
    again = lab.run(load_plan(path))
    assert (again.measured, again.exit_code) == (0, 3) and again.attention == report.attention
    assert lab.table_stages == stages, "the table is not built again"


@pytest.mark.usefixtures("devices_in_process")
def test_previous_table_stays_until_the_night_is_complete(lab: Lab) -> None:
    """A failed set keeps the previous table of its device only; the next run publishes the missing table."""
    lab.set_devices("one", "two")
    good = (lab.root / "b.onnx").read_bytes()
    plan_text = (
        '[nightly]\ndevices = ["one"]\n[[set]]\nname = "a"\nnetworks = ["a.onnx"]\nruns = 5\n'
        '[[set]]\nname = "b"\nnetworks = ["b.onnx"]\nruns = 5\n'
        '[[set]]\nname = "c"\nnetworks = ["c.onnx"]\nruns = 5\ndevices = ["two"]\n'
    )
    path = lab.root / "nightly.toml"
    path.write_text(plan_text)
    (lab.root / "b.onnx").write_bytes(b"no network")
    report = lab.run(load_plan(path))
    one, two = report.devices
    assert statuses(report) == {"one/a": "done", "one/b": "failed", "two/c": "done"}
    assert report.exit_code == 3 and [item.kind for item in report.attention] == ["InvalidNetwork"]
    assert one.published.table is None and "b was not measured" in one.published.kept_because
    assert not lab.tables("one") and [two.published.table] == [f"two/{name}" for name in lab.tables("two")]

    (lab.root / "b.onnx").write_bytes(good)
    mended = lab.run(load_plan(path))
    assert (mended.exit_code, mended.measured) == (0, 1), "only b was left"
    assert len(lab.tables("one")) == 1 and lab.tables("two") == [str(two.published.table).partition("/")[2]]
    assert mended.devices[0].published.kept_because == ""

    (lab.root / "b.onnx").write_bytes(b"no network")
    path.write_text(plan_text[: plan_text.rindex("[[set]]")])
    next_night = lab.run(load_plan(path), date(2026, 11, 21))
    kept = next_night.devices[0].published
    assert kept.table == mended.devices[0].published.table and "b was not measured" in kept.kept_because


@pytest.mark.usefixtures("devices_in_process")
def test_crash_before_publishing_is_caught_up(lab: Lab) -> None:
    """After a crash between measuring and publishing, the next run publishes without measuring."""

    class Crashed(BaseException):
        pass

    def crash(_: int) -> None:
        raise Crashed

    plan = lab.plan("a")
    with pytest.raises(Crashed):
        lab.run(plan, engine=Between(LocalEngine(lab.workspace), crash))
    assert not lab.tables() and lab.campaigns()[0][1]
    measured = series(lab)
    report = lab.run(plan, engine=PretendEngine(lab.workspace))
    assert (report.measured, report.exit_code) == (0, 0)
    assert len(lab.tables()) == 1 and series(lab) == measured


@pytest.mark.usefixtures("devices_in_process")
def test_device_that_becomes_another_keeps_its_table_until_all_sets_are_measured_on_it(lab: Lab) -> None:
    """After an update between two sets no table is published; the next night publishes one."""
    plan = lab.plan("a", "b", nightly='order = "listed"\nbudget = "10s"')

    def update(outcomes: int) -> None:
        if outcomes == 1:
            lab.set_devices("one", one="options = { c_s = 1.01e-4 }")

    report = lab.run(plan, engine=Between(LocalEngine(lab.workspace), update))
    assert statuses(report) == {"one/a": "done", "one/b": "done"}
    published = report.devices[0].published
    assert published.table is None and "changed since a was measured" in published.kept_because
    assert not lab.tables()
    assert lab.run(plan, date(2026, 11, 21)).devices[0].published.kept_because == ""
    assert len(lab.tables()) == 1


@pytest.mark.usefixtures("devices_in_process")
def test_a_set_measured_at_changing_speed_enters_no_table(lab: Lab) -> None:
    """The set fails with the drift as its reason and exit code 5, and the next run of the night measures anew."""
    band = "golden_ms = [1e-3, 1e3]\n"
    lab.set_devices("one", one=f"{band}[devices.one.options]\nnoise = 0.01\nslower_after = 400\nslowdown = 3.0\n")
    plan = lab.plan("a", runs=10)
    report = lab.run(plan)
    (one,) = report.devices
    assert (report.exit_code, statuses(report)) == (5, {"one/a": "failed"})
    assert "reference probe drifted" in one.sets[0].reason and one.published.kept_because == "a was not measured"
    assert [item.kind for item in report.attention] == ["DeviceUnsteady"] and not lab.tables()
    assert [(complete, excluded) for _, complete, excluded in lab.campaigns()] == [(True, one.sets[0].reason)]
    lab.set_devices("one", one=f"{band}[devices.one.options]\nnoise = 0.01\n")
    assert statuses(lab.run(plan)) == {"one/a": "done"}
    assert len(lab.tables()) == 1


@pytest.mark.usefixtures("devices_in_process")
def test_quarantine_in_the_middle_keeps_the_whole_night_out(lab: Lab) -> None:
    """If the golden probe leaves its band, no table has samples of that device's night."""
    plan = lab.plan("a", "b", nightly='order = "listed"')

    def break_device(_: int) -> None:
        lab.set_devices("one", one="golden_ms = [1000.0, 2000.0]\n")

    class OneByOne(LocalEngine):
        def run(self, jobs, stop):  # type: ignore[no-untyped-def]
            for job in jobs:
                yield from LocalEngine(lab.workspace).run([job], stop)

    report = lab.run(plan, engine=Between(OneByOne(lab.workspace), break_device))
    (one,) = report.devices
    assert (report.exit_code, one.health) == (5, "bad")
    assert statuses(report) == {"one/a": "skipped", "one/b": "failed"}
    assert [bool(excluded) for _, _, excluded in lab.campaigns()] == [True]
    assert not lab.tables() and "quarantine" in one.sets[0].reason
    assert [item.kind for item in report.attention] == ["DeviceQuarantined"] and report.attention[0].next_step

    lab.set_devices("one")
    again = lab.run(plan)
    assert (again.measured, again.exit_code) == (0, 5), "it is not measured again until the next night"
    with FleetStore(lab.workspace.fleet) as store:
        store.mark("one", "unknown", "looked after")
    put_back = lab.run(plan)
    assert (put_back.measured, put_back.exit_code) == (2, 0), "after a person puts it back, all sets are measured again"
    assert len(lab.tables()) == 1


def test_two_nightlies_at_once(lab: Lab) -> None:
    """A second nightly exits with 4 and names the first; SIGTERM stops the first, which still reports."""
    lab.plan("a", runs=100_000)
    first = start(lab, "run")
    try:
        wait_for(lambda: lab.workspace.journal.exists() and _count(lab) > 0, first)
        second = start(lab, "run")
        _, said = second.communicate(timeout=WAIT_S)
        assert second.returncode == 4 and f"Process {first.pid}" in said
        assert night_status(lab.workspace).running is not None
        first.send_signal(signal.SIGTERM)
        _, said = first.communicate(timeout=WAIT_S)
        assert first.returncode == 130 and "it continues" in said
        text = next(lab.workspace.reports.glob("nightly-*.md")).read_text()
        assert "**The night was stopped" in text and "a skipped (the night was stopped)" in text
    finally:
        if first.poll() is None:
            os.killpg(first.pid, signal.SIGKILL)
            first.communicate()
    assert running(lab.workspace) is None and lock_file(lab.workspace).exists()


@pytest.mark.long
def test_slower_device_is_fresh_once_and_then_known(lab: Lab) -> None:
    """The first night of a slower device exits with 7, in every run; later nights exit with 0."""
    options = "[devices.one.options]\nc_s = 1e-4\nnoise = 0.01\nweight_s_per_byte = {}\n"
    lab.set_devices("one", one=options.format(1e-9))
    plan = lab.plan("a")
    for day in range(1, 6):
        assert lab.run(plan, date(2026, 11, day)).exit_code == 0
    lab.set_devices("one", one=options.format(1.06e-9))
    slow = lab.run(plan, date(2026, 11, 6))
    again = lab.run(plan, date(2026, 11, 6))
    assert (slow.exit_code, again.exit_code, again.measured) == (7, 7, 0)
    assert slow.regressions == again.regressions and slow.regressions
    assert all(one.since == "2026-11-06" and one.fresh and "settings" in one.causes[0] for one in slow.regressions)
    later = lab.run(plan, date(2026, 11, 7))
    assert later.exit_code == 0 and later.regressions and not any(one.fresh for one in later.regressions)


def test_device_that_is_too_slow_is_given_up_and_the_night_goes_on(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that exceeds the time limit of a set gets no other set tonight; the report says so, others go on."""
    lab.set_devices("slow", "one")
    network = 'networks = ["a.onnx"]\nruns = 3\n'
    (lab.root / "nightly.toml").write_text(
        f'[nightly]\norder = "listed"\n[[set]]\nname = "a"\n{network}devices = ["slow"]\ntime_limit = "0.5s"\n'
        f'[[set]]\nname = "b"\n{network}devices = ["slow"]\n[[set]]\nname = "c"\n{network}devices = ["one"]\n'
    )
    started: list[str] = []

    def start_agent(device: Device) -> Connection:
        started.append(device.name)
        return start_scripted("slow_visits") if device.name == "slow" else start_here()

    monkeypatch.setattr("harness.device.session.start_agent", start_agent)
    monkeypatch.setattr("harness.device.time_limit.GRACE_S", 0.2)
    report = lab.run(load_plan(lab.root / "nightly.toml"))
    assert sorted(started) == ["one", "slow"], "no other attempt, and no other set"
    assert statuses(report) == {"slow/a": "failed", "slow/b": "skipped", "one/c": "done"}
    reasons = {row.set: row.reason for device in report.devices for row in device.sets}
    assert reasons == {
        "a": "slow did not finish within 0.5 s",
        "b": "the device was abandoned: slow did not finish within 0.5 s",
        "c": "",
    }
    (item,) = report.attention
    assert (item.device, item.kind, item.exit_code) == ("slow", "DeviceTooSlow", 5)
    assert "time_limit" in item.next_step
    assert len(lab.tables("one")) == 1 and not lab.tables("slow")
