"""What programs print is read to its end."""

import os
import selectors
import subprocess
import sys
from typing import Any

import pytest

from device_agents.child_processes import follow


def test_what_a_program_prints_at_its_very_end_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that prints and ends just after the reader found nothing loses none of its output."""
    words = [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read(); print('last words')"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        select = selectors.DefaultSelector.select

        def select_before_the_end(self: Any, timeout: float | None = None) -> Any:
            ready = select(self, timeout)
            if not ready and process.stdin is not None:
                process.stdin.close()
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            return ready

        monkeypatch.setattr(selectors.DefaultSelector, "select", select_before_the_end)
        output = bytearray()
        assert follow(process, [output, bytearray()], 60.0, 1000) == ""
    assert output == b"last words\n"
