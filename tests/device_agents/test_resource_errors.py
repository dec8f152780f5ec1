"""A lack of memory or disk is distinguished from a fault of the probe by the runtime's message."""

from pathlib import Path

import pytest

from device_agents.backends import Refused
from device_agents.resource_errors import disk_error, is_out_of_memory

MEMORY = ("Exception during initialization: std::bad_alloc", "Failed to allocate memory for requested buffer of size 9")
DISK = ("Failed to write external initializers to file: x", "[Errno 28] No space left on device")
PROBE = ("Could not find an implementation for Conv(11) node", "axis must be 0 to 3", "allocation of layers failed")


@pytest.mark.parametrize("message", MEMORY)
def test_want_of_memory_is_known_by_its_words(message: str) -> None:
    """Messages of runtimes about memory count as a lack of memory."""
    assert is_out_of_memory(Refused(message))
    assert is_out_of_memory(MemoryError())


@pytest.mark.parametrize("message", [*PROBE, *DISK])
def test_other_refusals_are_no_want_of_memory(message: str) -> None:
    """Other messages stay refusals of the probe."""
    assert not is_out_of_memory(Refused(message))


def test_want_of_disk_is_found_by_trying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unwritable folder is a lack of disk whatever the message; otherwise the message decides."""
    monkeypatch.chdir(tmp_path)
    assert [disk_error(Refused(message)) for message in (*PROBE, *MEMORY)] == [None] * 5
    assert all(disk_error(Refused(message)) for message in DISK)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert "no files can be written" in (disk_error(Refused(PROBE[0])) or "")
    assert not list(tmp_path.iterdir())
