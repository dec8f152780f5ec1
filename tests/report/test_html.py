"""The HTML report: correct figures, nothing loaded, no foreign script run, never half written."""

import html
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from bokeh_figures import figure_text
from page_browser import DEEP, Browser
from report_inputs import make_estimate, make_table, make_validation

from harness import files
from harness.errors import ConfigurationError
from harness.lut.table import IMPORT
from harness.report.figures import base_figure, figure_json, tick
from harness.report.html import ReportSource, render, write_report

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror="alert(2)">',
    "'-alert(3)-'",
    "=cmd()",
    "line\nbreak\r\x1b[31m\u202egnp",
    "$$\\alpha$$ \\(x\\)",
    "@name{safe} {{ 7 * 7 }} &lt;b&gt;",
    "</script><script>alert(4)</script><!--",
    "\ud800 lone",
    "x" * 10_000,
)


class _Reader(HTMLParser):
    """Collects the rows of every table, addresses in attributes, and elements with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._cell: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self._cell = []

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th") and self._cell is not None:
            self.tables[-1][-1].append("".join(self._cell).strip())
            self._cell = None

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell.append(data)


def _read(page: str) -> _Reader:
    reader = _Reader()
    reader.feed(page)
    return reader


def _spaced(cells: list[str]) -> list[str]:
    return [cell.replace("\N{NARROW NO-BREAK SPACE}", " ").replace("\N{MINUS SIGN}", "-") for cell in cells]


def _hostile_report(path: Path) -> None:
    estimate = make_estimate(HOSTILE[0], tuple((name, 1e-3 * (at + 1)) for at, name in enumerate(HOSTILE)))
    others = [make_estimate(name) for name in HOSTILE[1:]]
    table = make_table(HOSTILE[1], **{HOSTILE[0]: HOSTILE[3], "note": HOSTILE[7]})
    write_report(path, table, [estimate, *others], make_validation(estimate, *others))


def test_networks_table_shows_estimates_and_measurements() -> None:
    """Every number of the networks table is that of the inputs, in one unit."""
    estimate = make_estimate()
    header, row = _read(render(make_table(), [estimate], make_validation(estimate))).tables[0]
    estimated = {"network": "net", "layers measured": "2 of 2", "estimated, ms": "4.000"}
    interval = {"95 % interval, ms": "3.600 – 4.400"}
    measured = {
        "measured, ms": "3.840",
        "± 95 %, ms": "0.038",
        "error": "+4.2 %",
        "floor": "1.0 %",
        "in interval": "yes",
    }
    others = {"naive sum, ms": "4.800", "naive error": "+25.0 %", "wall, ms": "5.760"}
    expected = {**estimated, **interval, **measured, **others}
    assert header == [*expected]
    assert _spaced(row) == [*expected.values()]


def test_no_naive_column_without_naive_sums() -> None:
    """Without naive sums their columns are left out."""
    estimate = make_estimate()
    page = render(make_table(), [estimate], make_validation(estimate, naive=None))
    assert len(_read(page).tables[0][0]) == 10
    assert "naive" not in json.dumps(_read(page).tables)


def test_summary_of_errors_is_shown() -> None:
    """MAPE, shares within 5 and 10 %, interval coverage and changes of the device are on the page."""
    estimate = make_estimate()
    page = render(make_table(), [estimate], make_validation(estimate)).replace("\N{NARROW NO-BREAK SPACE}", " ")
    for name, value in (
        ("mean absolute error (MAPE)", "4.2 %"),
        ("networks within 5 %", "100 %"),
        ("networks within 10 %", "100 %"),
        ("measurements inside the 95 % interval", "100 %"),
    ):
        assert f"<dt>{name}</dt><dd>{value}</dd>" in page
    assert "since the table was measured: governor." in page
    assert "MAPE" not in render(make_table(), [estimate])


def test_layers_are_sorted_by_share_of_time() -> None:
    """The slowest layer comes first, with its position in the order of execution; the overhead is a row like others."""
    layers = (("short", 1e-3), ("long", 3e-3))
    estimate = replace(make_estimate(layers=layers), overhead_s=1e-3, covered_latency_s=5e-3, latency_s=5e-3)
    header, *rows = _read(render(make_table(), [estimate])).tables[1]
    assert header == ["layer", "no.", "share", "cumulative", "latency, ms", "± 95 %, ms", "operator", "source"]
    assert [_spaced(row) for row in rows] == [
        ["long", "2", "60.0 %", "60.0 %", "3.000", "0.059", "Conv", "measured"],
        ["short", "1", "20.0 %", "80.0 %", "1.000", "0.020", "Conv", "measured"],
        ["overhead (a, b, c)", "", "20.0 %", "100.0 %", "1.000", "", "", "fitted"],
        ["whole network", "", "100.0 %", "", "5.000", "", "", ""],
    ]


def test_unknown_layers_are_shown_as_unknown() -> None:
    """A layer that is not in the table has no latency, and its network only a lower bound."""
    reader = _read(render(make_table(), [make_estimate(layers=(("known", 1e-3), ("strange", None)))]))
    assert reader.tables[0] == [
        ["network", "layers measured", "not in table", "estimated, ms", "95 % interval, ms"],
        ["net", "1 of 2", "1", "≥ 1.000", "unknown"],
    ]
    assert reader.tables[1][2] == ["strange", "2", "", "", "unknown", "", "Conv", "unknown"]


def test_network_without_any_known_layer_has_no_figure() -> None:
    """A network without any layer in the table has no figure, and the report is still written."""
    page = render(make_table(), [make_estimate(layers=(("strange", None),))])
    assert "data-figure=" not in page
    assert "1 of 1 layers are not in the table" in page


def test_report_without_networks() -> None:
    """A table without networks has a report."""
    assert "No network was estimated." in render(make_table(), [])


def test_overhead_is_shown_with_intervals_beside_least_squares() -> None:
    """a, b and c by least squares come first, those of the fit with further terms beside them, in suitable units."""
    page = render(make_table(), [make_estimate()])
    rows = [_spaced(row) for row in _read(page).tables[3][1:]]
    assert [row[1:] for row in rows] == [
        ["1.250", "1.125 – 1.375", "1.000", "0.9000 – 1.100", "ns"],
        ["-3.000", "-3.300 – -2.700", "2.000", "1.800 – 2.200", "ns"],
        ["6.000", "5.400 – 6.600", "5.000", "4.500 – 5.500", "µs"],
    ]
    for value in ("0.98765", "0.87654", "12.35"):
        assert f"<dd>{value}</dd>" in page


def test_nodes_that_cost_nothing_are_grouped_by_reason() -> None:
    """Each reason is listed with its count and its nodes."""
    page = render(make_table(), [make_estimate()])
    assert "<summary>constant: 1</summary>" in page
    assert "w1 (Constant)" in page
    assert "<summary>dropout at inference: 1</summary>" in page


def test_commands_hold_no_name_that_a_shell_misreads() -> None:
    """Only plain names appear in the commands; the others are replaced. The last one uses the table that was built."""
    estimates = [make_estimate(name) for name in ("plain.onnx", "a; rm -rf ~", "$(x)", "--lut=/", "resnet50")]
    page = render(make_table(), estimates)
    code = re.search(r"<pre><code>(.*?)</code></pre>", page, re.DOTALL)
    assert code
    first, _, last = code[1].splitlines()
    assert first == "harness profile plain.onnx MODEL.onnx builtin:resnet50 --device board"
    assert last == "harness estimate plain.onnx MODEL.onnx builtin:resnet50 --device board --html report.html"
    imported = render(replace(make_table(), method=IMPORT), estimates[:1])
    assert "harness estimate plain.onnx --device board --lut board/2026-01-02-0a1b2c3d --html report.html" in imported


def test_commands_repeat_dimensions_batch_and_threads() -> None:
    """Symbolic dimensions, batch and threads of the table are options of the commands that measure anew."""
    fingerprint = {"batch": "4", "threads": "2; rm -rf ~"}
    source = ReportSource(dims={"batch": 1, "a b": 7})
    page = render(replace(make_table(), fingerprint=fingerprint), [make_estimate("net")], None, source)
    code = re.search(r"<pre><code>(harness profile.*?)</code></pre>", page, re.DOTALL)
    assert code
    profile, build, _ = html.unescape(code[1]).splitlines()
    assert profile == "harness profile net.onnx --dim batch=1 --dim 'a b=7' --device board --batch 4"
    assert build == "harness lut build --device board --batch 4 --method joint"


def test_tables_are_accessible() -> None:
    """Every table has a caption and every heading cell a scope."""
    reader = _read(render(make_table(), [make_estimate()]))
    tags = [tag for tag, _ in reader.elements]
    assert tags.count("table") == tags.count("caption") == 5
    assert all("scope" in attributes for tag, attributes in reader.elements if tag == "th")


def test_nothing_is_referred_to_outside_the_file() -> None:
    """No element has an address other than a data URL, and the policy forbids to load or run anything else."""
    reader = _read(render(make_table(), [make_estimate()], make_validation(make_estimate())))
    addresses = [
        value
        for _, attributes in reader.elements
        for name, value in attributes.items()
        if name in ("src", "href", "srcset", "data", "action", "poster")
    ]
    assert addresses[0] == "data:,"
    assert [value.partition(",")[0] for value in addresses[1:]] == ["data:text/csv;charset=utf-8;base64"]
    policy = next(attributes["content"] for _, attributes in reader.elements if "http-equiv" in attributes)
    assert policy and policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "'unsafe-inline'" not in policy.partition("script-src")[2].partition(";")[0]


def test_same_report_has_no_trace_of_this_machine(tmp_path: Path) -> None:
    """The folder in which the report is written does not appear in it."""
    write_report(tmp_path / "report.html", make_table(), [make_estimate()])
    assert str(tmp_path) not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_many_layers_share_bars() -> None:
    """Above the limit neighbours share a bar; the sum over all bars stays that of the layers."""
    layers = tuple((f"layer{at}", 1e-3) for at in range(1000))
    page = render(make_table(), [make_estimate(layers=layers)])
    assert "There are 1000 layers, so neighbours share a bar." in page
    document = figure_text(page, "layers-1")
    tops = [float(top) for column in re.findall(r'\["top",\[([^]]*)\]\]', document) for top in column.split(",") if top]
    assert len(tops) == 251
    assert sum(tops) == pytest.approx(1000)


def test_tick_labels_are_never_formulas() -> None:
    """A label is short, without control characters and without characters that BokehJS reads as TeX."""
    for name in HOSTILE:
        label = tick(name)
        assert not set(label) & set("$\\")
        assert label.isprintable()
        assert len(label) <= 20


def test_report_replaces_an_older_one_and_leaves_nothing_else(tmp_path: Path) -> None:
    """Writing twice leaves one file with the usual permissions."""
    path = tmp_path / "report.html"
    path.write_text("old")
    write_report(path, make_table(), [make_estimate()])
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize("place", [Path("/proc/report.html"), Path("/dev/null"), Path("/")])
def test_unwritable_place_is_a_configuration_error(place: Path) -> None:
    """A read-only folder, a device and a folder are refused, also for root."""
    with pytest.raises(ConfigurationError):
        write_report(place, make_table(), [make_estimate()])
    assert not Path("/dev/null").is_file()


def test_failing_write_leaves_the_older_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the disk fills up while the report is written, the previous report stays, and no other file."""
    path = tmp_path / "report.html"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(ConfigurationError, match="No space left on device"):
        write_report(path, make_table(), [make_estimate()])
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_browser_loads_nothing_and_draws_every_figure(browser: Browser, tmp_path: Path) -> None:
    """In a real browser the page requests nothing but itself, and every figure has a canvas."""
    path = tmp_path / "report.html"
    estimates = [
        make_estimate("small"),
        make_estimate("large", (("only", 0.5),)),
        make_estimate("part", (("x", None), ("y", 1e-6))),
    ]
    write_report(path, make_table(), estimates, make_validation(*estimates[:2]))
    visit = browser.open(path)
    assert visit.requests == [path.as_uri()]
    assert visit.errors == []
    assert _canvases(visit.page) == 8
    write_report(path, make_table(), estimates)
    visit = browser.open(path, color_scheme="dark", viewport={"width": 390, "height": 844}, has_touch=True)
    assert (visit.requests, visit.errors, _canvases(visit.page)) == ([path.as_uri()], [], 7)
    assert visit.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_everything_that_takes_the_focus_has_a_name(browser: Browser, tmp_path: Path) -> None:
    """A screen reader finds a role and a name for each stop of the tab key, also for the tools of figures."""
    path = tmp_path / "report.html"
    write_report(path, make_table(), [make_estimate()])
    visit = browser.open(path)
    stops = visit.page.evaluate(
        f"""() => ({DEEP})(document.body).filter(node => node.tabIndex >= 0).map(node => [node.role || node.localName,
            node.ariaLabel || node.innerText || node.labels?.[0]?.innerText])
        """
    )
    assert ["button", "Reset"] in stops
    assert [stop for stop in stops if not stop[1] or stop[0] == "div"] == []
    visit.page.get_by_role("button", name="Reset").first.focus()
    visit.page.keyboard.press("Enter")
    assert visit.errors == []


def test_browser_redraws_when_the_colour_scheme_changes(browser: Browser, tmp_path: Path) -> None:
    """Figures follow a change between light and dark mode without an error."""
    path = tmp_path / "report.html"
    write_report(path, make_table(), [make_estimate()])
    visit = browser.open(path, color_scheme="light")
    visit.page.emulate_media(color_scheme="dark")
    visit.page.wait_for_timeout(500)
    for _ in range(3000):
        if _canvases(visit.page) == 3:
            break
        visit.page.wait_for_timeout(100)
    assert (visit.errors, _canvases(visit.page)) == ([], 3)


def test_hostile_names_are_text_and_run_nothing(browser: Browser, tmp_path: Path) -> None:
    """Names that look like HTML, script, formulas or TeX are shown unchanged; nothing runs, loads or breaks."""
    path = tmp_path / "report.html"
    _hostile_report(path)
    visit = browser.open(path)
    text = visit.page.inner_text("main")
    for name in (*HOSTILE[:4], *HOSTILE[5:8], "line␊break␍␛[31m\N{REPLACEMENT CHARACTER}gnp"):
        assert name in text
    assert "x" * 401 not in text
    assert visit.page.locator("img").count() == 0
    assert visit.page.title() == f"Latency on {HOSTILE[1]}"
    visit.assert_sound()


def test_hovering_shows_names_as_text(browser: Browser, tmp_path: Path) -> None:
    """The pointer over a bar shows the layer's name and figures, escaped, in the figure's tooltip."""
    path = tmp_path / "report.html"
    for name in HOSTILE[:4]:
        write_report(path, make_table(), [make_estimate("net", ((name, 2e-3),))])
        visit = browser.open(path)
        shown = visit.hover("#layers-1")
        assert f"1: {name}" in shown
        assert "2.000 ms ± 39.20 µs, 100.0 %, measured" in shown.replace("\N{NARROW NO-BREAK SPACE}", " ")
        assert (visit.dialogs, visit.errors, visit.requests) == ([], [], [path.as_uri()])


def test_page_refuses_to_run_what_is_put_into_it(browser: Browser, tmp_path: Path) -> None:
    """Even an unescaped name could not run a script or load a picture: the policy forbids it."""
    path = tmp_path / "report.html"
    write_report(path, make_table(), [make_estimate()])
    page = path.read_text(encoding="utf-8")
    path.write_text(
        page.replace("<main>", "<main><script>alert(1)</script><img src=http://127.0.0.1:9/x onerror=alert(2)>"),
        encoding="utf-8",
    )
    visit = browser.open(path)
    assert visit.dialogs == []
    assert len([error for error in visit.errors if "Content Security Policy" in error]) >= 2


def _canvases(page: Any) -> int:
    """Return the number of figures that have a canvas of some size."""
    count = page.evaluate(
        f"""() => Array.from(document.querySelectorAll('[data-figure]')).filter(holder => ({DEEP})(holder)
            .some(node => node.tagName === 'CANVAS' && node.width > 100 && node.height > 50)).length"""
    )
    return int(count)


def test_numbers_of_figures_have_seven_digits() -> None:
    """A figure holds no digits that nobody can see, and points in time keep all of theirs."""
    plot = base_figure(300, ("x", "y"), ("linear", "linear"), (0, 1), (0, 1))
    plot.line([1_795_630_000_123.0, 1_795_630_000_456.0], [1 / 3, 2 / 3])
    drawn = figure_json(plot)
    assert "0.3333333," in drawn and "0.33333333" not in drawn
    assert "1795630000123" in drawn
