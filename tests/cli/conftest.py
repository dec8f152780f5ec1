"""Fixtures of the tests of the command line."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from npu_command import Npu


@pytest.fixture
def npu(capsys: pytest.CaptureFixture[str]) -> Iterator[Npu]:
    """The commands; the process handles Ctrl-C afterwards as it did before."""
    handler = signal.getsignal(signal.SIGINT)
    yield Npu(capsys)
    signal.signal(signal.SIGINT, handler)
