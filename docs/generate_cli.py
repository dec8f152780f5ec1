"""Write docs/cli.md from the help texts: `make docs`. A test fails if the page is out of date."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

from harness.cli.app import app

PAGE = Path(__file__).with_name("cli.md")
COMMANDS = (
    (),
    ("demo",),
    ("profile",),
    ("lut", "build"),
    ("lut", "show"),
    ("lut", "diff"),
    ("lut", "check"),
    ("lut", "export"),
    ("estimate",),
    ("validate",),
    ("worker",),
    ("devices", "list"),
    ("devices", "show"),
    ("devices", "check"),
    ("devices", "mark"),
    ("devices", "golden"),
    ("agent", "install"),
    ("nightly", "run"),
    ("nightly", "status"),
    ("nightly", "install"),
    ("npu", "compile"),
    ("npu", "run"),
    ("npu", "pipeline"),
    ("npu", "disassemble"),
    ("npu", "trace"),
    ("npu", "split"),
    ("npu", "sweep"),
)


def help_of(command: tuple[str, ...]) -> str:
    """Return what `harness COMMAND --help` prints at a fixed width."""
    os.environ.update({"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1"})
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        app([*command, "--help"], prog_name="harness")
    return printed.getvalue().strip()


def page() -> str:
    """Return the whole page."""
    parts = ["# Command line\n\nWritten by `make docs` from the help texts.\n"]
    for command in COMMANDS:
        parts.append(f"## `{' '.join(('harness', *command))}`\n\n```text\n{help_of(command)}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
