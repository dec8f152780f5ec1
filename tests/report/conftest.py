"""A headless Chromium for tests of reports."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from report_inputs import Browser, headless_browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Return a headless Chromium; skip the test if there is none."""
    yield from headless_browser()
