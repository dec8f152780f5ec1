"""What requests share: their devices come from one reading of the inventory."""

from pathlib import Path

import pytest

from harness.errors import ConfigurationError
from harness.fleet.shared_reading import SharedReading


def test_an_inventory_is_read_once(tmp_path: Path) -> None:
    """A file that changes between requests does not change their devices; one that could not be read is read again."""
    path, reading = tmp_path / "devices.toml", SharedReading()
    path.write_text("[devices.one")
    with pytest.raises(ConfigurationError):
        reading.inventory(path)
    path.write_text('[devices.one]\nbackend = "null"\n')
    before = reading.inventory(path)
    path.write_text('[devices.two]\nbackend = "null"\n')
    assert reading.inventory(path) == before and "one" in before and "two" not in before
    assert "two" in SharedReading().inventory(path)
