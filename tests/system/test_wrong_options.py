"""Wrong options and commands, and results that cannot be written: a usage error, and nothing is measured."""

from pathlib import Path

import pytest
from command_line import Harness


@pytest.mark.parametrize(
    "words",
    [
        ["--frobnicate"],
        ["--budget", "soon"],
        ["--budget", "-5s"],
        ["--budget", "9" * 400 + "h"],
        ["--runs", "0"],
        ["--runs", "-1"],
        ["--runs", "many"],
        ["--runs", "1.5"],
        ["--runs", "²"],
        ["--runs", "9" * 5000],
        ["--runs", "100000000000"],
        ["--aux", "conv9x9"],
        ["--aux", ""],
        ["--aux", "\x1b[31m"],
        ["--seed", "-1"],
        ["--seed", "x"],
        ["--seed", "9" * 30],
        ["--dim", "x"],
        ["--workspace"],
        ["--device"],
    ],
    ids=lambda words: "=".join(word[:14].encode("unicode_escape").decode() for word in words),
)
def test_wrong_option_is_a_usage_error(words: list[str], harness: Harness, small_network: Path) -> None:
    """An option that does not exist or has no sensible value ends with exit 2, and nothing is measured."""
    outcome = harness("profile", "--device", "null01", small_network, *words)
    outcome.assert_refused(2)
    assert harness.state() == {}


@pytest.mark.parametrize(
    "words",
    [
        ["frobnicate"],
        ["lut"],
        ["lut", "frobnicate"],
        ["lut", "build", "--method", "guess"],
        ["lut", "diff", "one"],
        ["lut", "show", "--top", "-1"],
        ["lut", "export"],
        ["estimate"],
        ["validate"],
        ["devices"],
        ["devices", "show"],
        ["agent", "install"],
    ],
    ids=" ".join,
)
def test_wrong_command_is_a_usage_error(words: list[str], harness: Harness) -> None:
    """A command that does not exist or lacks its arguments ends with exit 2."""
    outcome = harness(*words)
    assert outcome.code == 2, str(outcome)
    outcome.assert_plain()
    assert harness.state() == {}


@pytest.mark.parametrize("name", ["out.xlsx", "out", "nowhere/out.csv", "."])
def test_export_to_what_cannot_be_written(name: str, unchanged: Harness, tmp_path: Path) -> None:
    """An export to an unknown format or an impossible place is refused and writes nothing."""
    unchanged("lut", "export", tmp_path / name, "--device", "null01").assert_refused(2, 3)


@pytest.mark.parametrize("option", ["--csv", "--html"])
@pytest.mark.parametrize("name", ["nowhere/out", "", "n" * 300])
def test_reports_to_what_cannot_be_written(
    option: str, name: str, unchanged: Harness, small_network: Path, tmp_path: Path
) -> None:
    """A report to an impossible place is refused with exit 2 or 3."""
    place = tmp_path / name if name else tmp_path
    unchanged("estimate", small_network, "--device", "null01", option, place).assert_refused(2, 3)
