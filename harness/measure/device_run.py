"""A leased device together with the journal that its samples go to."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.device.inventory import Device
from harness.device.session import AgentSession, open_session
from harness.errors import Interrupted
from harness.measure.journal import Campaign, CampaignKey, Journal
from harness.measure.progress import Observer, ignore
from harness.probe.probe_plan import ProbePlan
from harness.workspace import Workspace


@dataclass(frozen=True)
class DeviceRun:
    """One session with a leased device, and the journal.

    `device` is its name in the journal. `observe` receives progress; setting `stop` ends the run after the current
    visit.
    """

    session: AgentSession
    journal: Journal
    device: str
    observe: Observer = ignore
    stop: threading.Event = field(default_factory=threading.Event)

    def key(self, plan: ProbePlan, settings: Mapping[str, Any]) -> CampaignKey:
        """Return the key of a campaign of this plan on the device in its present state."""
        return CampaignKey(self.device, plan.id, settings, self.session.hello.fingerprint)

    def begin(self, plan: ProbePlan, settings: Mapping[str, Any]) -> Campaign:
        """Record a campaign; see `Journal.begin`."""
        return self.journal.begin(self.key(plan, settings), plan, self.session.hello.clock, self.session.token)

    def check_stop(self, why: str = "All samples so far are in the journal", next_step: str = "") -> None:
        """Raise Interrupted if a stop was requested."""
        if self.stop.is_set():
            raise Interrupted("Stopped on request", why=why, next_step=next_step)


@contextlib.contextmanager
def open_run(
    device: Device, workspace: Workspace, observe: Observer = ignore, stop: threading.Event | None = None
) -> Iterator[DeviceRun]:
    """Connect to a device, lease it, and open the journal of the workspace; raises a DeviceError or JournalError.

    This neither measures the golden probe nor records the health of the device: `harness.profile` does.
    """
    with open_session(device) as session, Journal(workspace.journal) as journal:
        session.acquire()
        yield DeviceRun(session, journal, device.name, observe, stop or threading.Event())
