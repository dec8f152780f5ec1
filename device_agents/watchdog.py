"""The moment until which the host must have said something, and a thread that ends a process that missed it."""

from __future__ import annotations

import os
import threading
import time
from typing import Callable


class Watchdog:
    """A deadline that signs of life push back; `grace_s` after it, the process ends whatever it is doing."""

    def __init__(self, ttl_s: float, grace_s: float, exit_code: int, last_act: Callable[[], None]) -> None:
        self.ttl_s = ttl_s
        self.deadline = time.monotonic() + ttl_s
        self._grace_s = grace_s
        self._exit_code = exit_code
        self._last_act = last_act
        self._shortened = threading.Event()

    def start(self) -> None:
        """Starts the thread; it sleeps until the deadline that it knows of, no more often."""
        threading.Thread(target=self._watch, daemon=True).start()

    def renew(self) -> None:
        """A sign of life."""
        self.deadline = time.monotonic() + self.ttl_s

    def restart(self, ttl_s: float) -> None:
        """Another time to live from now on."""
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
