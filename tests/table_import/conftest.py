"""A workspace for `harness lut import`."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Harness


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    """The command line in an empty workspace."""
    return Harness.in_folder(tmp_path / "harness")
