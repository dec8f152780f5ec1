"""`harness nightly`: run, status and install in this process."""

import json
import os
import shutil
import signal
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import NoReturn, Self

import pytest
from command_line import Outcome
from nullbench import Bench

from harness.cli.app import main
from harness.fleet.store import FleetStore
from harness.workspace import Workspace

Run = Callable[..., Outcome]


@pytest.fixture
def nightly(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Run]:
    """Run `harness nightly` in a workspace with one null device and a plan."""
    bench = Bench(tmp_path / "lab")
    (bench.root / "nightly.toml").write_text(
        '[nightly]\nall = true\n[[set]]\nname = "small"\nnetworks = ["chain.onnx"]\nruns = 4\n'
    )
    handler = signal.getsignal(signal.SIGINT)

    def run(*words: object) -> Outcome:
        with pytest.raises(SystemExit) as end:
            main(["nightly", *map(str, words), "--workspace", str(bench.root)])
        captured = capsys.readouterr()
        code = end.value.code
        return Outcome(code if isinstance(code, int) else int(code is not None), captured.out, captured.err)

    yield run
    signal.signal(signal.SIGINT, handler)


@pytest.fixture
def place(tmp_path: Path) -> Workspace:
    """The workspace of `nightly`."""
    return Workspace(tmp_path / "lab")


@pytest.mark.usefixtures("devices_in_process")
def test_a_table_of_the_future_is_listed(nightly: Run, place: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the clock was set back, the night reports that its table is not the newest, and so does its status."""

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return super().now(tz) + timedelta(days=400)

    with monkeypatch.context() as wrong:
        wrong.setattr("harness.lut.build.datetime", Ahead)
        (device,) = nightly("run", "--night", "2026-11-19", "--json").data["devices"]
    ahead = device["published"]["table"]
    found = nightly("run", "--night", "2026-11-20", "--json")
    (item,) = found.json["attention"]
    assert (found.code, item["kind"]) == (3, "ConfigurationError") and ahead in item["what"]
    assert found.json["devices"][0]["published"]["table"] == ahead
    assert "in the future" in nightly("status").stdout
    shutil.rmtree(place.lut / ahead)
    assert nightly("run", "--night", "2026-11-20").code == 0
    assert "in the future" not in nightly("status").stdout


def test_run_reports_and_a_second_run_says_the_same(nightly: Run, place: Workspace, tmp_path: Path) -> None:
    """A run writes reports; a second run measures nothing and ends alike; status shows the night."""
    first = nightly("run", "--night", "2026-11-19", "--json", "--html", tmp_path / "nights.html")
    found = first.data
    assert (found["exit_code"], found["measured"], found["night"]) == (0, 1, "2026-11-19")
    report = place.reports / "nightly-2026-11-19.md"
    assert report.read_text().startswith("## Night of 2026-11-19")
    assert ET.parse(place.reports / "nightly-2026-11-19.xml").getroot().tag == "testsuites"
    assert "small on bench" in (tmp_path / "nights.html").read_text() and str(tmp_path / "nights.html") in first.stderr
    assert not [path for path in place.reports.iterdir() if path.name.startswith(".")]
    machine = found["devices"][0]["sets"][0]["machine"]
    assert machine and f"Machine in the last night: {machine}" in (tmp_path / "nights.html").read_text()
    assert f"machine {machine.partition(':')[0]}" in report.read_text()

    second = nightly("run", "--night", "2026-11-19")
    assert second.code == 0 and "There is nothing to measure" in second.stderr and "done" in second.stdout
    assert f"machine: {machine}" in second.stdout

    status = nightly("status", "--json").data
    assert status["running"] is None and [one["night"] for one in status["nights"]] == ["2026-11-19"]
    (device,) = status["devices"]
    assert device["table"].startswith("bench/2") and device["age_s"] < 3600 and device["deferred"] == []
    assert "2026-11-19" in nightly("status").stdout


@pytest.mark.usefixtures("devices_in_process")
def test_failed_night_exits_with_its_gravest_code(nightly: Run, place: Workspace) -> None:
    """A failed night summarises its report on stderr, and the second run has the same exit code."""
    (place.root / "chain.onnx").write_bytes(b"no network")
    for _ in range(2):
        found = nightly("run", "--night", "2026-11-19")
        assert found.code == 3 and found.stderr.count("error:") == 1 and "nightly-2026-11-19.md" in found.stderr
        assert "needs attention: bench:" in found.stdout
    assert nightly("status", "--json").data["nights"][0]["exit_code"] == 3


def test_night_without_a_device_is_not_complete(nightly: Run, place: Workspace) -> None:
    """A night whose only device is out of service is not called complete."""
    with FleetStore(place.fleet) as store:
        store.mark("bench", "maintenance", "new heat sink")
    outcome = nightly("run")
    assert "skipped" in outcome.stdout and "There is nothing to measure" not in outcome.stderr, str(outcome)


def test_interrupted_night_is_reported(nightly: Run, place: Workspace) -> None:
    """Ctrl-C in any thread ends a night with exit 130 and a report, which names the sets that were not reached."""
    path = place.root / "nightly.toml"
    path.write_text(path.read_text().replace("runs = 4", "runs = 100000"))

    outside = signal.getsignal(signal.SIGINT)

    def interrupt() -> None:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:  # outside the command the signal would be lost, or end the tests
            if place.journal.exists() and signal.getsignal(signal.SIGINT) is not outside:
                signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # to a thread that is not the main one
                return
            time.sleep(0.02)

    thread = threading.Thread(target=interrupt)
    thread.start()
    found = nightly("run", "--night", "2026-11-19", "--json")
    thread.join()
    report = json.loads(found.stdout)
    assert (found.code, report["exit_code"], report["stopped"]) == (130, 130, True)
    assert [row["reason"] for row in report["devices"][0]["sets"]] == ["the night was stopped"]
    assert "it continues" in found.stderr and (place.reports / "nightly-2026-11-19.xml").exists()
    assert [one["exit_code"] for one in nightly("status", "--json").data["nights"]] == [130]


def test_dry_run_measures_nothing(nightly: Run, place: Workspace) -> None:
    """--dry-run shows the jobs in order, and creates no file, as in a workspace that may not be written."""
    found = nightly("run", "--dry-run", "--json").data
    assert [(job["device"], job["set"], job["state"], job["nights"]) for job in found["jobs"]] == [
        ("bench", "small", "starts", None)
    ]
    assert "never" in nightly("run", "--dry-run").stdout
    assert not place.reports.exists() and not (place.root / ".harness").exists()
    with FleetStore(place.fleet) as store:
        store.mark("bench", "maintenance", "fan")
    assert nightly("run", "--dry-run", "--json").data["jobs"][0]["state"] == "skipped"


def test_status_of_an_empty_workspace(nightly: Run, place: Workspace) -> None:
    """Before the first night, status reports that there is none, and writes nothing."""
    assert "No night has been reported yet" in nightly("status").stderr
    assert not (place.root / ".harness").exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("run", "--night", "tonight"), 2, "is not a date"),
        (("run", "--night", "9999-01-01"), 2, "has not begun"),
        (("run", "--engine", "slurm"), 2, "neither local nor dask"),
        (("run", "--engine", "dask=http://x"), 2, "address of a scheduler"),
        (("run", "--plan", "absent.toml"), 3, "There is no plan"),
        (("install", "--cron", "--enable"), 2, "--enable needs"),
        (("install", "--time", "25:00"), 2, "time of day"),
        (("install", "--randomised-delay", "13h"), 2, "longer than a night"),
        (("install", "--time", "11:50"), 2, "would belong to different nights"),
        (("install", "--plan", "absent.toml"), 3, "There is no plan"),
    ],
)
def test_wrong_options_are_refused(
    words: tuple[str, ...], code: int, said: str, nightly: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options that contradict each other or are malformed end with one error, and nothing is done."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    found = nightly(*words)
    assert (found.code, found.stdout) == (code, "") and said in found.stderr and found.stderr.count("error:") == 1


def test_install_writes_units_and_enables_nothing(
    nightly: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Units go into the user's folder or a given one; the commands that enable them are printed, not run."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PATH", str(tmp_path / "no programs here"))
    found = nightly("install", "--time", "03:05", "--randomised-delay", "10m")
    service, timer = map(Path, found.stdout.split())
    assert found.code == 0 and service.parent == tmp_path / "config" / "systemd" / "user"
    assert "OnCalendar=*-*-* 03:05:00" in timer.read_text() and f'"{tmp_path / "lab"}"' in service.read_text()
    assert f"systemctl --user enable --now {timer.name}" in found.stderr and "User=" not in service.read_text()

    system = nightly("install", "--output", tmp_path / "units")
    assert "User=" in next((tmp_path / "units").glob("*.service")).read_text()
    assert "systemctl enable --now" in system.stderr

    refused = nightly("install", "--enable")
    assert refused.code == 3 and "systemctl --user daemon-reload failed" in refused.stderr


def test_a_user_without_name_and_home_is_served(nightly: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container the user may have a number only: a night runs, and units name what is missing."""

    def unknown(_: object) -> NoReturn:
        raise KeyError("getpwuid(): uid not found: 4321")

    for name in ("HOME", "LOGNAME", "USER", "LNAME", "USERNAME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert nightly("run").code == 0
    refused = nightly("install")
    assert refused.code == 3 and "Set HOME" in refused.stderr
    monkeypatch.setenv("HOME", str(tmp_path))
    assert f"User={os.getuid()}" in nightly("install", "--output", tmp_path / "units", "--print").stdout


def test_install_prints(nightly: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--print and --cron print, and write no file."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    printed, line = nightly("install", "--print").stdout, nightly("install", "--cron").stdout
    assert "[Service]" in printed and "[Timer]" in printed and "nightly run --workspace" in line
    assert line.count("\n") == 1 and not (tmp_path / "config").exists()


@pytest.mark.usefixtures("devices_in_process")
def test_history_page_rehearsal_and_acceptance(nightly: Run, place: Workspace) -> None:
    """After two nights the page is written, a planted slow-down is found, and unknown names are refused.

    A change below the threshold of the plan counts neither in a report nor in a rehearsal.
    """
    assert nightly("history").code == 2
    for night in ("2026-11-18", "2026-11-19"):
        assert nightly("run", "--night", night).code == 0
    found = nightly("history", "--json").data
    (held,) = found["sets"]
    assert held["nights"] == ["2026-11-18", "2026-11-19"] and held["subjects"]
    assert (place.reports / "nights.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    name = next(one["subject"]["name"] for one in held["subjects"] if one["subject"]["kind"] == "network")
    (compared,) = nightly("try", "--slow", f"{name}:1.5", "--device", held["device"], "--json").data["compared"]
    changes = [one for one in compared["changes"] if one["name"] == name]
    assert [round(one["change"], 1) for one in changes] == [0.5]
    text = nightly("try", "--slow", f"{name}:1.5", "--device", held["device"]).stdout
    least = float(text.splitlines()[1].split()[-1].rstrip("%")) / 100
    assert 0 <= least - compared["detectable"][f"network {name}"] < 0.001
    plan = place.root / "nightly.toml"
    plan.write_text(plan.read_text().replace("[nightly]", '[nightly]\nthreshold = "80%"'))
    (compared,) = nightly("try", "--slow", f"{name}:1.5", "--device", held["device"], "--json").data["compared"]
    assert not [one for one in compared["changes"] if one["name"] == name]
    for slow in ("nothing:1.5", f"{name}:0", name, f"{name}:nan"):
        assert nightly("try", "--slow", slow, "--device", held["device"]).code == 2
    assert nightly("accept", name, "--device", held["device"]).code == 2
