"""A headless Chromium for tests of reports."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from report_inputs import Browser

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Return a headless Chromium; skip the test if there is none."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no chromium on this machine: the report is not looked at in a browser")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser; it is not installed")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=program, args=list(FLAGS))
        yield Browser(chromium)
        chromium.close()
