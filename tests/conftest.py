"""Shared fixtures: lock files of each test's own, a bench with a null device, hypothesis without deadlines."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).resolve().parent))

from nullbench import Bench

settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")


@pytest.fixture(autouse=True)
def runtime_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime folder of this test's own."""
    folder = tmp_path_factory.mktemp("leases")
    monkeypatch.setenv("HARNESS_RUNTIME_FOLDER", str(folder))
    return folder


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A workspace with a null device and a small network."""
    return Bench(tmp_path / "workspace")
