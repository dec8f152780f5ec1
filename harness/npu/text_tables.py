"""Results as text: tables and labelled lines, which the command line lays out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NAME_WIDTH = 48
"""Characters of a layer's name in a table."""


@dataclass(frozen=True)
class Table:
    """Columns of text; the first `left` of them, and with `bars` the last one, are flush left."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1
    bars: bool = False


@dataclass(frozen=True)
class Facts:
    """Lines of text, each after a label."""

    lines: Sequence[tuple[str, str]]


Part = Table | Facts | str
"""A part of a text report; a str is a separate line."""
