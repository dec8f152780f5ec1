"""Columns of text: as wide as their cells, or fitted to the width of a terminal.

On a terminal, heads are stacked and sentences are folded at words; if that does not suffice, names are cut in the
middle, where they differ least. The first column keeps a third of the width, and its names that differ are shown
different. Numbers are neither cut nor folded: a number without its end is a different number. Columns that do not fit
are printed below the others, after the first column.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_GAP = 2
_LEAST_TEXT = 8
_LEAST_WORD = 12
_NUMERIC = re.compile(
    r"(?=.{0,8}\Z|\W{0,3}\d.{0,30}\Z)(?!.*\d/\d)"
    r"(?:[\W\d_]|(?<=[0-9])e(?=[-+][0-9]))*(?:[A-Za-zµ]{1,4}|(?<=[0-9] )[a-zµ]+/[a-z]+)?\Z"
)
"""Numbers, intervals and numbers with a unit; other cells are text, even long ones of digits and symbols."""
_BAR = re.compile(r"█*(?: ◀ .*)?\Z")
_SENTENCE_WORDS = 3
_LONG_WORD = 16
_WORDS = re.compile(r"(?:`[^`]*`|[0-9] (?=%|(?:ns|µs|ms|s)\b)|\S)+")


def _cell_len(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii() and text.isprintable():
        return len(text)
    from rich import cells  # loads tables of all characters

    return cells.cell_len(text)


@dataclass(frozen=True)
class _Column:
    """The head and the cells of a column; text may be cut or folded."""

    head: str
    cells: Sequence[str]
    is_left: bool
    is_text: bool
    is_name: bool

    @property
    def width(self) -> int:
        """The width of the longest cell."""
        return max((_cell_len(one) for one in self.cells), default=0)

    @property
    def has_sentences(self) -> bool:
        """Whether a cell is folded, and not cut, where the column is narrow."""
        return any(len(one.split()) >= _SENTENCE_WORDS for one in self.cells)

    def least(self, room: int) -> int:
        """Return the width below which the column cannot be shown in a table of this width."""
        if not self.is_text:
            return self.width
        words = [word for one in self.cells if len(one.split()) >= _SENTENCE_WORDS for word in one.split()]
        numbers = [_cell_len(one) for one in self.cells if _NUMERIC.match(one)]
        few = room // 3 if self.is_name else min(room // 5, _LEAST_WORD)
        head = self.head.split()
        least = max((_LEAST_TEXT, few, *numbers, *(min(_cell_len(word), _LONG_WORD) for word in (*words, *head))))
        names = set(self.cells) if self.is_name else set()
        while least < self.width and len({middle_cut(one, least) for one in names}) < len(names):
            least += 1
        return min(max((self.width, *map(_cell_len, head))), least)


def lay_out(
    header: Sequence[str], rows: Sequence[Sequence[str]], left: int, *, bars: bool = False, width: int | None = None
) -> list[str]:
    """Return the lines of a table, fitted to `width` if given.

    The first `left` columns are flush left, and so is the last one if it holds bars or sentences.
    """
    last = len(header) - 1 if bars or any(len(row[-1].split()) > _SENTENCE_WORDS for row in rows) else None
    columns = [
        _Column(
            head,
            [row[at] for row in rows],
            at < left or at == last,
            any(not _NUMERIC.match(row[at]) and not _BAR.match(row[at]) for row in rows),
            at == 0,
        )
        for at, head in enumerate(header)
    ]
    widths = [max(_cell_len(one.head), one.width) for one in columns]
    if width is None or sum(widths) + _GAP * (len(widths) - 1) <= width:
        return [_line([[one] for one in row], columns, widths, 0) for row in (header, *rows)]
    heads = [_head_lines(one.head, one) for one in columns]
    widths = [max(one.width, *(_cell_len(line) for line in head), 1) for one, head in zip(columns, heads, strict=True)]
    _shrink(widths, columns, [one.least(width) for one in columns], width - _GAP * (len(widths) - 1))
    beside = sum(end <= width for end in itertools.accumulate(widths, lambda end, one: end + _GAP + one))
    if 1 < beside < len(columns):
        upper, lower = range(beside), (0, *range(beside, len(columns)))
        parts = ((upper, min(left, beside), False), (lower, min(left, 1 + max(0, left - beside)), bars))
        return [
            line
            for chosen, flush, has_bars in parts
            for line in lay_out(
                [header[at] for at in chosen],
                [[row[at] for at in chosen] for row in rows],
                flush,
                bars=has_bars,
                width=width,
            )
        ]
    heads = [
        [middle_cut(line, size) for line in _folded(_WORDS.findall(head), size)]
        for head, size in zip(header, widths, strict=True)
    ]
    tall = max(map(len, heads))
    heads = [[""] * (tall - len(head)) + head for head in heads]
    lines = list(_lines(heads, columns, widths))
    for row in rows:
        cells = [_fitted(cell, size) for cell, size in zip(row, widths, strict=True)]
        lines += _lines(cells, columns, widths)
    return lines


def middle_cut(text: str, width: int) -> str:
    """Return a text of at most `width` columns, with … in place of its middle if it is longer."""
    if _cell_len(text) <= width:
        return text
    if width <= 1:
        return "…"[:width]
    kept = min(width - 1, len(text) - 1)
    while True:
        tail = kept // 2
        found = f"{text[: kept - tail]}…{text[len(text) - tail :]}"
        if _cell_len(found) <= width:
            return found
        kept -= 1


def fold_line(text: str, width: int) -> list[str]:
    """Return a line as several of at most `width` columns; a longer word stays whole.

    It breaks where two spaces separate its parts, and a part that is too long at words. A command in backticks is one
    word, and so is a number with its unit.
    """
    pieces: list[str] = []
    for part in re.split(" {2,}", text):
        pieces += [part] if _cell_len(part) <= width else _folded(_WORDS.findall(part), width)
    return _folded(pieces, width, gap="  ")


def _head_lines(head: str, column: _Column) -> list[str]:
    """Return the head on several lines, none longer than the cells or its own longest word."""
    words = _WORDS.findall(head)
    longest = max((_cell_len(word) for word in words), default=0)
    return _folded(words, max(longest, column.width)) or [""]


def _shrink(widths: list[int], columns: Sequence[_Column], least: Sequence[int], room: int) -> None:
    """Narrow the widest sentences, then the widest text, until all columns fit, or no text can be narrower."""
    while sum(widths) > room:
        wide = [at for at, one in enumerate(columns) if one.is_text and widths[at] > least[at]]
        if not wide:
            return
        wide = [at for at in wide if columns[at].has_sentences] or wide
        widths[max(wide, key=lambda at: widths[at])] -= 1


def _fitted(cell: str, width: int) -> list[str]:
    """Return a cell on one line, or a sentence folded at its words."""
    if _cell_len(cell) <= width:
        return [cell]
    words = cell.split()
    if len(words) < _SENTENCE_WORDS:
        return [middle_cut(cell, width)]
    return _folded([middle_cut(word, width) for word in words], width)


def _folded(words: Sequence[str], width: int, gap: str = " ") -> list[str]:
    lines: list[str] = []
    for word in words:
        if lines and _cell_len(lines[-1] + gap + word) <= width:
            lines[-1] += gap + word
        else:
            lines.append(word)
    return lines


def _lines(cells: Sequence[Sequence[str]], columns: Sequence[_Column], widths: Sequence[int]) -> Iterator[str]:
    for at in range(max(map(len, cells), default=0)):
        yield _line(cells, columns, widths, at)


def _line(cells: Sequence[Sequence[str]], columns: Sequence[_Column], widths: Sequence[int], at: int) -> str:
    parts = []
    for lines, column, width in zip(cells, columns, widths, strict=True):
        text = lines[at] if at < len(lines) else ""
        space = " " * (width - _cell_len(text))
        parts.append(text + space if column.is_left else space + text)
    return (" " * _GAP).join(parts).rstrip()
