"""Line plots as SVG: one self-contained file that every browser shows, without scripts and without requests."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.text import printable

Scale = Literal["linear", "log"]

_WIDTH, _HEIGHT = 860, 480
_LEFT, _TOP, _BOTTOM = 84, 56, 72
_RIGHT_ALONE, _RIGHT_LEGEND = 36, 210
_PAD = 0.05
# Okabe and Ito's palette, distinct for colour-blind readers, without its yellow, which is too light for lines.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
_SHAPES = (
    "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0Z",
    "M-3.5,-3.5H3.5V3.5H-3.5Z",
    "M0,-5L4.5,3.5H-4.5Z",
    "M0,-5L5,0L0,5L-5,0Z",
)
_CHARACTER_PX = 6.6
_LABEL_SPOTS = (
    (12, -14, "start"), (12, 24, "start"), (-12, 24, "end"), (-12, -14, "end"),
    (12, -34, "start"), (12, 44, "start"), (-12, 44, "end"), (-12, -34, "end"), (12, -54, "start"), (12, 64, "start"),
)  # fmt: skip
_MAX_NAME = 27
_MAX_TITLE = 110


@dataclass(frozen=True)
class Mark:
    """A point of a series that is ringed and labelled: the one at `x`."""

    x: float
    label: str


@dataclass(frozen=True)
class Series:
    """A line through (x, y) in the order given; a y of None leaves a gap."""

    name: str
    points: tuple[tuple[float, float | None], ...]
    marks: tuple[Mark, ...] = ()

    @property
    def known(self) -> list[tuple[float, float]]:
        """The points that have a value."""
        return [(x, y) for x, y in self.points if y is not None]


@dataclass(frozen=True)
class Axis:
    """An axis; `ticks` are values with their texts, chosen by the plot where there are none."""

    label: str
    scale: Scale = "linear"
    ticks: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True)
class _Scaled:
    """An axis laid out over pixels from `begin_px` to `end_px`."""

    axis: Axis
    low: float
    high: float
    begin_px: float
    end_px: float

    def px(self, value: float) -> float:
        low, high, at = (math.log(each) for each in (self.low, self.high, value)) if self.is_log else (
            self.low, self.high, value
        )  # fmt: skip
        return self.begin_px + (at - low) / (high - low) * (self.end_px - self.begin_px)

    @property
    def is_log(self) -> bool:
        return self.axis.scale == "log"

    def ticks(self) -> list[tuple[float, str]]:
        if self.axis.ticks:
            return [tick for tick in self.axis.ticks if self.low <= tick[0] <= self.high]
        values = _log_ticks(self.low, self.high) if self.is_log else []
        return [(value, short_number(value)) for value in values or _linear_ticks(self.low, self.high)]


def line_plot(series: Sequence[Series], *, title: str, x: Axis, y: Axis) -> str:
    """An SVG file with a line for every series, axes with ticks and labels, marks, and a legend for several series.

    Linear axes of values from 0 on begin at 0 vertically. Raises ValueError without any point that has a value, and
    for values that are not above 0 on a logarithmic axis.
    """
    known = [point for each in series for point in each.known]
    if not known:
        raise ValueError("there is no point to draw")
    right = _RIGHT_LEGEND if len(series) > 1 else _RIGHT_ALONE
    every_x = [at for each in series for at, _ in each.points]
    across = _Scaled(x, *_range(every_x, x.scale), _LEFT, _WIDTH - right)
    low, high = _range([value for _, value in known], y.scale)
    if y.scale == "linear" and min(value for _, value in known) >= 0:
        low = 0.0
    up = _Scaled(y, low, high, _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
        ' role="img" font-family="system-ui, sans-serif" font-size="12" fill="#333">',
        f"<title>{_text(title, 400)}</title>",
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="{_LEFT}" y="28" font-size="15" font-weight="600">{_text(title, _MAX_TITLE)}</text>',
        *_frame(across, up),
    ]
    drawn = [*zip(series, itertools.cycle(_COLOURS), _shapes(), strict=False)]
    for each, colour, shape in drawn:
        parts += _line(each, colour, shape, across, up)
    parts += _marks(drawn, across, up)
    if len(series) > 1:
        parts += _legend(drawn, up)
    return "\n".join((*parts, "</svg>", ""))


def short_number(value: float) -> str:
    """A number of a tick: 1500000 as 1.5M; powers of 1000."""
    for suffix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.4g}{suffix}"
    return f"{value:.4g}"


def _shapes() -> Iterator[str]:
    """Marker shapes; where colours come again, they come with other shapes."""
    return itertools.cycle(_SHAPES)


def _range(values: Sequence[float], scale: Scale) -> tuple[float, float]:
    """Ends of an axis around the values, with some room."""
    low, high = min(values), max(values)
    if scale == "log":
        if low <= 0:
            raise ValueError(f"a logarithmic axis has no place for {low}")
        room = (high / low) ** _PAD if high > low else 2.0
        return low / room, high * room
    room = (high - low) * _PAD or abs(high) * _PAD or 1.0
    return low - room, high + room


def _linear_ticks(low: float, high: float, wanted: int = 6) -> list[float]:
    rough = (high - low) / wanted
    power: float = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.75)
    return [at * step for at in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, with 2 and 5 between them where they are few; none where even those are too few."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 2, 5)):
        found = [factor * 10.0**exponent for exponent in exponents for factor in factors]
        inside = [value for value in found if low <= value <= high]
        if len(inside) >= 3:
            return inside[:: math.ceil(len(inside) / 8)]
    return []


def _frame(across: _Scaled, up: _Scaled) -> Iterator[str]:
    """Grid, axes, ticks and labels; of ticks whose texts would touch, the first ones."""
    left, right, bottom, top = across.begin_px, across.end_px, up.begin_px, up.end_px
    for value, text in up.ticks():
        at = up.px(value)
        yield f'<path d="M{left:.1f},{at:.1f}H{right:.1f}" stroke="#ddd"/>'
        yield f'<text x="{left - 8:.1f}" y="{at + 4:.1f}" text-anchor="end">{_text(text)}</text>'
    taken = -math.inf
    for value, text in across.ticks():
        at, half = across.px(value), len(text) * _CHARACTER_PX / 2
        yield f'<path d="M{at:.1f},{bottom:.1f}v5" stroke="#333"/>'
        if at - half > taken:
            taken = at + half + 4
            yield f'<text x="{at:.1f}" y="{bottom + 20:.1f}" text-anchor="middle">{_text(text)}</text>'
    yield f'<path d="M{left:.1f},{top:.1f}V{bottom:.1f}H{right:.1f}" fill="none" stroke="#333"/>'
    middle, label = (left + right) / 2, f"{across.axis.label}{_log_note(across)}"
    yield f'<text x="{middle:.1f}" y="{bottom + 46:.1f}" text-anchor="middle" font-size="13">{_text(label)}</text>'
    where, label = f"22,{(top + bottom) / 2:.1f}", f"{up.axis.label}{_log_note(up)}"
    yield f'<text transform="translate({where}) rotate(-90)" text-anchor="middle" font-size="13">{_text(label)}</text>'


def _log_note(scaled: _Scaled) -> str:
    return " (logarithmic)" if scaled.is_log else ""


def _line(series: Series, colour: str, shape: str, across: _Scaled, up: _Scaled) -> Iterator[str]:
    path, pen = [], "M"
    for x, y in series.points:
        if y is None:
            pen = "M"
            continue
        path.append(f"{pen}{across.px(x):.1f},{up.px(y):.1f}")
        pen = "L"
    yield f'<path d="{"".join(path)}" fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"/>'
    texts = dict(across.axis.ticks)
    for x, y in series.known:
        said = f"{series.name}: {texts.get(x) or short_number(x)}, {y:,.6g}"
        where = f"translate({across.px(x):.1f},{up.px(y):.1f})"
        yield f'<path d="{shape}" transform="{where}" fill="{colour}"><title>{_text(said)}</title></path>'


def _marks(drawn: Sequence[tuple[Series, str, str]], across: _Scaled, up: _Scaled) -> Iterator[str]:
    """A ring around every marked point, and its label where it covers least."""
    busy = [spot for series, _, _ in drawn for spot in _spots(series, across, up)]
    for series, colour, _ in drawn:
        values = dict(series.known)
        for mark in series.marks:
            x, y = across.px(mark.x), up.px(values[mark.x])
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="9" fill="none" stroke="{colour}" stroke-width="2"/>'
            label = printable(mark.label, _MAX_TITLE)
            width = len(label) * _CHARACTER_PX
            covered = [(_covered(spot, x, y, width, busy), spot) for spot in _LABEL_SPOTS]
            shift, lift, anchor = min(covered, key=lambda pair: pair[0])[1]
            begin = x + shift - (width if anchor == "end" else 0)
            # The next label keeps off this one.
            busy += [(begin + at, y + lift - 5) for at in range(0, int(width) + 1, 4)] * 10
            yield (
                f'<text x="{x + shift:.1f}" y="{y + lift:.1f}" text-anchor="{anchor}" fill="{colour}" font-weight="600"'
                f' stroke="#fff" stroke-width="3" paint-order="stroke">{_text(label)}</text>'
            )


def _covered(
    spot: tuple[int, int, str], x: float, y: float, width: float, busy: Sequence[tuple[float, float]]
) -> float:
    """How much of what is drawn already a label of that width would cover; leaving the frame is worst."""
    begin, base = x + spot[0] - (width if spot[2] == "end" else 0), y + spot[1]
    outside = begin < _LEFT or begin + width > _WIDTH or not _TOP < base < _HEIGHT - _BOTTOM
    return 1e6 * outside + sum(begin - 4 < px < begin + width + 4 and base - 15 < py < base + 5 for px, py in busy)


def _spots(series: Series, across: _Scaled, up: _Scaled) -> Iterator[tuple[float, float]]:
    """Pixels along a line, close together."""
    pixels = [(across.px(x), up.px(y)) for x, y in series.known]
    for (x, y), (next_x, next_y) in itertools.pairwise(pixels):
        steps = max(1, int(math.hypot(next_x - x, next_y - y) / 4))
        yield from ((x + (next_x - x) * at / steps, y + (next_y - y) * at / steps) for at in range(steps))
    yield from pixels[-1:]


def _legend(drawn: Sequence[tuple[Series, str, str]], up: _Scaled) -> Iterator[str]:
    """Names in the order in which the lines end, from the top."""
    left = _WIDTH - _RIGHT_LEGEND + 16

    def last_px(item: tuple[Series, str, str]) -> float:
        return up.px(item[0].known[-1][1]) if item[0].known else math.inf

    for row, (series, colour, shape) in enumerate(sorted(drawn, key=last_px)):
        at = _TOP + 10 + 20 * row
        yield f'<path d="M{left},{at}h24" stroke="{colour}" stroke-width="2"/>'
        yield f'<path d="{shape}" transform="translate({left + 12},{at})" fill="{colour}"/>'
        yield f'<text x="{left + 31}" y="{at + 4}">{_text(series.name, _MAX_NAME)}</text>'


def _text(text: str, limit: int = 200) -> str:
    return html.escape(printable(text, limit))
