"""What commands print: results to stdout, all else to stderr; nothing from a file or a device unescaped."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from harness.errors import HarnessError
from harness.text import printable

SCHEMA_VERSION = 1


def print_json(**fields: Any) -> None:
    """One JSON object on stdout."""
    print(json.dumps({"schema_version": SCHEMA_VERSION, **fields}, allow_nan=False, ensure_ascii=True))


def print_error(error: HarnessError) -> None:
    """What happened, why, and the next step, each on a line of its own."""
    print(f"error: {printable(error.what)}", file=sys.stderr)
    for label, text in (("why", error.why), ("next", error.next_step)):
        if text:
            print(f"  {label}: {printable(text)}", file=sys.stderr)


def note(text: str) -> None:
    """A line beside the result."""
    print(printable(text), file=sys.stderr)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> None:
    """Aligned columns, the first `left` of them flush left."""
    lines = [[printable(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        cells = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def milliseconds(seconds: float) -> str:
    """Milliseconds with as many digits as a latency deserves."""
    value = seconds * 1e3
    return f"{value:.1f}" if value >= 1000 else f"{value:.3f}" if value >= 1 else f"{value:.4f}"


def percent(fraction: float) -> str:
    """A signed percentage."""
    return f"{fraction:+.1%}"


def interval_ms(bounds: tuple[float, float]) -> str:
    """An interval in milliseconds."""
    return f"[{milliseconds(bounds[0])}, {milliseconds(bounds[1])}]"
