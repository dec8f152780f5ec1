"""Write docs/cli.md from the help texts: `make docs`. A test fails if the page is out of date."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path
from typing import Any

from typer.main import get_command

from harness.cli.app import program

PAGE = Path(__file__).with_name("cli.md")
_SHARED = "Options of the compiler:"
"""The options that several commands have; the page lists them once."""


def commands(group: Any = None) -> list[tuple[str, ...]]:
    """Return every command of the program as its words, the program itself first, groups without their own help."""
    found: list[tuple[str, ...]] = [()] if group is None else []
    for name, command in (group or get_command(program())).commands.items():
        nested = commands(command) if hasattr(command, "commands") else [()]
        found += [(name, *words) for words in nested]
    return found


def help_of(command: tuple[str, ...]) -> str:
    """Return what `harness COMMAND --help` prints at a fixed width."""
    os.environ.update({"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1"})
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        program()([*command, "--help"], prog_name="harness")
    return printed.getvalue().strip()


def page() -> str:
    """Return the whole page."""
    parts = ["# Command line\n\nThis page has the help text of every command. `make docs` writes it.\n"]
    owners: dict[str, str] = {}
    for command in commands():
        name = " ".join(("harness", *command))
        text, _, shared = help_of(command).partition(_SHARED)
        if shared:
            owner = owners.setdefault(shared, name)
            text += f"{_SHARED}{shared}" if owner == name else f"{_SHARED}\n  Those of `{owner}`."
        parts.append(f"## `{name}`\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
