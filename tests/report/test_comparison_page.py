"""Two tables side by side in a browser."""

from dataclasses import replace
from pathlib import Path

from nullbench import Bench
from page_browser import Browser

from harness.measure.policy import RepeatPolicy
from harness.report.comparison_page import write_comparison

HOSTILE = "</td><script>alert(1)</script>"


def test_every_common_layer_stands_side_by_side(bench: Bench, browser: Browser, tmp_path: Path) -> None:
    """The page lists each common layer with both latencies and their change, and the facts of both tables as text."""
    bench.profile(policy=RepeatPolicy(runs=4))
    table = bench.build()
    slower = tuple(replace(one, latency_s=2 * one.latency_s) for one in table.entries)
    path = tmp_path / "comparison.html"
    write_comparison(path, table, replace(table, entries=slower, fingerprint={"cpu": HOSTILE}), "harness lut diff")
    visit = browser.open(path)
    assert "then" in visit.hover("#comparison")
    rows = visit.page.locator(".grid").first.locator("tbody tr").all_inner_texts()
    assert len(rows) == len(table.entries)
    assert all(row.endswith("+100.0\N{NARROW NO-BREAK SPACE}%") for row in rows)
    assert all(any(entry.key in row for row in rows) for entry in table.entries)
    assert HOSTILE in visit.page.inner_text("main")
    visit.assert_sound()
