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
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from harness.errors import ErrorRecord, HarnessError, NetworksRefused, advice
from harness.files import spreadsheet_csv, write_whole
from harness.text import Part, Table, dim_options, printable, shortened

SCHEMA_VERSION = 1


def print_json(**fields: Any) -> None:
    """Print one JSON object."""
    print(json.dumps({"schema_version": SCHEMA_VERSION, **fields}, allow_nan=False, ensure_ascii=True))


def print_error(error: HarnessError) -> None:
    """Print what happened, why, and the next step, each on its own line; refused networks have a line each."""
    reasons = error.why.split("\n") if isinstance(error, NetworksRefused) else [error.why]
    step = advice(error, dim_options)
    lines = (("error", error.what), *(("  why", reason) for reason in reasons), ("  next", step))
    for label, text in lines:
        if text:
            _print_folded(printable(shortened(text)), sys.stderr, f"{label}: ")


def error_fields(error: ErrorRecord) -> dict[str, Any]:
    """Return an error as JSON."""
    fields = {**asdict(error), "next_step": advice(error, dim_options)}
    return {key: value for key, value in fields.items() if key != "trace"}


def note(text: str) -> None:
    """Print a line on stderr, apart from the result but after what was printed of it: a log may hold both."""
    with contextlib.suppress(OSError):  # the next line of the result raises it
        sys.stdout.flush()
    _print_folded(printable(text), sys.stderr)


def print_line(text: str, head: str = "") -> None:
    """Print a line of the result after a head; two spaces separate its parts."""
    _print_folded(printable(text), sys.stdout, head)


def _print_folded(text: str, stream: TextIO, head: str = "") -> None:
    """Print a line after a head; on a terminal a long one is broken into several, but never within a figure."""
    width = _width_of(stream)
    if width is not None and len(head + text) > width:
        from harness.cli.terminal.columns import fold_line

        text = f"\n{' ' * len(head)}".join(fold_line(text, width - len(head)))
    try:
        print(head + text, file=stream)
    except BrokenPipeError:
        raise
    except OSError:  # a full disk
        if stream is sys.stdout:
            raise
        discard(stream)  # the result and the exit code do not depend on lines beside them


def discard(stream: TextIO) -> None:
    """Write nothing more to a stream, and keep the interpreter from flushing again what could not be written."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _width_of(stream: TextIO | None) -> int | None:
    """Return the number of columns if the stream is a terminal."""
    return shutil.get_terminal_size().columns if stream is not None and stream.isatty() else None


def erase_line() -> None:
    """Erase the line that a process drew on stderr before it was killed, and show the cursor that it hid."""
    if sys.stderr.isatty():
        print("\r\x1b[2K\x1b[?25h", end="", file=sys.stderr, flush=True)


def note_from_signal(text: str) -> None:
    """Print a line on stderr from a signal handler; on a terminal, below the line of progress and the echo of Ctrl-C.

    The signal may have come in the middle of a write to stderr. Its stream must not be entered a second time, which can
    end the interpreter, so the line goes to the descriptor.
    """
    try:
        before = "\n" if sys.stderr.isatty() else ""
        os.write(sys.stderr.fileno(), f"{before}{printable(text)}\n".encode())
    except (OSError, ValueError):  # a stream in memory has no descriptor
        if not isinstance(sys.stderr, io.TextIOWrapper):
            note(text)


def progress_note(text: str) -> None:
    """Print a line on stderr if it is a terminal."""
    if sys.stderr.isatty():
        note(text)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1, *, bars: bool = False) -> None:
    """Print aligned columns as `Table` describes them, fitted to the terminal if stdout is one.

    A column without any cell is left out.
    """
    from harness.cli.terminal.columns import lay_out

    kept = [at for at in range(len(header)) if not (rows and at) or any(row[at] for row in rows)]
    heads, cells = [printable(header[at]) for at in kept], [[printable(row[at]) for at in kept] for row in rows]
    flush = sum(at < left for at in kept)
    print("\n".join(lay_out(heads, cells, flush, bars=bars, width=_width_of(sys.stdout))))


def print_report(parts: Sequence[Part]) -> None:
    """Print tables and labelled lines with a blank line between them; a str is the title of the next part."""
    for number, part in enumerate(parts):
        if number and not isinstance(parts[number - 1], str):
            print()
        if isinstance(part, str):
            print_line(part)
        elif isinstance(part, Table):
            print_table(part.header, part.rows, part.left, bars=part.bars)
        else:
            for label, text in part:
                print_line(text, f"{label:<13}")


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
