"""Units and crontab lines: systemd and a shell run exactly the intended command."""

import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime, time, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from harness.errors import ConfigurationError, UsageError
from harness.nightly.night_plan import NightPlan
from harness.nightly.plan_file import NightSettings
from harness.nightly.timers import NightlyTimer, check_time, crontab_line, service_unit, timer_unit, write_units
from harness.workspace import Workspace

ANALYZE = shutil.which("systemd-analyze")
NASTY = [
    *("plain", "two words", "100%", "%h", "%%", "$HOME", "${HOME}", "$$", 'quo"te', "apo'strophe", "back\\slash"),
    *("back\\", "\\", " lead", "trail ", "#hash", ";semi", "-dash", "@at", "tüv", "日本", "a\\%b", "\\x41", "*", "~"),
    *("`id`", "$(id)", "=", "[x]", "a|b&c"),
]
NAMES = st.one_of(
    st.sampled_from(NASTY),
    st.text(st.characters(exclude_categories=["C", "Zl", "Zp"], exclude_characters="/"), min_size=1, max_size=20),
).filter(lambda name: name not in (".", "..") and name.isprintable())


def installation(*parts: str, **more: object) -> NightlyTimer:
    """Return an installation for a workspace of that name."""
    root = Path("/", *parts)
    return NightlyTimer(Workspace(root), plan=root / "my plan.toml", **more)  # type: ignore[arg-type]


def read_by_systemd(line: str) -> list[str]:
    """Parse a setting by systemd.syntax(7) and systemd.unit(5): quotes, backslashes, specifiers."""
    words = re.findall(r'"((?:[^"\\]|\\.)*)"(?: |$)', line)
    assert " ".join(f'"{word}"' for word in words) == line.strip()
    unescaped = [re.sub(r"\\(.)", r"\1", word) for word in words]
    for word in unescaped:
        assert not re.search(r"(?<!%)(?:%%)*%(?!%)", word), f"a specifier is left in {word!r}"
    return [word.replace("%%", "%") for word in unescaped]


@given(st.lists(NAMES, min_size=1, max_size=3))
def test_units_hold_the_command_word_by_word(parts: list[str]) -> None:
    """For any name of the workspace, the service runs the command on it and may write to it."""
    wanted = installation(*parts)
    lines = dict(line.split("=", 1) for line in service_unit(wanted).splitlines() if "=" in line)
    program, *arguments = read_by_systemd(lines["ExecStart"])
    for word in arguments:
        assert not re.search(r"(?<!\$)(?:\$\$)*\$(?!\$)", word), f"a variable is left in {word!r}"
    assert [program, *(word.replace("$$", "$") for word in arguments)] == list(wanted.command)
    writable = read_by_systemd(lines["ReadWritePaths"])
    assert str(wanted.workspace.root) in writable and "-/run/lock" in writable and "-/tmp" in writable


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not here")
@settings(max_examples=12)
@given(st.lists(NAMES, min_size=1, max_size=2), st.sampled_from([0.0, 60.0, 5400.0]))
def test_systemd_accepts_the_units(tmp_path_factory: pytest.TempPathFactory, parts: list[str], delay_s: float) -> None:
    """`systemd-analyze verify` accepts both units for any name of the workspace."""
    _verify(tmp_path_factory.mktemp("units"), installation(*parts, delay_s=delay_s, at=time(23, 59)))


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not here")
def test_systemd_accepts_all_nasty_names_at_once(tmp_path: Path) -> None:
    """A path with every special character passes, in a user's manager and in the system's."""
    nasty = installation(*NASTY)
    _verify(tmp_path / "user", nasty)
    _verify(tmp_path / "system", nasty, "daemon")


def _verify(folder: Path, wanted: NightlyTimer, user: str | None = None) -> None:
    service, timer = write_units(wanted, folder, user)
    assert ANALYZE is not None
    done = subprocess.run(
        [ANALYZE, "verify", "--man=no", str(service), str(timer)], capture_output=True, text=True, timeout=600
    )
    said = [line for line in (done.stdout + done.stderr).splitlines() if "harness-nightly" in line]
    assert (done.returncode, said) == (0, []), service.read_text()


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not here")
def test_verification_would_notice(tmp_path: Path) -> None:
    """A broken unit is rejected: the checks above can fail."""
    service, _ = write_units(installation("w"), tmp_path)
    service.write_text(service.read_text().replace("ExecStart=", "ExecStrat="))
    assert ANALYZE is not None
    done = subprocess.run([ANALYZE, "verify", "--man=no", str(service)], capture_output=True, text=True, timeout=600)
    assert done.returncode != 0


def test_timer_catches_up_and_spreads() -> None:
    """The timer starts at its time plus a random delay, and after the host was off."""
    text = timer_unit(installation("w", at=time(3, 5), delay_s=90.0))
    assert {"OnCalendar=*-*-* 03:05:00", "RandomizedDelaySec=90", "Persistent=true"} <= set(text.splitlines())


@settings(max_examples=25)
@given(st.lists(NAMES, min_size=1, max_size=3))
def test_shell_runs_what_the_crontab_says(parts: list[str]) -> None:
    """cron turns `\\%` into `%` and passes the rest to sh, which gives the program the intended words."""
    show = Path(sys.executable).parent / "show"
    wanted = NightlyTimer(Workspace(Path("/", *parts)), python=show)
    minute, hour, *stars, command = crontab_line(wanted).split(" ", 5)
    assert 0 <= int(minute) < 60 and 0 <= int(hour) < 24 and stars == ["*"] * 3
    assert not re.search(r"(?<!\\)%", command), "cron would end the command here"
    shown = command.replace(r"\%", "%").replace(str(show), r"printf '%s\0'", 1)
    done = subprocess.run(["sh", "-c", shown], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout.split("\0")[:-1] == list(wanted.command[1:])


@given(st.integers(0, 23), st.integers(0, 59), st.integers(0, 600), NAMES)
def test_crontab_delay_is_bounded_and_steady(hour: int, minute: int, delay: int, name: str) -> None:
    """A workspace's crontab line is stable, and starts at most the delay after the requested time."""
    wanted = installation(name, at=time(hour, minute), delay_s=delay * 60.0)
    first, second = crontab_line(wanted), crontab_line(wanted)
    at_minute, at_hour = map(int, first.split(" ")[:2])
    later = (at_hour * 60 + at_minute - hour * 60 - minute) % (24 * 60)
    assert first == second and later <= delay


@given(st.integers(0, 24 * 60 - 1), st.integers(0, 700), st.integers(0, 24 * 60 - 1))
def test_all_starts_of_one_evening_belong_to_one_night(minute: int, delay: int, begins: int) -> None:
    """An accepted installation starts one night per day; one that could start two of one date is refused."""

    def clock(minutes: int) -> time:
        return time(minutes // 60, minutes % 60)

    wanted = installation("w", at=clock(minute), delay_s=delay * 60.0)
    plan = NightPlan(Path("nightly.toml"), (), NightSettings().model_copy(update={"day_begins": clock(begins)}))
    first = datetime(2026, 11, 20, tzinfo=UTC) + timedelta(minutes=minute)
    starts = [first + timedelta(minutes=later, days=days) for days in (0, 1) for later in (0, delay)]
    tonight, _, tomorrow, _ = map(plan.night, starts)
    try:
        check_time(wanted, plan.settings.day_begins)
    except UsageError as error:
        assert f"day_begins is {clock(begins):%H:%M}" in str(error)
        within = (begins - minute) % (24 * 60)
        assert within <= delay + 1
    else:
        assert [plan.night(start) for start in starts] == [tonight, tonight, tomorrow, tomorrow]
        assert (tomorrow - tonight).days == 1


def test_nightly_has_leases_where_this_shell_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell's runtime folder is set in the unit and in the crontab line; without one neither sets it."""
    folder = tmp_path / "two $words 100%"
    monkeypatch.setenv("HARNESS_RUNTIME_FOLDER", str(folder))
    lines = service_unit(installation("w")).splitlines()
    given = [line.removeprefix("Environment=") for line in lines if line.startswith('Environment="')]
    assert [read_by_systemd(one) for one in given] == [[f"HARNESS_RUNTIME_FOLDER={folder}"]]
    program = tmp_path / "show"
    program.write_text('#!/bin/sh\nprintf %s "$HARNESS_RUNTIME_FOLDER"\n')
    program.chmod(0o755)
    wanted = NightlyTimer(Workspace(tmp_path), python=program)
    command = crontab_line(wanted).split(" ", 5)[5].replace(r"\%", "%")
    monkeypatch.setenv("HARNESS_RUNTIME_FOLDER", "elsewhere")
    said = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=600, check=True)
    assert said.stdout == str(folder)
    monkeypatch.delenv("HARNESS_RUNTIME_FOLDER")
    assert "RUNTIME" not in service_unit(wanted) + crontab_line(wanted)


@pytest.mark.parametrize("name", ["new\nline", "tab\t", "\x1b[31m", "\udcff"])
def test_path_that_no_unit_can_hold_is_refused(name: str) -> None:
    """Paths with control characters or bytes that are not UTF-8 are refused."""
    with pytest.raises(ConfigurationError, match="A unit or a crontab cannot contain"):
        service_unit(installation(name))
    with pytest.raises(ConfigurationError, match="A unit or a crontab cannot contain"):
        crontab_line(installation(name))


def test_two_workspaces_have_units_of_their_own(tmp_path: Path) -> None:
    """Units of a workspace replace its previous units, and never those of another workspace."""
    for name in ("a", "b", "a"):
        write_units(installation(name), tmp_path)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".service"] * 2 + [".timer"] * 2
