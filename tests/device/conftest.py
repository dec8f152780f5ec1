"""Tests of devices behind SSH."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sshd_server import Sshd, running_sshd


@pytest.fixture
def sshd(tmp_path: Path, runtime_folder: Path) -> Iterator[Sshd]:
    """An sshd that lets the key `identity` start the agent and nothing else."""
    with running_sshd(tmp_path / "sshd", runtime_folder) as server:
        yield server
