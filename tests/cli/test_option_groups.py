"""Options of commands that come from the fields of a dataclass."""

from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
import typer
from typer.testing import CliRunner

from device_agents.emulated_npu.compiler.options import option
from harness.cli.options.option_groups import Heading, OnlyFields, spread
from harness.cli.options.result_files import ResultCommand
from harness.errors import UsageError


@dataclass(frozen=True)
class Sizes:
    """Options with metadata, and one in typer's words."""

    kind: Literal["small", "large"] = option("small", "Which kind.")
    tile: tuple[int, int] | None = option(None, "A size.")
    fast: bool = option(True, "Not so fast.")
    names: tuple[str, ...] = option((), "Names.")
    count_bytes: int = option(3, "A number.", flag="--count", min=1)
    plain: Annotated[bool, typer.Option("--plain", help="Plain.")] = False


SEEN: list[tuple[Sizes, bool]] = []


@spread
def both(sizes: Sizes, json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """Take all fields."""
    SEEN.append((sizes, json))


@spread
def some(sizes: Annotated[Sizes, OnlyFields(("kind",))]) -> None:
    """Take one field."""
    SEEN.append((sizes, False))


@spread
def headed(sizes: Annotated[Sizes, Heading("Sizes")], json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """Take all fields under a heading."""
    SEEN.append((sizes, json))


app = typer.Typer(rich_markup_mode=None)
app.command("both")(both)
app.command("some")(some)
app.command("headed", cls=ResultCommand)(headed)


def _run(*words: str) -> Sizes:
    SEEN.clear()
    outcome = CliRunner().invoke(app, words, catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return SEEN[0][0]


def test_defaults_are_those_of_the_fields() -> None:
    """Without options the command gets the dataclass with its defaults."""
    assert _run("both") == _run("some") == Sizes()


def test_every_kind_of_field_has_its_option() -> None:
    """Choices, sizes, switches, repeated texts and renamed numbers reach their fields."""
    words = ("--kind", "large", "--tile", "3x4", "--no-fast", "--names", "a", "--names", "b", "--count", "5", "--plain")
    assert _run("both", *words) == Sizes("large", (3, 4), False, ("a", "b"), 5, True)


@pytest.mark.parametrize("words", [("some", "--tile", "3x4"), ("both", "--kind", "odd"), ("both", "--count", "0")])
def test_parser_refuses_what_a_field_does_not_allow(words: tuple[str, ...]) -> None:
    """Fields that a command leaves out, unknown choices and numbers beyond the limits are usage errors."""
    assert CliRunner().invoke(app, words).exit_code == 2


def test_malformed_size_is_a_usage_error() -> None:
    """A size that is not HxW is refused with an example."""
    with pytest.raises(UsageError, match="--tile 3 is not HxW"):
        CliRunner().invoke(app, ("both", "--tile", "3"), catch_exceptions=False)


def test_a_group_with_a_heading_follows_the_other_options() -> None:
    """Help lists the options of a dataclass under its heading, after those without one; the command is the same."""
    assert _run("headed", "--plain", "--count", "4") == Sizes(plain=True, count_bytes=4)
    own, _, group = CliRunner().invoke(app, ["headed", "--help"]).output.partition("Options:")[2].partition("Sizes:")
    assert "--json" in own and "--kind" not in own
    assert "--kind" in group and "--plain" in group and "--json" not in group
