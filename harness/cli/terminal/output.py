"""Print results to stdout and everything else to stderr; text from files and devices is made printable first."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import HarnessError, NetworksRefused
from harness.files import spreadsheet_csv, write_whole
from harness.npu.text_tables import Part, Table
from harness.text import milliseconds, printable, shortened

SCHEMA_VERSION = 1


def print_json(**fields: Any) -> None:
    """Print one JSON object."""
    print(json.dumps({"schema_version": SCHEMA_VERSION, **fields}, allow_nan=False, ensure_ascii=True))


def print_error(error: HarnessError) -> None:
    """Print what happened, why, and the next step, each on its own line; refused networks have a line each."""
    reasons = error.why.split("\n") if isinstance(error, NetworksRefused) else [error.why]
    lines = (("error", error.what), *(("  why", reason) for reason in reasons), ("  next", error.next_step))
    for label, text in lines:
        if text:
            print(f"{label}: {printable(shortened(text))}", file=sys.stderr)


def note(text: str) -> None:
    """Print a line beside the result."""
    print(printable(text), file=sys.stderr)


def note_from_signal(text: str) -> None:
    """Print a line beside the result from a signal handler.

    The signal may have come in the middle of a write to stderr. Its stream must not be entered a second time, which can
    end the interpreter, so the line goes to the descriptor.
    """
    try:
        os.write(sys.stderr.fileno(), f"{printable(text)}\n".encode())
    except (OSError, ValueError):  # a stream in memory has no descriptor
        if not isinstance(sys.stderr, io.TextIOWrapper):
            note(text)


def progress_note(text: str) -> None:
    """Print a line beside the result if stderr is a terminal."""
    if sys.stderr.isatty():
        note(text)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1, *, bars: bool = False) -> None:
    """Print aligned columns as `Table` describes them, fitted to the terminal if stdout is one."""
    from harness.cli.terminal.columns import lay_out

    watched = sys.stdout is not None and sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if watched else None
    heads, cells = [printable(name) for name in header], [[printable(cell) for cell in row] for row in rows]
    print("\n".join(lay_out(heads, cells, left, bars=bars, width=width)))


def print_report(parts: Sequence[Part]) -> None:
    """Print tables and labelled lines with a blank line between them; a str is the title of the next part."""
    for number, part in enumerate(parts):
        if number and not isinstance(parts[number - 1], str):
            print()
        if isinstance(part, str):
            print(printable(part))
        elif isinstance(part, Table):
            print_table(part.header, part.rows, part.left, bars=part.bars)
        else:
            for label, text in part.lines:
                print(f"{label:<13}{printable(text)}")


def write_result(path: Path, content: str | bytes) -> None:
    """Write a file whole, or to a pipe or device such as /dev/stdout; raises ConfigurationError."""
    encoded = content.encode() if isinstance(content, str) else content
    with contextlib.suppress(OSError):
        mode = path.stat().st_mode
        if stat.S_ISCHR(mode) or stat.S_ISFIFO(mode):
            path.write_bytes(encoded)
            return
    write_whole(path, encoded)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as CSV; raises ConfigurationError."""
    names = list(rows[0])
    write_result(path, spreadsheet_csv(names, ([row[name] for name in names] for row in rows)))


def percent(fraction: float) -> str:
    """Return a signed percentage."""
    return f"{fraction:+.1%}"


def interval_ms(bounds: tuple[float, float]) -> str:
    """Return an interval in milliseconds."""
    return f"[{milliseconds(bounds[0])}, {milliseconds(bounds[1])}]"
