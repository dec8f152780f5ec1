"""The text of `harness validate`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_inputs import make_estimate, make_validation

from harness.cli.validate import show_validation


def test_intervals_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """The summary says how many networks are inside their intervals, and of how many."""
    found = make_validation(*(make_estimate(name) for name in ("one", "two", "three")))
    show_validation(replace(found, networks=(replace(found.networks[0], within_interval=False), *found.networks[1:])))
    assert "inside the 95 % interval: 2 of 3" in capsys.readouterr().out
