"""Waiting for a device that another controller holds."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from harness.device.inventory import Device
from harness.device.session import AgentSession, Purpose, open_session
from harness.errors import DeviceBusy, Interrupted
from harness.measure.progress import Observer, Progress, ignore

_PAUSE_S = 2.0


@dataclass
class Announcement:
    """Reports once who holds the device, and how long the wait may last."""

    observe: Observer
    _made: bool = False

    def __call__(self, busy: DeviceBusy, left_s: float) -> None:
        """Report the holder, the first time."""
        if not self._made:
            self._made = True
            self.observe(Progress("waiting", 0, 0, note=f"{busy.what}; waiting for up to {max(1, round(left_s))} s"))


@dataclass(frozen=True, kw_only=True)
class BusyWait:
    """The maximum wait for a busy device; `observe` is called once with the holder, `stop` cancels the wait."""

    wait_s: float = 0.0
    observe: Observer = ignore
    stop: threading.Event | None = None


def lease_when_free(device: Device, patience: BusyWait, purpose: Purpose = "measurement") -> AgentSession:
    """Open a session and lease its device; raises a DeviceError, DeviceBusy after the wait, and Interrupted."""
    announce = Announcement(patience.observe)
    stop = patience.stop or threading.Event()
    ends_s: float | None = None
    while True:
        try:
            return _leased(device, purpose)
        except DeviceBusy as busy:
            now_s = time.monotonic()
            ends_s = now_s + patience.wait_s if ends_s is None else ends_s
            left_s = ends_s - now_s
            if left_s <= 0:
                raise
            announce(busy, left_s)
        if stop.wait(min(left_s, _PAUSE_S)):
            raise Interrupted("Stopped on request", why=f"{device.name} was in use, and nothing was measured")


def _leased(device: Device, purpose: Purpose) -> AgentSession:
    session = open_session(device, purpose)
    try:
        session.acquire()
    except BaseException:
        session.close()
        raise
    return session
