"""Wrong settings and options, workspaces that cannot be used, and campaigns that are disturbed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from command_line import TIMEOUT_S, Harness, Outcome, wait_for
from processes import agents, runs, workers

# devices.toml ----------------------------------------------------------------------------------------------------

SSH = '[devices.board]\ntransport = "ssh"\nhost = "127.0.0.1"\nuser = "u"\nidentity = "key"\n'
NULL = '[devices.n]\nbackend = "null"\n'
LEASED = '[devices.leased]\nbackend = "null"\nexclusive = true\n'

SETTINGS: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "not TOML": ("devices = [", ("devices.toml",)),
    "not text": (b"\xff\xfe\x00d", ("devices.toml",)),
    "NUL": (b"\0\0\0", ("devices.toml",)),
    "nested": ("a = " + "[" * 20_000, ("devices.toml",)),
    "dotted": ("a." * 2_000 + "a = 1", ("devices.toml",)),
    "unknown section": ("[machines.x]\n", ("machines",)),
    "devices a list": ("devices = [1]\n", ("devices",)),
    "device a number": ("[devices]\nboard = 3\n", ("board",)),
    "unknown key": (SSH + 'hots = "x"\n', ("hots",)),
    "unknown key of a local device": (NULL + 'host = "x"\n', ("host",)),
    "control characters in a key": (NULL + '"a\\u001b[31m" = "x"\n', ()),
    "wrong type": (SSH + 'port = "22"\n', ("port",)),
    "port 70000": (SSH + "port = 70000\n", ("port",)),
    "port 0": (SSH + "port = 0\n", ("port",)),
    "port true": (SSH + "port = true\n", ("port",)),
    "timeout NaN": (SSH + "connect_timeout_s = nan\n", ("connect_timeout_s",)),
    "timeout negative": (SSH + "connect_timeout_s = -1.0\n", ("connect_timeout_s",)),
    "duplicate device": (NULL + NULL, ("devices.toml",)),
    "duplicate key": (NULL + 'backend = "null"\n', ("devices.toml",)),
    "built-in name": ('[devices.cpu01]\nbackend = "null"\n', ("cpu01",)),
    "unknown transport": ('[devices.n]\ntransport = "telnet"\n', ("telnet",)),
    "transport a list": ("[devices.n]\ntransport = []\n", ("transport",)),
    "unknown backend": ('[devices.n]\nbackend = "abacus"\n', ("backend",)),
    "no host": (SSH.replace('host = "127.0.0.1"\n', ""), ("host",)),
    "empty host": (SSH.replace("127.0.0.1", ""), ("host",)),
    "host an option": (SSH.replace("127.0.0.1", "-oProxyCommand=touch /tmp/evil"), ("host",)),
    "jump an option": (SSH + 'proxy_jump = "-oProxyCommand=touch"\n', ("proxy_jump",)),
    "key agent a number": (SSH + "key_agent = 3\n", ("key_agent",)),
    "resource a path": (NULL + 'resource = "../../evil"\n', ("resource",)),
    "name a path": ('[devices."../evil"]\nbackend = "null"\n', ("evil",)),
    "name the parent": ('[devices.".."]\nbackend = "null"\n', ("..",)),
    "name the folder": ('[devices."."]\nbackend = "null"\n', ("name",)),
    "name hidden": ('[devices.".writing-n"]\nbackend = "null"\n', ("name",)),
    "name an option": ('[devices."--debug"]\nbackend = "null"\n', ("name",)),
    "name empty": ('[devices.""]\nbackend = "null"\n', ("name",)),
    "name with escapes": ('[devices."a\\u001b[31m"]\nbackend = "null"\n', ("name",)),
    "name long": (f"[devices.{'n' * 5000}]\n", ("name",)),
    "option a list": (NULL + "[devices.n.options]\nnoise = [1]\n", ("noise",)),
    "options a number": (NULL + "options = 3\n", ("options",)),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_invalid_devices_file_is_refused(case: str, harness: Harness) -> None:
    """A devices.toml that is not valid ends with exit 3 and names the key, and nothing is written."""
    content, mentions = SETTINGS[case]
    (harness.workspace / "devices.toml").write_bytes(content if isinstance(content, bytes) else content.encode())
    before = harness.state()
    harness("devices", "list").assert_refused(3, mentions=mentions)
    assert harness.state() == before


@pytest.mark.parametrize(
    "words",
    [
        ("devices", "list"),
        ("devices", "show", "nobody"),
        ("profile", "--device", "null01", "--runs", "0"),
        ("lut", "build", "--device", "null01"),
        ("frobnicate",),
    ],
    ids=" ".join,
)
def test_outcome_is_that_of_a_process(words: tuple[str, ...], harness: Harness) -> None:
    """A command in a process of its own ends with the same words and exit code as in this process."""
    harness.assert_processes_agree(*words).assert_plain()


@pytest.mark.parametrize(
    "options",
    [
        "c_s = nan",
        "c_s = inf",
        "noise = 1e300",
        'c_s = "much"',
        "frobnicate = 1",
        "seed = 1.5",
        "c_s = -1.0",
        "c_s = true",
    ],
)
def test_invalid_device_options_are_refused(options: str, harness: Harness, small_network: Path) -> None:
    """Options that the backend cannot use end with one error."""
    (harness.workspace / "devices.toml").write_text(f"{NULL}[devices.n.options]\n{options}\n")
    harness("profile", "--device", "n", small_network, "--runs", "2").assert_refused(3, 4)


@pytest.mark.parametrize("threads", ["-1", '"many"', "1000000000", "0.5"])
def test_invalid_thread_counts_are_refused(threads: str, harness: Harness, small_network: Path) -> None:
    """A thread count that no machine has ends with one error."""
    (harness.workspace / "devices.toml").write_text(f"[devices.c]\n[devices.c.options]\nthreads = {threads}\n")
    harness("profile", "--device", "c", small_network, "--runs", "1").assert_refused(3, 4)


def test_devices_file_that_is_no_file_is_refused(harness: Harness) -> None:
    """A folder in place of devices.toml is refused."""
    (harness.workspace / "devices.toml").mkdir()
    harness("devices", "list").assert_refused(3, mentions=("devices.toml",))


def test_devices_file_with_bom_and_crlf_is_read(harness: Harness) -> None:
    """A devices.toml saved by a Windows editor is read."""
    (harness.workspace / "devices.toml").write_bytes(b"\xef\xbb\xbf" + NULL.replace("\n", "\r\n").encode())
    found = harness("devices", "list", "--json").assert_ok().json
    assert {"cpu01", "null01", "n"} <= {device["name"] for device in found["devices"]}


def test_key_that_others_can_read_is_refused(harness: Harness) -> None:
    """A private key with permissions for others is refused, with the command that mends it."""
    (harness.workspace / "devices.toml").write_text(SSH)
    key = harness.workspace / "key"
    key.write_text("secret material")
    key.chmod(0o644)
    outcome = harness("devices", "list").assert_refused(3, mentions=("key", "chmod 600"))
    assert "secret material" not in outcome.stderr


def test_ssh_device_without_key_or_known_host_is_unreachable(harness: Harness, small_network: Path) -> None:
    """An SSH device whose key is missing ends with exit 3 or 4 and a next step."""
    (harness.workspace / "devices.toml").write_text(SSH + "port = 1\n")
    outcome = harness("profile", "--device", "board", small_network)
    outcome.assert_refused(3, 4, mentions=("next:",))


@pytest.mark.parametrize("name", ["nul01", "", "..", "\x1b[31m", "a/b", "n" * 5000, "--", "null01 "])
def test_unknown_device_is_refused(name: str, harness: Harness, small_network: Path) -> None:
    """An unknown device is refused by every command that takes one, and those known are listed or suggested."""
    harness("profile", f"--device={name}", small_network).assert_refused(3, mentions=("null01",))
    harness("devices", "check", "--", name or "x").assert_refused(3)
    assert not (harness.workspace / "lut").exists()


def test_demo_names_an_unknown_device_before_it_begins(harness: Harness) -> None:
    """The demo refuses an unknown device without announcing its first step."""
    outcome = harness("demo", "--device", "nul01").assert_refused(3, mentions=("nul01",))
    assert "profile" not in outcome.stderr


def test_unknown_device_of_tables_is_refused(harness: Harness, small_network: Path) -> None:
    """Commands on tables refuse a device that is neither known nor has a table, without leaving the workspace."""
    for name in ("nul01", "", "../../../etc"):
        harness("estimate", small_network, "--device", name).assert_refused(3)
        harness("lut", "show", "--device", name).assert_refused(3)
        harness("lut", "build", "--device", name).assert_refused(3)


# Options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["--frobnicate"],
        ["--budget", "soon"],
        ["--budget", "-5s"],
        ["--budget", "0"],
        ["--budget", ""],
        ["--budget", "nan"],
        ["--budget", "inf"],
        ["--budget", "10 minutes"],
        ["--budget", "1e3"],
        ["--budget", "9" * 400 + "h"],
        ["--runs", "0"],
        ["--runs", "-1"],
        ["--runs", "many"],
        ["--runs", "1.5"],
        ["--runs", "²"],
        ["--runs", "9" * 5000],
        ["--runs", "100000000000"],
        ["--aux", "conv9x9"],
        ["--aux", ""],
        ["--aux", "\x1b[31m"],
        ["--seed", "-1"],
        ["--seed", "x"],
        ["--seed", "9" * 30],
        ["--dim", "x"],
        ["--workspace"],
        ["--device"],
    ],
    ids=lambda words: "=".join(word[:14].encode("unicode_escape").decode() for word in words),
)
def test_wrong_option_is_a_usage_error(words: list[str], harness: Harness, small_network: Path) -> None:
    """An option that does not exist or has no sensible value ends with exit 2, and nothing is measured."""
    outcome = harness("profile", "--device", "null01", small_network, *words)
    outcome.assert_refused(2)
    assert harness.state() == {}


@pytest.mark.parametrize(
    "words",
    [
        ["frobnicate"],
        ["lut"],
        ["lut", "frobnicate"],
        ["lut", "build", "--method", "guess"],
        ["lut", "diff", "one"],
        ["lut", "show", "--limit", "-1"],
        ["lut", "export"],
        ["estimate"],
        ["validate"],
        ["devices"],
        ["devices", "show"],
        ["agent", "install"],
    ],
    ids=" ".join,
)
def test_wrong_command_is_a_usage_error(words: list[str], harness: Harness) -> None:
    """A command that does not exist or lacks its arguments ends with exit 2."""
    outcome = harness(*words)
    assert outcome.code == 2, str(outcome)
    outcome.assert_plain()
    assert harness.state() == {}


@pytest.mark.parametrize("name", ["out.xlsx", "out", "nowhere/out.csv", "."])
def test_export_to_what_cannot_be_written(name: str, unchanged: Harness, tmp_path: Path) -> None:
    """An export to an unknown format or an impossible place is refused and writes nothing."""
    unchanged("lut", "export", tmp_path / name, "--device", "null01").assert_refused(2, 3)


@pytest.mark.parametrize("option", ["--csv", "--html"])
@pytest.mark.parametrize("name", ["nowhere/out", "", "n" * 300])
def test_reports_to_what_cannot_be_written(
    option: str, name: str, unchanged: Harness, small_network: Path, tmp_path: Path
) -> None:
    """A report to an impossible place is refused with exit 2 or 3."""
    place = tmp_path / name if name else tmp_path
    unchanged("estimate", small_network, "--device", "null01", option, place).assert_refused(2, 3)


# Workspaces ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["file", "nowhere", "nul\udcff", "n" * 5000, "in\x1b[31mside"])
def test_workspace_that_is_no_folder_is_refused(place: str, harness: Harness, small_network: Path) -> None:
    """`--workspace` with a file or a missing folder is refused."""
    (harness.workspace / "file").write_text("")
    outcome = harness("profile", "--device", "null01", small_network, "--workspace", place)
    outcome.assert_refused(2, 3)


def test_marker_with_unknown_key_is_refused(harness: Harness) -> None:
    """A harness.toml with an unknown key is refused by name."""
    (harness.workspace / "harness.toml").write_text('colour = "red"\n')
    harness("devices", "list").assert_refused(3, mentions=("colour", "harness.toml"))


@pytest.mark.parametrize("content", [b"[", b"\xff", b"a = " + b"[" * 20_000], ids=["cut", "binary", "nested"])
def test_marker_that_is_not_toml_is_refused(content: bytes, harness: Harness) -> None:
    """A harness.toml that is not TOML is refused."""
    (harness.workspace / "harness.toml").write_bytes(content)
    harness("devices", "list").assert_refused(3, mentions=("harness.toml",))


def test_workspace_is_found_from_below(harness: Harness, small_network: Path) -> None:
    """From a folder inside the workspace the nearest parent with a harness.toml is used."""
    (harness.workspace / "harness.toml").write_text("")
    below = harness.workspace / "a" / "b"
    below.mkdir(parents=True)
    inside = Harness(below, harness.runtime, harness.home)
    inside("profile", "--device", "null01", small_network, "--runs", "2").assert_ok()
    assert (harness.workspace / ".harness" / "journal.sqlite").is_file()
    assert not any(below.iterdir())


def test_workspace_that_cannot_be_written_is_refused(harness: Harness, small_network: Path) -> None:
    """A read-only workspace ends with one error before anything is measured."""
    harness.workspace.chmod(0o555)
    try:
        if os.access(harness.workspace, os.W_OK):
            pytest.skip("this user may write everywhere")
        harness("profile", "--device", "null01", small_network).assert_refused(3)
    finally:
        harness.workspace.chmod(0o755)


def test_journal_folder_that_is_a_file_is_refused(harness: Harness, small_network: Path) -> None:
    """A file where the journal's folder should be ends with one error."""
    (harness.workspace / ".harness").write_text("")
    harness("profile", "--device", "null01", small_network).assert_refused(3)
    harness("lut", "build", "--device", "null01").assert_refused(3)


@pytest.mark.parametrize("content", [b"no database" * 100, b"SQLite format 3\0" + bytes(5000)], ids=["text", "zeros"])
def test_journal_that_is_no_database_is_refused(content: bytes, harness: Harness, small_network: Path) -> None:
    """A damaged journal is refused and left as it is."""
    folder = harness.workspace / ".harness"
    folder.mkdir()
    (folder / "journal.sqlite").write_bytes(content)
    harness("profile", "--device", "null01", small_network).assert_refused(3, mentions=("journal",))
    harness("lut", "build", "--device", "null01").assert_refused(3, mentions=("journal",))
    assert (folder / "journal.sqlite").read_bytes() == content


def test_tables_folder_that_is_a_file_is_refused(harness: Harness, profiled: Harness) -> None:
    """A file where the tables' folder should be ends with one error."""
    shutil.copytree(profiled.workspace / ".harness", harness.workspace / ".harness")
    (harness.workspace / "lut").write_text("")
    harness("lut", "build", "--device", "null01").assert_refused(3)


def test_full_disk_is_reported(unchanged: Harness, small_network: Path) -> None:
    """A result that cannot be written because the disk is full is an error and no bug report."""
    with open("/dev/full", "w", encoding="utf-8") as full:
        unchanged.process("estimate", small_network, "--device", "null01", stdout=full).assert_refused(3)


def test_reader_that_leaves_early_is_no_error(unchanged: Harness) -> None:
    """`harness … | head` ends in silence when the reader leaves."""
    process = unchanged.start("lut", "show", "--device", "null01")
    assert process.stdout is not None and process.stderr is not None
    with process.stderr:
        process.stdout.close()
        said = process.stderr.read()
    process.wait(timeout=TIMEOUT_S)
    assert said == "", said


def test_terminal_without_unicode_works(unchanged: Harness, small_network: Path) -> None:
    """Output to a terminal that knows ASCII only does not fail."""
    ascii_only = Harness(unchanged.workspace, unchanged.runtime, unchanged.home, {"PYTHONIOENCODING": "ascii"})
    ascii_only.process("lut", "show", "--device", "null01").assert_ok()
    ascii_only.process("estimate", small_network, "--device", "null01", "--layers").assert_ok()


# Disturbed campaigns ---------------------------------------------------------------------------------------------

RUNS = 100
PROFILES = 'settings LIKE \'%"purpose":"profile"%\''
"""Campaigns that are no golden probe."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, small_network: Path) -> dict[str, Any]:
    """The result of the undisturbed campaign."""
    harness = Harness.in_folder(tmp_path_factory.mktemp("undisturbed"))
    result = _profile(harness, small_network).assert_ok().json
    return {**result, "visits": _visits(harness)}


def _words(network: Path, device: str = "null01") -> tuple[str | Path, ...]:
    return "profile", "--device", device, network, "--runs", str(RUNS), "--json"


def _profile(harness: Harness, network: Path, device: str = "null01") -> Outcome:
    return harness(*_words(network, device))


def _visits(harness: Harness) -> Counter[str]:
    """How many samples each probe has."""
    rows = harness.query(
        "SELECT probe, count(*) FROM series JOIN samples ON series.id = samples.series"
        f" WHERE campaign IN (SELECT id FROM campaigns WHERE {PROFILES}) GROUP BY probe"
    )
    return Counter(dict(rows))


def _samples(harness: Harness) -> set[tuple[Any, ...]]:
    with contextlib.suppress(Exception):
        return set(
            harness.query(
                "SELECT campaign, probe, batch, round, position, ordinal, wall_ns, device_ns FROM series"
                " JOIN samples ON series.id = samples.series"
                f" WHERE campaign IN (SELECT id FROM campaigns WHERE {PROFILES})"
            )
        )
    return set()


def _committed(harness: Harness) -> int:
    """The number of samples, many times faster than the samples themselves."""
    with contextlib.suppress(Exception):
        ((count,),) = harness.query(
            "SELECT count(*) FROM series JOIN samples ON series.id = samples.series"
            f" WHERE campaign IN (SELECT id FROM campaigns WHERE {PROFILES})"
        )
        return int(count)
    return 0


def _start(harness: Harness, network: Path, enough: int = 500, device: str = "null01") -> subprocess.Popen[str]:
    """A campaign that has committed some samples and is far from its end."""
    process = harness.start(*_words(network, device))
    wait_for(lambda: process.poll() is not None or _committed(harness) >= enough, "samples")
    assert process.poll() is None, f"the campaign ended before it could be disturbed: {process.communicate()}"
    return process


def _end(process: subprocess.Popen[str]) -> Outcome:
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    return Outcome(process.returncode, stdout, stderr)


def _assert_resumes(harness: Harness, network: Path, kept: set[tuple[Any, ...]], undisturbed: dict[str, Any]) -> None:
    """The same command completes the campaign: nothing of it lost, nothing doubled, the same plan."""
    assert kept
    result = _profile(harness, network).assert_ok().json
    assert result["resumed"] is True
    assert harness.query(f"SELECT count(*), count(DISTINCT plan) FROM campaigns WHERE {PROFILES}") == [(1, 1)]
    after = _samples(harness)
    assert kept <= after, f"{len(kept - after)} samples were lost"
    places = Counter(row[:6] for row in after)
    assert max(places.values()) == 1, "a sample stands twice"
    visits = _visits(harness)
    doubled = {
        probe: (count, undisturbed["visits"][probe])
        for probe, count in visits.items()
        if count != undisturbed["visits"][probe]
    }
    assert not doubled, f"samples of probes differ from an undisturbed campaign: {doubled}"
    assert result["probes"] == undisturbed["probes"] and result["samples"] == undisturbed["samples"]
    harness("lut", "build", "--device", "null01").assert_ok()


def test_second_controller_finds_the_device_busy(harness: Harness, small_network: Path, tmp_path: Path) -> None:
    """While one campaign holds a device, another workspace is refused with exit 4, and nothing is measured."""
    (tmp_path / "second").mkdir()
    second = Harness(tmp_path / "second", harness.runtime, harness.home)
    for each in (harness, second):
        (each.workspace / "devices.toml").write_text(LEASED)
    first = _start(harness, small_network, device="leased")
    try:
        outcome = _profile(second, small_network, "leased")
        assert first.poll() is None
        outcome.assert_refused(4, mentions=("leased", "--wait"))
        assert not _samples(second)
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.communicate()


def test_second_controller_in_the_same_workspace_is_busy(harness: Harness, small_network: Path) -> None:
    """A second campaign in the same workspace is refused with exit 4 and does not disturb the first."""
    (harness.workspace / "devices.toml").write_text(LEASED)
    first = _start(harness, small_network, device="leased")
    _profile(harness, small_network, "leased").assert_refused(4)
    assert _end(first).assert_ok().json["samples"] > 0
    assert harness.query(f"SELECT count(*) FROM campaigns WHERE {PROFILES}") == [(1,)]


@pytest.mark.parametrize("victim", ["agent", "worker"])
def test_agent_that_dies_is_reported_and_resumed(
    victim: str, harness: Harness, small_network: Path, undisturbed: dict[str, Any]
) -> None:
    """Agent or worker killed in the middle: exit 4, and the same command completes the campaign."""
    process = _start(harness, small_network)
    (target,) = {"agent": agents, "worker": workers}[victim](harness.runtime)
    os.kill(target, signal.SIGKILL)
    _end(process).assert_refused(4, mentions=("next:",))
    kept = _samples(harness)
    _assert_resumes(harness, small_network, kept, undisturbed)


@pytest.mark.parametrize("whole_group", [True, False], ids=["terminal", "process"])
def test_interrupt_is_resumed(
    whole_group: bool, harness: Harness, small_network: Path, undisturbed: dict[str, Any]
) -> None:
    """Ctrl-C, sent by a terminal to the whole group or to the command alone: exit 130, how to resume, and it does."""
    process = _start(harness, small_network)
    if whole_group:
        os.killpg(process.pid, signal.SIGINT)
    else:
        os.kill(process.pid, signal.SIGINT)
    outcome = _end(process)
    assert outcome.code == 130, str(outcome)
    outcome.assert_plain()
    assert outcome.stdout == "" and "resume" in outcome.stderr.lower(), str(outcome)
    kept = _samples(harness)
    assert len(kept) < undisturbed["samples"]
    _assert_resumes(harness, small_network, kept, undisturbed)


def test_interrupted_twice_is_resumed(harness: Harness, small_network: Path, undisturbed: dict[str, Any]) -> None:
    """A second Ctrl-C ends at once with exit 130, and nothing committed is lost."""
    process = _start(harness, small_network)
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)
    outcome = _end(process)
    assert outcome.code == 130, str(outcome)
    outcome.assert_plain()
    _assert_resumes(harness, small_network, _samples(harness), undisturbed)


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM], ids=["KILL", "TERM"])
def test_controller_that_is_killed_is_resumed(
    kill: signal.Signals, harness: Harness, small_network: Path, undisturbed: dict[str, Any]
) -> None:
    """A controller killed in the middle leaves no agent behind, and the same command completes the campaign."""
    process = _start(harness, small_network)
    left = [*agents(harness.runtime), *workers(harness.runtime)]
    assert len(left) == 2
    process.send_signal(kill)
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode != 0
    wait_for(lambda: not any(map(runs, left)), "the end of agent and worker")
    _assert_resumes(harness, small_network, _samples(harness), undisturbed)


def test_controller_killed_at_random_moments_is_resumed(
    harness: Harness, small_network: Path, undisturbed: dict[str, Any]
) -> None:
    """Killed again and again, from its first moments on, the campaign still completes with each sample once."""
    kept: set[tuple[Any, ...]] = set()
    for enough in (0, 1, 100, 1000, 2000):
        process = harness.start(*_words(small_network))
        journal = harness.workspace / ".harness" / "journal.sqlite"
        wait_for(lambda: journal.exists() and _committed(harness) >= enough, "samples")  # noqa: B023
        process.kill()
        process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == -signal.SIGKILL, "the campaign ended before it could be killed"
        now = _samples(harness)
        assert kept <= now
        kept = now
        wait_for(lambda: _lease_is_free(harness), "the lease")
    result = _profile(harness, small_network).assert_ok().json
    assert result["samples"] == undisturbed["samples"]
    assert kept <= _samples(harness) and _visits(harness) == undisturbed["visits"]


def _lease_is_free(harness: Harness) -> bool:
    import fcntl

    for path in harness.runtime.glob("*.lease"):
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
    return True


def test_fresh_begins_anew(harness: Harness, small_network: Path) -> None:
    """`--fresh` leaves an interrupted campaign alone and begins another."""
    process = _start(harness, small_network)
    os.killpg(process.pid, signal.SIGINT)
    assert _end(process).code == 130
    result = (
        harness("profile", "--device", "null01", small_network, "--runs", "4", "--fresh", "--json").assert_ok().json
    )
    assert result["resumed"] is False
    assert harness.query(f"SELECT count(*) FROM campaigns WHERE {PROFILES}") == [(2,)]


def test_other_settings_do_not_resume(harness: Harness, small_network: Path) -> None:
    """A campaign of other settings is not mixed into an interrupted one."""
    process = _start(harness, small_network)
    os.killpg(process.pid, signal.SIGINT)
    assert _end(process).code == 130
    result = harness("profile", "--device", "null01", small_network, "--runs", "4", "--json").assert_ok().json
    rows = harness.query(
        "SELECT count(*) FROM series JOIN samples ON series.id = samples.series WHERE campaign = ?", result["campaign"]
    )
    assert rows == [(result["samples"],)]


def test_budget_ends_a_campaign(harness: Harness, small_network: Path) -> None:
    """A budget too small for one round ends with exit 5 and says how to go on, and the device time stays near it."""
    outcome = harness("profile", "--device", "null01", small_network, "--budget", "0.001s", "--json")
    outcome.assert_plain()
    assert outcome.code in (0, 5), str(outcome)
    if outcome.code == 5:
        outcome.assert_refused(5, mentions=("budget",))


def test_interrupt_of_an_estimate(unchanged: Harness, small_network: Path) -> None:
    """Ctrl-C at any moment of a command, once the interpreter is up, ends without a traceback."""
    for delay_s in (0.4, 0.6, 0.9):
        process = unchanged.start("estimate", small_network, "--device", "null01")
        time.sleep(delay_s)
        os.killpg(process.pid, signal.SIGINT)
        outcome = _end(process)
        outcome.assert_plain()
        assert outcome.code in (0, 130), str(outcome)
