"""Writes docs/cli.md from the help texts: `make docs`. A test fails where the file is out of date."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
    """What `harness COMMAND --help` prints at a fixed width."""
    environment = {**os.environ, "COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1"}
    words = [sys.executable, "-m", "harness", *command, "--help"]
    return subprocess.run(words, check=True, capture_output=True, text=True, env=environment).stdout.strip()


def page() -> str:
    """The whole page."""
    parts = ["# Command line\n\nWritten by `make docs` from the help texts.\n"]
    for command in COMMANDS:
        parts.append(f"## `{' '.join(('harness', *command))}`\n\n```text\n{help_of(command)}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
