"""Modules that the tests of search spaces share."""

import pytest


@pytest.fixture(autouse=True)
def _few_warm_layers_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tables of a few layers predict warm layers, as large ones do."""
    monkeypatch.setattr("harness.lut.table.FEWEST_WARM", 1)
