"""A leased device together with the journal that its samples go to."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.device.inventory import Device
from harness.device.session import AgentSession, open_session
from harness.device.time_limit import TimeLimit
from harness.device.variant import NO_VARIANT, Variant
from harness.errors import Interrupted
from harness.measure.journal.journal import Journal
from harness.measure.journal.records import Campaign, CampaignKey
from harness.measure.journal.sessions_at_work import at_work
from harness.measure.progress import Observer, ignore
from harness.probe.probe_plan import ProbePlan
from harness.workspace import Workspace


@dataclass(frozen=True)
class DeviceRun:
    """One session with a leased device, and the journal.

    `device` is its name in the journal, `variant` what the campaign changes of it. `observe` receives progress; setting
    `stop` ends the run after the current visit. A `shared` device is used by other sessions at the same time; each
    works on separate campaigns. `time_limit` is that of the job.
    """

    session: AgentSession
    journal: Journal
    device: str
    observe: Observer = ignore
    stop: threading.Event = field(default_factory=threading.Event)
    shared: bool = False
    variant: Variant = NO_VARIANT
    time_limit: TimeLimit = field(default_factory=TimeLimit)

    @property
    def fingerprint(self) -> dict[str, str]:
        """The facts that must agree for two series to be comparable."""
        return {**self.session.hello.fingerprint, **self.variant.facts}

    def key(self, plan: ProbePlan, settings: Mapping[str, Any]) -> CampaignKey:
        """Return the key of a campaign of this plan on the device in its present state."""
        return CampaignKey(self.device, plan.id, settings, self.fingerprint)

    def begin(self, plan: ProbePlan, settings: Mapping[str, Any]) -> Campaign:
        """Record a campaign; see `Journal.begin`."""
        key, clock = self.key(plan, settings), self.session.hello.clock
        return self.journal.begin(key, plan, clock, self.session.token, self.shared)

    def resumable(self, key: CampaignKey) -> Campaign | None:
        """Return the campaign that this session may continue, if any; see `Journal.resumable`."""
        return self.journal.resumable(key, self.session.token if self.shared else 0)

    def newest(self, key: CampaignKey, *, finished: bool = False) -> Campaign | None:
        """Return the newest campaign with this key that this session may use; see `Journal.newest`."""
        return self.journal.newest(key, self.session.token if self.shared else 0, finished=finished)

    def check_stop(self, why: str = "All samples so far are in the journal", next_step: str = "") -> None:
        """Raise Interrupted if a stop was requested."""
        if self.stop.is_set():
            raise Interrupted("Stopped on request", why=why, next_step=next_step)


@contextlib.contextmanager
def open_run(
    device: Device,
    workspace: Workspace,
    observe: Observer = ignore,
    stop: threading.Event | None = None,
    variant: Variant = NO_VARIANT,
) -> Iterator[DeviceRun]:
    """Connect to a device, lease it, and open the journal of the workspace; raises a DeviceError or JournalError.

    This neither measures the golden probe nor records the health of the device: `harness.profile` does.
    """
    with (
        open_session(variant.device(device)) as session,
        Journal(workspace.journal) as journal,
        leased_run(session, device, journal, observe, stop, variant) as run,
    ):
        yield run


@contextlib.contextmanager
def leased_run(
    session: AgentSession,
    device: Device,
    journal: Journal,
    observe: Observer = ignore,
    stop: threading.Event | None = None,
    variant: Variant = NO_VARIANT,
    time_limit: TimeLimit | None = None,
) -> Iterator[DeviceRun]:
    """Yield a run of a session, which takes the lease unless it has it; raises a DeviceError or JournalError.

    The time limit of the job begins with its first lease, and ends all that the session waits for.
    """
    time_limit = time_limit or TimeLimit()
    token = session.token or session.acquire()
    time_limit.begin()
    session.limit_time(time_limit)
    with contextlib.ExitStack() as ending:
        if not device.exclusive:
            ending.enter_context(at_work(journal.path, device.name, token))
        stop = stop or threading.Event()
        yield DeviceRun(session, journal, device.name, observe, stop, not device.exclusive, variant, time_limit)
