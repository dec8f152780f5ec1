"""Modules that the tests of search spaces share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


@pytest.fixture(autouse=True)
def _few_warm_layers_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tables of a few layers predict warm layers, as large ones do."""
    monkeypatch.setattr("harness.lut.table.FEWEST_WARM", 1)
