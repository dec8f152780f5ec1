"""Disks that are full, read-only or under a quota, on the host and on the device."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_rig import SHORT, Rig, small_disk
from sshd_server import Sshd

from device_agents.lease import Lease, holder_of
from harness.device.session import open_session
from harness.errors import DeviceError, JournalError
from harness.measure.policy import RepeatPolicy


def _fill(folder: Path) -> Path:
    """Fills the disk to the last byte; returns the file that does."""
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as content:
        while True:
            content.write(bytes(4096))
    return filler


def _remount(folder: Path, mode: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{mode}", str(folder)], check=True)


@pytest.fixture
def host_disk(rig: Rig) -> Iterator[Path]:
    """A small disk of its own for the journal."""
    with small_disk(rig.bench.workspace.journal.parent, "2m") as folder:
        yield folder


@pytest.fixture
def device_disk(tmp_path: Path, rig: Rig) -> Iterator[Path]:
    """A small disk for what the agent writes: leases, and the private folder of its worker."""
    with small_disk(tmp_path / "disk", "16m") as folder:
        rig.monkeypatch.setenv("HARNESS_RUNTIME_FOLDER", str(folder))
        rig.monkeypatch.setattr("tempfile.tempdir", tempfile.gettempdir())  # that of the controller stays
        rig.monkeypatch.setenv("TMPDIR", str(folder))
        yield folder


def test_the_disk_of_the_journal_gets_full(rig: Rig, host_disk: Path) -> None:
    """Committed samples are kept, the error names the disk, and the board is free at once."""
    error = rig.meet(
        "disk full on the host", lambda: _fill(host_disk), JournalError, mend=(host_disk / "filler").unlink
    )
    assert error is not None and "disk is full" in error.why


def test_the_disk_of_the_journal_is_read_only(rig: Rig, host_disk: Path) -> None:
    """A journal that cannot be opened for writing is an error, and nothing is measured for it."""
    rig.begin()
    error = rig.meet(
        "disk read-only on the host",
        lambda: _remount(host_disk, "ro"),
        JournalError,
        after_rounds=0,
        mend=lambda: _remount(host_disk, "rw"),
    )
    assert error is not None and error.next_step


def test_a_host_without_room_for_temporary_files(rig: Rig, tmp_path: Path) -> None:
    """A session needs no room for temporary files on the host: what an agent writes goes to memory, and is bounded."""
    rig.begin()
    with rig.monkeypatch.context() as patch:
        strike = lambda: patch.setattr("tempfile.tempdir", str(tmp_path / "gone"))  # noqa: E731
        rig.meet("no temporary files on the host", strike, None, after_rounds=0)


def test_the_disk_of_the_device_is_full_before_the_first_lease(rig: Rig, device_disk: Path) -> None:
    """Without room for the fencing token there is no lease, and the error names the device's disk."""
    with pytest.raises(DeviceError, match="No space left") as caught:
        filler = _fill(device_disk)
        rig.run_session(SHORT)
    assert type(caught.value) is DeviceError and caught.value.retry_helps
    assert holder_of(rig.resource) is None
    filler.unlink()
    rig.finish("disk full on the device", caught.value, _lease_s(rig))


def test_the_disk_of_the_device_gets_full(rig: Rig, device_disk: Path) -> None:
    """A device leased before needs no more room: tokens are written in place and keep growing."""
    rig.begin()
    rig.meet("disk full on the device, later", lambda: _fill(device_disk), None)
    tokens = [token for (token,) in rig.query("SELECT DISTINCT token FROM series ORDER BY id")]
    assert len(tokens) == 2 and tokens == sorted(tokens)


def test_a_runtime_without_room_for_its_files(rig: Rig, device_disk: Path) -> None:
    """A network that fails for lack of disk is not recorded as one that the device cannot run."""
    rig.bench.set_device()
    options = {"device": "cpu01", "policy": RepeatPolicy(runs=2)}
    quiet = rig.bench.profile(connect=open_session, **options)
    with rig.monkeypatch.context() as patch, pytest.raises(DeviceError, match="No space left") as caught:
        _fill_at_lease(patch, device_disk)
        rig.bench.profile(connect=open_session, fresh=True, **options)
    assert type(caught.value) is DeviceError
    (device_disk / "filler").unlink()
    again = rig.bench.profile(connect=open_session, fresh=True, **options)
    assert (again.refused, again.samples) == (quiet.refused, quiet.samples) and not again.resumed


def test_the_disk_of_the_device_is_read_only(rig: Rig, device_disk: Path) -> None:
    """A lock file that cannot be opened is reported, and the lease is not taken."""
    rig.begin()
    _remount(device_disk, "ro")
    try:
        with pytest.raises(DeviceError, match="Read-only file system") as caught:
            rig.run_session(SHORT)
    finally:
        _remount(device_disk, "rw")
    assert type(caught.value) is DeviceError
    rig.finish("disk read-only on the device", caught.value, _lease_s(rig))


def test_a_quota_on_the_device(rig: Rig, sshd: Sshd) -> None:
    """A device user over quota gets the operating system's reason."""
    rig.begin()
    rig.put_behind(sshd)
    line = sshd.authorized_keys.read_text()
    sshd.authorized_keys.write_text(line.replace('command="', 'command="ulimit -f 0; exec '))
    with pytest.raises(DeviceError) as caught:
        rig.run_session(SHORT)
    assert type(caught.value) is DeviceError, caught.value
    sshd.authorized_keys.write_text(line)
    rig.finish("quota on the device", caught.value, _lease_s(rig))


def _lease_s(rig: Rig) -> float:
    """Seconds until another controller could take the lease: none, since it was never taken."""
    lease = Lease(rig.resource)
    lease.acquire("the next controller")
    lease.release()
    return 0.0


def _fill_at_lease(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Fill the disk once the session has a worker, before it receives its first probe."""
    from harness.device.session import AgentSession

    acquire = AgentSession.acquire

    def filling(session: AgentSession) -> int:
        _fill(folder)
        return acquire(session)

    patch.setattr(AgentSession, "acquire", filling)
