"""Line plots as SVG: what is drawn, and that nothing from outside is in them."""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree

import pytest

from harness.report.line_plot import Axis, Mark, Series, line_plot, short_number

SVG = "{http://www.w3.org/2000/svg}"
FALLING = Series("edge", ((8, 400.0), (16, 200.0), (32, 150.0)), (Mark(16, "knee: 16"),))


def _lines(text: str) -> list[str]:
    """The paths of the series."""
    return [
        str(path.get("d"))
        for path in ElementTree.fromstring(text).iter(f"{SVG}path")
        if path.get("stroke-linejoin") == "round"
    ]


def _texts(text: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(text).iter(f"{SVG}text")]


def _points(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([0-9.]+),([0-9.]+)", path)]


def test_a_line_for_every_series() -> None:
    """Every series is one line through its points, further right for larger x and lower for smaller y, and is named."""
    found = line_plot([FALLING, Series("wide", ((8, 300.0), (16, 100.0)))], title="t", x=Axis("rows"), y=Axis("cycles"))
    first, second = map(_points, _lines(found))
    assert (len(first), len(second)) == (3, 2)
    assert first == sorted(first) and [y for _, y in first] == sorted(y for _, y in first)
    assert {"t", "rows", "cycles", "edge", "wide", "knee: 16"} <= set(_texts(found))


def test_marked_point_is_ringed() -> None:
    """The ring of a mark lies around its point, and only one series needs no legend."""
    found = line_plot([FALLING], title="t", x=Axis("rows"), y=Axis("cycles"))
    (ring,) = ElementTree.fromstring(found).iter(f"{SVG}circle")
    assert (float(str(ring.get("cx"))), float(str(ring.get("cy")))) == _points(_lines(found)[0])[1]
    assert "edge" not in _texts(found)


def test_logarithmic_axes_turn_factors_into_distances() -> None:
    """On logarithmic axes a power of x is a straight line of equal steps, and the axes say so."""
    series = Series("s", ((1, 1000.0), (10, 100.0), (100, 10.0), (1000, 1.0)))
    found = line_plot([series], title="t", x=Axis("x", "log"), y=Axis("y", "log"))
    points = _points(_lines(found)[0])
    steps = [(x1 - x0, y1 - y0) for (x0, y0), (x1, y1) in itertools.pairwise(points)]
    assert all(step == pytest.approx(steps[0], abs=0.2) for step in steps)
    assert {"x (logarithmic)", "y (logarithmic)", "10", "100"} <= set(_texts(found))


def test_linear_axis_of_amounts_begins_at_zero() -> None:
    """Amounts on a linear axis are drawn from 0, so that heights compare: half the value is half as high."""
    found = line_plot([Series("s", ((0, 200.0), (1, 100.0)))], title="t", x=Axis("x"), y=Axis("y"))
    (_, high), (_, low) = _points(_lines(found)[0])
    bottom = 480 - 72
    assert bottom - high == pytest.approx(2 * (bottom - low), abs=0.2) and "0" in _texts(found)


def test_missing_values_leave_a_gap() -> None:
    """A point without a value is not drawn over: the line ends before it and begins anew after it."""
    series = Series("s", ((1, 5.0), (2, 4.0), (3, None), (4, 3.0), (5, 2.0)))
    (path,) = _lines(line_plot([series], title="t", x=Axis("x"), y=Axis("y")))
    assert re.sub(r"[0-9.,]", "", path) == "MLML"


def test_own_ticks() -> None:
    """Ticks that are given are written under their values; of those that would touch, some are left out."""
    axis = Axis("size", "log", ((8, "8K"), (16, "16K"), (32, "32K")))
    assert {"8K", "16K", "32K"} <= set(_texts(line_plot([FALLING], title="t", x=axis, y=Axis("y"))))
    crowded = Axis("size", ticks=tuple((8 + at / 10, f"a long name {at}") for at in range(240)))
    shown = [text for text in _texts(line_plot([FALLING], title="t", x=crowded, y=Axis("y"))) if "long" in text]
    assert 1 < len(shown) < 20


def test_nothing_from_names_becomes_markup() -> None:
    """Names and labels are text, whatever is in them, and the file asks for nothing outside it."""
    name = '</text><script href="http://x.invalid/">&\x1b[31m'
    series = [Series(name, ((1, 1.0), (2, 2.0)), (Mark(1, name),)), Series("b", ((1, 2.0),))]
    found = line_plot(series, title=name, x=Axis(name, ticks=((1, name),)), y=Axis(name))
    tags = {each.tag.removeprefix(SVG) for each in ElementTree.fromstring(found).iter()}
    assert tags <= {"svg", "title", "rect", "text", "path", "circle"}
    attributes = {key for each in ElementTree.fromstring(found).iter() for key in each.attrib}
    assert not attributes & {"href", "src", "style", "onload"} and "url(" not in found and "@import" not in found


@pytest.mark.parametrize(
    ("series", "scale"),
    [((), "linear"), ((Series("s", ((1, None),)),), "linear"), ((Series("s", ((1, 0.0), (2, 1.0))),), "log")],
    ids=["no series", "no value", "no logarithm"],
)
def test_what_cannot_be_drawn(series: tuple[Series, ...], scale: str) -> None:
    """Without a value there is nothing to draw, nor is there a logarithm of 0."""
    with pytest.raises(ValueError, match=r"point|logarithmic"):
        line_plot(series, title="t", x=Axis("x"), y=Axis("y", "log" if scale == "log" else "linear"))


def test_one_point_alone() -> None:
    """A single point, or values that are all alike, still have axes around them."""
    for points in (((5, 7.0),), ((1, 7.0), (2, 7.0)), ((0, 0.0),)):
        assert _lines(line_plot([Series("s", points)], title="t", x=Axis("x"), y=Axis("y")))
    assert _lines(line_plot([Series("s", ((5, 7.0),))], title="t", x=Axis("x", "log"), y=Axis("y", "log")))


def test_numbers_of_ticks() -> None:
    """Large numbers of ticks are short."""
    values = (0, 0.25, 950, 1500, 2e6, 17.5e9, 1e12)
    assert [short_number(value) for value in values] == ["0", "0.25", "950", "1.5k", "2M", "17.5G", "1T"]
