"""A headless Chromium for tests of pages, which records what a page does."""

import asyncio
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

_DRAWN = """
Array.from(document.querySelectorAll('[data-figure]')).every(
  holder => holder.firstElementChild?.shadowRoot?.querySelector('*'))
"""


DEEP = """
(root) => {
  const found = [];
  const walk = (node) => {
    found.push(node);
    for (const child of node.children) walk(child);
    if (node.shadowRoot) for (const child of node.shadowRoot.children) walk(child);
  };
  walk(root);
  return found;
}
"""
"""A function of an element: all elements below it, also those in shadow roots."""


_TOOLTIPS = f"""() => ({DEEP})(document.body).filter(node => node.localName === 'div'
    && node.getRootNode().host?.className.includes('bk-Tooltip')).map(node => node.innerText).join(' ')"""
_FIRST_POINT = """
(figure) => {
  const holder = document.querySelector(figure);
  const inside = (view) => holder.contains(view.el) || holder.contains(view.el.getRootNode().host);
  const view = Bokeh.index.roots.find(inside);
  const named = view.model.renderers.find((one) => one.data_source?.data?.name?.length);
  const columns = named.data_source.data;
  const y = columns.y ? columns.y[0] : columns.top[0] / 2;
  const box = view.canvas_view.el.getBoundingClientRect();
  return [box.left + view.frame.x_scale.compute(columns.x[0]), box.top + view.frame.y_scale.compute(y)];
}
"""


_HIDDEN_ROWS = "Array.from(document.querySelectorAll('tbody tr, tfoot tr')).filter(row => !row.offsetHeight).length"
_FITS = "document.documentElement.scrollWidth <= innerWidth"
_PATIENCE_MS = 300_000.0
_PHONE, _PAPER = {"width": 390, "height": 844}, {"width": 956, "height": 1352}
"""Pixels; Chromium lays out A4 between its margins a third wider, and shrinks it."""


@dataclass
class Visit:
    """What a page did: the addresses it requested, errors and dialogs."""

    page: Any
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def assert_sound(self) -> None:
        """The page fits a phone and paper, sorts by every heading, prints every row, and loads and logs nothing."""
        self._assert_fits()
        self.page.set_viewport_size(_PHONE)
        for heading in self.page.locator("thead button").all():
            heading.click()
            assert heading.locator("xpath=..").get_attribute("aria-sort")
        self._assert_fits()
        self.page.evaluate("document.querySelectorAll('details').forEach(details => details.open = false)")
        self.page.emulate_media(media="print")
        self.page.set_viewport_size(_PAPER)
        self.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert self.page.evaluate(_HIDDEN_ROWS) == 0
        self._assert_fits()
        assert (self.errors, self.dialogs, self.requests) == ([], [], [self.page.url])

    def _assert_fits(self) -> None:
        for _ in range(3000):  # figures follow the window after a while
            if self.page.evaluate(_FITS):
                return
            self.page.wait_for_timeout(100)
        raise AssertionError(f"the page is wider than {self.page.viewport_size}")

    def hover(self, figure: str) -> str:
        """Return the tooltip with the pointer at the first point or bar of a figure that has one."""
        self.page.locator(figure).scroll_into_view_if_needed()
        x, y = self.page.evaluate(_FIRST_POINT, figure)
        for _ in range(30):  # a page that is still busy does not notice the pointer
            self.page.mouse.move(x - 40, y)
            self.page.mouse.move(x, y, steps=4)
            for _ in range(20):
                self.page.wait_for_timeout(50)
                if text := str(self.page.evaluate(_TOOLTIPS)):
                    return text
        return ""


class Browser:
    """A Chromium that opens files and records what they do."""

    def __init__(self, chromium: Any) -> None:
        self._chromium = chromium

    def new_page(self, **settings: Any) -> Any:
        """Return an empty page."""
        page = self._chromium.new_context(**settings).new_page()
        page.set_default_timeout(_PATIENCE_MS)
        return page

    def open(self, path: Path, **settings: Any) -> Visit:
        """Load a file, open every section and wait until all figures are drawn."""
        page = self.new_page(**settings)
        visit = Visit(page)
        page.on("request", lambda request: visit.requests.append(request.url))
        page.on("pageerror", lambda error: visit.errors.append(str(error)))
        page.on(
            "console",
            lambda message: visit.errors.append(message.text) if message.type in ("error", "warning") else None,
        )
        page.on("dialog", lambda dialog: (visit.dialogs.append(dialog.message), dialog.dismiss()))
        page.goto(path.as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
        deadline = time.monotonic() + 300
        while not page.evaluate(_DRAWN):
            assert time.monotonic() < deadline, f"figures are missing; {visit.errors}"
            page.wait_for_timeout(100)
        page.wait_for_timeout(300)
        return visit


FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def _wait_without_thread() -> None:
    """Let asyncio wait for its processes without a thread, as it does from Python 3.12 on.

    Beside another thread no process forks, so that all later tests would read networks in new interpreters.
    """
    if sys.version_info >= (3, 12):
        return

    class Watcher(asyncio.PidfdChildWatcher):
        attached: asyncio.AbstractEventLoop | None = None

        def attach_loop(self, loop: asyncio.AbstractEventLoop | None) -> None:
            if loop is not self.attached:  # attaching forgets the children of the loop before
                self.attached = loop
                super().attach_loop(loop)

        def is_active(self) -> bool:
            return True

        def add_child_handler(self, pid: int, callback: Callable[..., object], *args: object) -> None:
            self.attach_loop(asyncio.get_running_loop())
            super().add_child_handler(pid, callback, *args)

    asyncio.set_child_watcher(Watcher())


def headless_browser() -> Iterator[Browser]:
    """Yield a headless Chromium; skip the test if there is none."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no chromium on this machine: the report is not looked at in a browser")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser; it is not installed")
    _wait_without_thread()
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=program, args=list(FLAGS), timeout=_PATIENCE_MS)
        yield Browser(chromium)
        chromium.close()
