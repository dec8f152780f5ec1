"""Results in notebooks: rows as a pandas frame, as an HTML table, and latencies as a plot of bars.

The plot is SVG text, so that it needs neither a script nor a connection where it is shown.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.files import write_whole
from harness.text import counted, milliseconds, printable

if TYPE_CHECKING:
    import pandas

MOST_ROWS = 60
_ROW_PX, _NAME_PX, _BAR_PX, _VALUE_PX, _TITLE_PX = 22, 230, 420, 190, 30
_LONGEST_NAME = 34
_COLOURS = {True: "#0072b2", False: "#e69f00"}


@dataclass(frozen=True)
class LatencyBar:
    """A latency to draw, with its 95 % interval where it has one; `is_measured` selects the colour.

    It is the latency of a network without so many layers as it `lacks`, because theirs are unknown.
    """

    name: str
    latency_s: float
    interval_s: tuple[float, float] | None = None
    is_measured: bool = True
    lacks: int = 0

    @property
    def value(self) -> str:
        """The latency in milliseconds, with the ends of its interval."""
        if self.interval_s is None:
            return f"{milliseconds(self.latency_s)} ms" + (
                f" without {counted(self.lacks, 'layer')}" if self.lacks else ""
            )
        low_s, high_s = self.interval_s
        return f"{milliseconds(self.latency_s)} ms [{milliseconds(low_s)}, {milliseconds(high_s)}]"


@dataclass(frozen=True)
class BarPlot:
    """A plot with one bar for each latency, the first on top, and whiskers for the intervals.

    Notebooks show it; `save` writes it to a file.
    """

    title: str
    bars: tuple[LatencyBar, ...]

    def to_svg(self) -> str:
        """Return the plot as SVG; predicted latencies have another colour than measured ones."""
        longest_s = max((max(bar.latency_s, *(bar.interval_s or (0.0,))) for bar in self.bars), default=0.0)
        px_per_s = _BAR_PX / longest_s if longest_s > 0 else 0.0
        rows = "".join(_row(bar, _TITLE_PX + at * _ROW_PX, px_per_s) for at, bar in enumerate(self.bars))
        width, height = _NAME_PX + _BAR_PX + _VALUE_PX, _TITLE_PX + _ROW_PX * len(self.bars) + 6
        title = f'<text x="4" y="18" font-weight="bold">{escape(printable(self.title, 110))}</text>'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
            f' font-family="system-ui, sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
            f"{title}{rows}</svg>"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plot to an SVG file."""
        write_whole(Path(path), self.to_svg().encode())

    def _repr_html_(self) -> str:
        return self.to_svg()


def _row(bar: LatencyBar, top: float, px_per_s: float) -> str:
    """Return name, bar, whisker and value of one latency."""
    middle, end = top + _ROW_PX / 2, _NAME_PX + bar.latency_s * px_per_s
    name = f'<text x="{_NAME_PX - 6}" y="{middle + 4}" text-anchor="end">{escape(printable(bar.name, _LONGEST_NAME))}'
    parts = [f"{name}<title>{escape(printable(bar.name, 200))}</title></text>"]
    colour, height = _COLOURS[bar.is_measured], _ROW_PX - 7
    parts.append(f'<rect x="{_NAME_PX}" y="{top + 3}" width="{end - _NAME_PX:.1f}" height="{height}" fill="{colour}"/>')
    if bar.interval_s is not None:
        low, high = (_NAME_PX + bound * px_per_s for bound in bar.interval_s)
        parts.append(f'<path d="M{low:.1f} {middle}H{high:.1f}" stroke="#333" stroke-width="2"/>')
        end = max(end, high)
    parts.append(f'<text x="{end + 6:.1f}" y="{middle + 4}">{escape(bar.value)}</text>')
    return "".join(parts)


def html_table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an HTML table of texts, of which none is taken as markup; a long table ends after MOST_ROWS rows."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(printable(cell, 200))}</td>" for cell in row) + "</tr>"
        for row in rows[:MOST_ROWS]
    )
    left_out = len(rows) - MOST_ROWS
    more = f"<p>{left_out} more rows: see to_pandas()</p>" if left_out > 0 else ""
    caption = f"<caption>{escape(printable(caption, 400))}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def frame(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> pandas.DataFrame:
    """Return rows as a frame, which has its columns also without rows."""
    import pandas

    return pandas.DataFrame(list(rows), columns=list(columns))
