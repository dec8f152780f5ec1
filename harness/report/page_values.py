"""What a page shows, as plain values: tables, figures, facts, and files to save."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass

from harness.files import spreadsheet_csv


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
