"""The text of `harness validate`."""

from dataclasses import replace

import pytest
from report_inputs import make_estimate, make_validation

from harness.cli.validate import show_validation


def test_intervals_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """The summary says how many networks are inside their intervals, and of how many."""
    found = make_validation(*(make_estimate(name) for name in ("one", "two", "three")))
    show_validation(replace(found, networks=(replace(found.networks[0], within_interval=False), *found.networks[1:])))
    assert "inside the 95 % interval: 2 of 3" in capsys.readouterr().out


def test_processes_that_were_left_out_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """The summary names the networks that other programs disturbed, with the number of processes left out."""
    found = make_validation(*(make_estimate(name) for name in ("one", "two")))
    show_validation(found)
    assert "left out" not in capsys.readouterr().out
    show_validation(replace(found, networks=(found.networks[0], replace(found.networks[1], preempted_processes=2))))
    assert "in most of their runs: 2 of two" in capsys.readouterr().out
