"""What a page shows, as plain values: tables, figures, facts, files to save, and numbers and names as text."""

from __future__ import annotations

import base64
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from harness.files import spreadsheet_csv
from harness.text import printable, signed_percent as plain_signed_percent

MINUS, DASH = "\N{MINUS SIGN}", "\N{EN DASH}"
ELLIPSIS, NARROW_SPACE = "\N{HORIZONTAL ELLIPSIS}", "\N{NARROW NO-BREAK SPACE}"
MAX_NAME = 400


@dataclass(frozen=True)
class ReportTable:
    """A table; the first column heads its row, and the columns in `words` are aligned left and sorted as text."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[int, ...] = (0,)
    total: tuple[str, ...] = ()


@dataclass(frozen=True)
class CaptionedFigure:
    """A figure as JSON, with its caption."""

    caption: str
    json: str


@dataclass(frozen=True)
class SavedFile:
    """A CSV file inside the page, under the name that a browser saves it by."""

    name: str
    text: str

    @classmethod
    def csv(cls, name: str, header: Iterable[str], rows: Iterable[Iterable[object]]) -> SavedFile:
        """Return the file of a table; no cell is a formula to a spreadsheet program."""
        return cls(name, spreadsheet_csv(header, rows))

    @property
    def address(self) -> str:
        """The content as a data URL."""
        encoded = base64.b64encode(self.text.encode("utf-8", "replace")).decode("ascii")
        return f"data:text/csv;charset=utf-8;base64,{encoded}"


@dataclass(frozen=True)
class Unit:
    """A unit of time; a whole column or axis has one unit, so that its figures can be compared."""

    symbol: str
    seconds: float

    def text(self, seconds: float, digits: int = 4) -> str:
        """Return a duration in this unit, without the symbol."""
        return significant(seconds / self.seconds, digits)

    def interval(self, bounds: tuple[float, float]) -> str:
        """Return a pair of durations in this unit, without the symbol."""
        return f"{self.text(bounds[0])} {DASH} {self.text(bounds[1])}"


UNITS = (Unit("ps", 1e-12), Unit("ns", 1e-9), Unit("µs", 1e-6), Unit("ms", 1e-3), Unit("s", 1.0))
_SMALLEST_OF_RUNS = 2


def unit_for(values: Iterable[float], smallest: int = _SMALLEST_OF_RUNS) -> Unit:
    """Return the largest unit not above the median of the values; `smallest` is an index of UNITS (default: µs)."""
    present = [abs(value) for value in values if value]
    middle = statistics.median(present) if present else 0.0
    fitting = [unit for unit in UNITS[smallest:] if unit.seconds <= middle * (1 + 1e-9)]
    return fitting[-1] if fitting else UNITS[smallest]


def duration(seconds: float) -> str:
    """Return a duration with a suitable unit."""
    unit = unit_for([seconds])
    return f"{unit.text(seconds)}{NARROW_SPACE}{unit.symbol}"


def significant(value: float, digits: int = 4) -> str:
    """Return a number with this many significant digits, without an exponent; integer digits are never dropped."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    exponent = int(f"{value:e}".partition("e")[2])
    rounded = int(f"{value:.{digits - 1}e}".partition("e")[2])
    decimals = min(12, max(0, digits - 1 - max(exponent, rounded)))
    return f"{value:,.{decimals}f}".replace("-", MINUS)


def percent(fraction: float, decimals: int = 1) -> str:
    """Return a fraction as a percentage."""
    return f"{100 * fraction:.{decimals}f}{NARROW_SPACE}%".replace("-", MINUS)


def signed_percent(fraction: float) -> str:
    """Return a fraction as a percentage, as the terminal does, with the space and the minus of a page."""
    return plain_signed_percent(fraction).replace("%", f"{NARROW_SPACE}%").replace("-", MINUS)


def display(text: str, limit: int = MAX_NAME) -> str:
    """Return text from a file or a device, made safe to show as a name."""
    return printable(text, limit)
