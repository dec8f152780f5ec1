"""A deadline for the next frame of the host, and a thread that ends a process which hangs beyond it."""

from __future__ import annotations

import os
import threading
import time
from typing import Callable


class Watchdog:
    """A deadline that `renew` postpones; `grace_s` after it the process calls `last_act` and exits."""

    def __init__(self, ttl_s: float, grace_s: float, exit_code: int, last_act: Callable[[], None]) -> None:
        self.ttl_s = ttl_s
        self.deadline = time.monotonic() + ttl_s
        self._grace_s = grace_s
        self._exit_code = exit_code
        self._last_act = last_act
        self._shortened = threading.Event()

    def start(self) -> None:
        """Start the thread, which sleeps from deadline to deadline."""
        threading.Thread(target=self._watch, daemon=True).start()

    def renew(self) -> None:
        """Postpone the deadline to `ttl_s` from now."""
        self.deadline = time.monotonic() + self.ttl_s

    def restart(self, ttl_s: float) -> None:
        """Set another `ttl_s`, from now on."""
        self.ttl_s = ttl_s
        self.renew()
        self._shortened.set()

    def _watch(self) -> None:
        while True:
            remaining_s = self.deadline + self._grace_s - time.monotonic()
            if remaining_s <= 0:
                self._last_act()
                os._exit(self._exit_code)
            self._shortened.wait(remaining_s)
            self._shortened.clear()
