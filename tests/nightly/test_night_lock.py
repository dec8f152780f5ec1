"""The lock that keeps two nightlies apart, tested with real processes."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from lock_looker import look_at

from harness.errors import ConfigurationError, NightBusy
from harness.nightly.night_lock import lock_file, night_lock, running
from harness.workspace import Workspace

HOLD = (
    "import sys\nfrom pathlib import Path\nfrom harness.nightly.night_lock import night_lock\n"
    "from harness.workspace import Workspace\n"
    "with night_lock(Workspace(Path(sys.argv[1])), '2026-11-20'):\n"
    "    print('held', flush=True)\n    sys.stdin.read()\n"
)


def test_lock_of_another_process_is_named_and_dies_with_it(tmp_path: Path) -> None:
    """The error names the process that holds the lock; after kill -9 the lock is free."""
    place = Workspace(tmp_path)
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        holder = running(place)
        assert holder is not None and (holder.pid, holder.night) == (other.pid, "2026-11-20")
        with pytest.raises(NightBusy, match=f"Process {other.pid} on .* runs the night of 2026-11-20 since 20"):
            night_lock(place, "2026-11-21").__enter__()
        assert running(place) == holder, "a refused process leaves the record unchanged"
    finally:
        other.send_signal(signal.SIGKILL)
        other.communicate()
    assert running(place) is None
    with night_lock(place, "2026-11-21"):
        now = running(place)
        assert now is not None and (now.pid, now.night) == (os.getpid(), "2026-11-21")
    assert running(place) is None


@pytest.mark.parametrize("then", [{20: fcntl.LOCK_UN}, {20: fcntl.LOCK_EX, 22: fcntl.LOCK_UN}])
def test_who_looks_at_the_lock_keeps_no_night_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: dict[int, int]
) -> None:
    """Who asks whether a night runs, however slowly, does not refuse one, nor who then holds the lock for a moment."""
    place = Workspace(tmp_path)
    lock_file(place).parent.mkdir(parents=True)
    lock_file(place).touch()
    looking = look_at(lock_file(place), monkeypatch, then)
    with night_lock(place, "2026-11-20"):
        monkeypatch.undo()
        assert running(place) is not None
    os.close(looking)


def test_damaged_record_only_hides_the_name(tmp_path: Path) -> None:
    """A truncated record hides the holder's name, but the lock still holds."""
    place = Workspace(tmp_path)
    with night_lock(place, "2026-11-20"):
        lock_file(place).write_text('{"pid"')
        with pytest.raises(NightBusy, match="Another process has just begun"):
            night_lock(place, "2026-11-20").__enter__()


def test_link_in_place_of_the_lock_is_refused(tmp_path: Path) -> None:
    """A symbolic link is not followed: it might lead outside the workspace."""
    place, outside = Workspace(tmp_path / "w"), tmp_path / "outside"
    lock_file(place).parent.mkdir(parents=True)
    lock_file(place).symlink_to(outside)
    with pytest.raises(ConfigurationError):
        night_lock(place, "2026-11-20").__enter__()
    assert not outside.exists()
