"""The wall time of a job on a device, whatever times the device reports."""

import math
import time

from harness.errors import DeviceTooSlow

GRACE_S = 120.0
"""How long a device may take to stop when the time of its job is up."""


class TimeLimit:
    """A limit of `limit_s` from the first lease of a job, over all its attempts; None means no limit.

    When it is reached, runs are cancelled. A session that still waits for its device `grace_s` later, by
    default GRACE_S, is abandoned.
    """

    def __init__(self, limit_s: float | None = None, grace_s: float | None = None) -> None:
        self.limit_s = math.inf if limit_s is None else limit_s
        self.grace_s = GRACE_S if grace_s is None else grace_s
        self._ends_s = math.inf

    def begin(self) -> None:
        """Begin to count, at the first call."""
        if math.isinf(self._ends_s):
            self._ends_s = time.monotonic() + self.limit_s

    @property
    def left_s(self) -> float:
        """The remaining time; infinite before the beginning."""
        return self._ends_s - time.monotonic()

    def check(self, device: str) -> None:
        """Raise DeviceTooSlow if the time is up and the device had `grace_s` to end what it does."""
        if self.left_s < -self.grace_s:
            raise too_slow(device, self.limit_s, f"It was still busy {self.grace_s:g} s after that")


def too_slow(device: str, limit_s: float, why: str) -> DeviceTooSlow:
    """Return the error for a device that did not finish within its time."""
    step = (
        "Run the same command again: it continues from here; --time-limit, or time_limit in the plan, allows more time"
    )
    return DeviceTooSlow(f"{device} did not finish within {round(limit_s, 1):g} s", why=why, next_step=step)
