"""Tables in a browser: sorted, filtered, shown as a whole, and printed."""

import base64
import csv
import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from page_browser import Browser, Visit
from report_inputs import make_estimate, make_table, make_validation

from harness.measure.noise.machine_noise import MachineLoad, Spreads, judge
from harness.report.html import ReportSource, render, write_report
from harness.validation.oracle_comparison import CoefficientTruth, LayerTruth, NetworkTruth, OracleReport

LAYERS = tuple((f"block{at // 4}.conv{at}", 1e-6 * (1 + at * 7919 % 101)) for at in range(60))
HOSTILE = "<script>alert(1)</script>"
GRID = "#layers ~ details .grid >> nth=0"


@pytest.fixture
def visit(browser: Browser, tmp_path: Path) -> Visit:
    """Return a page with a network of 60 layers, opened."""
    path = tmp_path / "report.html"
    estimate = make_estimate("net", LAYERS)
    write_report(path, make_table(), [estimate], make_validation(estimate))
    found = browser.open(path)
    assert (found.errors, found.requests) == ([], [path.as_uri()])
    return found


def _column(visit: Visit, column: int) -> list[str]:
    script = "(table, at) => Array.from(table.tBodies[0].rows).filter(row => !row.hidden)"
    rows = f"{script}.map(row => row.cells[at].textContent.trim())"
    return list(visit.page.locator(f"{GRID} >> table").evaluate(rows, column))


def test_columns_sort_by_their_numbers_and_names(visit: Visit) -> None:
    """A click sorts numbers from the largest, a second click from the smallest; names sort with their numbers."""
    heading = visit.page.locator(f"{GRID} >> thead button")
    heading.nth(4).click()
    times = [float(cell.replace(",", "")) for cell in _column(visit, 4)]
    assert len(times) == 61 and times == sorted(times, reverse=True)
    heading.nth(4).click()
    assert [float(cell.replace(",", "")) for cell in _column(visit, 4)] == sorted(times)
    heading.nth(0).click()
    names = [name for name in _column(visit, 0) if name != "overhead (a, b, c)"]
    assert names == [name for name, _ in LAYERS]
    assert visit.page.locator(f"{GRID} >> th[aria-sort]").count() == 1
    heading.nth(1).click()
    assert _column(visit, 1)[-1] == "", "the overhead has no number and comes last"
    assert visit.errors == []


def test_rows_are_filtered_by_all_words_and_shown_as_a_whole(visit: Visit) -> None:
    """The filter keeps rows with every word, says how many they are, and a button removes the limit of height."""
    field = visit.page.locator(f"{GRID} >> input")
    field.fill("block3 CONV13")
    assert _column(visit, 0) == ["block3.conv13"]
    assert visit.page.locator(f"{GRID} >> [role=status]").inner_text() == "1 of 61 rows"
    field.fill("")
    assert len(_column(visit, 0)) == 61
    scroll = visit.page.locator(f"{GRID} >> .scroll")
    hidden = "part => part.scrollHeight - part.clientHeight"
    assert scroll.evaluate(hidden) > 100
    visit.page.locator(f"{GRID} >> .tools button").click()
    assert scroll.evaluate(hidden) <= 1
    assert visit.errors == []


def test_printing_opens_every_section(browser: Browser, tmp_path: Path) -> None:
    """Before printing, every closed section opens, so that the paper has all rows and figures."""
    path = tmp_path / "report.html"
    write_report(path, make_table(), [make_estimate("first", LAYERS), make_estimate("second", LAYERS)])
    page = browser.open(path).page
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = false)")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("Array.from(document.querySelectorAll('details')).every(one => one.open)")
    page.emulate_media(media="print")
    assert page.locator(f"{GRID} >> .scroll").evaluate("part => part.scrollHeight - part.clientHeight") <= 1


def test_roll_ups_add_up_to_the_network() -> None:
    """Times by operator and by block, each with the overhead, add up to the latency of the network."""
    page = render(make_table(), [make_estimate("net", LAYERS)])
    for kind, groups in (("by operator", 1), ("by block", 15)):
        table = page[page.index(f"Time of net {kind}") :].partition("</table>")[0]
        rows = re.findall(r"<tr>\s*<th scope=\"row\".*?</tr>", table, re.DOTALL)
        cells = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in rows]
        unit = 1e-6 if "µs" in table else 1e-3
        assert len(cells) == groups + 1
        total_s = sum(float(row[3].replace(",", "")) * unit for row in cells)
        assert total_s == pytest.approx(sum(seconds for _, seconds in LAYERS), rel=1e-3)


def test_saved_file_has_every_layer_with_all_digits() -> None:
    """The CSV file inside the page has a row for each layer and for the overhead, in seconds; no cell is a formula."""
    names = (("=cmd()", 1 / 3), ("plain", 1e-9))
    page = render(make_table(), [make_estimate("net", names)])
    found = re.search(r'href="data:text/csv;charset=utf-8;base64,([^"]+)" download="layers.csv"', page)
    assert found
    rows = list(csv.DictReader(io.StringIO(base64.b64decode(found[1]).decode())))
    assert [row["layer"] for row in rows] == ["'=cmd()", "plain", "overhead"]
    assert [float(row["latency_s"]) for row in rows] == [1 / 3, 1e-9, 0.0]


def test_layers_as_the_device_reports_them_stand_beside_their_estimates(browser: Browser, tmp_path: Path) -> None:
    """Each layer's reported and estimated latency and error are in a table, with the overhead and a figure."""
    truth = LayerTruth(HOSTILE, "Conv", 2e-6, 1e-6, 0.5, -0.5, (2e-6,))
    oracle = OracleReport(
        overhead={"c_s": CoefficientTruth(7e-5, 6.9e-5, -1 / 70)},
        networks=(NetworkTruth("net", 4e-6, 3e-6, 1e-6, (truth,)),),
        counted=1,
        median_error=0.5,
        p95_error=0.5,
        time_weighted_error=0.5,
        mean_error_long=None,
    )
    estimate = make_estimate("net", (("first", 1e-6),))
    path = tmp_path / "report.html"
    write_report(path, make_table(), [estimate], replace(make_validation(estimate), oracle=oracle))
    visit = browser.open(path)
    assert (visit.errors, visit.requests, visit.dialogs) == ([], [path.as_uri()], [])
    section = visit.page.locator("section[aria-labelledby=truth]")
    rows = [row.inner_text().split("\t") for row in section.locator("tbody tr").all()]
    plain = [[cell.strip().replace("\u202f", " ").replace("\u2212", "-") for cell in row] for row in rows]
    assert plain == [
        [HOSTILE, "50.0 %", "2.000", "1.000", "-50.0 %", "Conv"],
        ["c, per run", "70.00", "69.00", "-1.4 %", "µs"],
    ]
    assert section.locator("[data-figure]").count() == 1


def test_noise_that_hides_the_answer_is_said() -> None:
    """Where the machine was too noisy to judge the estimates, the page says so, and lists no error above the floor."""
    estimate = make_estimate()
    noisy = judge(MachineLoad(), {}, "device", Spreads(between_processes=0.3))
    assert noisy.resolution is not None and noisy.resolution > 0.1
    page = render(make_table(), [estimate], replace(make_validation(estimate), machine=noisy))
    assert "too noisy for these measurements to say whether estimates are within 10 %" in page
    assert "above the floor" not in page
    assert "above the floor" in render(make_table(), [estimate], make_validation(estimate))


def test_page_repeats_the_command_that_wrote_it() -> None:
    """The command is on the page as a shell reads it, with names quoted that a shell would change."""
    source = ReportSource(("harness", "estimate", "my net.onnx", "$(x)", "--html", "out.html"))
    page = render(make_table(), [make_estimate()], source=source)
    code = re.search(r"<p>This command wrote the page:</p>\n<pre><code>(.*?)</code>", page)
    assert code
    assert code[1] == "harness estimate &#39;my net.onnx&#39; &#39;$(x)&#39; --html out.html"
