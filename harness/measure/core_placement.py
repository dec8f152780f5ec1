"""Wait until the threads of a device run on cores that share a cache.

Threads that share the work of a layer wait for each other at its end. Cores that share a cache exchange a word in some
50 ns, cores in two parts of a processor in some 300 ns. An operating system, or the host of a virtual machine, moves
threads from one kind to the other. On a guest with two cores, a network of 100 layers then took 12 instead of 5 ms with
two threads, for seconds at a time, while no counter of the guest showed it.

A barrier probe, a chain of small layers, shows this: on other cores it takes two to three times as long.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from harness.device.session import Visit
from harness.errors import BackendError, WorkerDied
from harness.measure.device_requests import load_request
from harness.measure.device_run import DeviceRun
from harness.measure.journal.records import Campaign, Slot
from harness.measure.policy import RepeatPolicy
from harness.measure.progress import Progress, notes_of
from harness.measure.summary import undisturbed
from harness.probe.probe import Probe, barrier_probe
from harness.probe.probe_plan import plan_alone
from harness.samples import Sample

BARRIER = "barrier"
"""The purpose of campaigns of the barrier probe."""
FAR = 1.3
"""If the barrier probe takes this many times as long as its minimum, the cores do not share a cache."""
LEAST_PATIENCE_S, MOST_PATIENCE_S = 10.0, 60.0
"""A campaign waits as long as it has measured, within these limits."""
_NEWEST = 20
"""Campaigns that show the latency of the barrier probe on a shared cache; older ones may be of another clock rate."""
PAUSE_S = 0.1
"""Time between two checks."""
_WARMUP, _RUNS = 2, 8
_SHOWN_S = 1.0


@contextlib.contextmanager
def waiting_for_shared_cache(run: DeviceRun, campaign: Campaign) -> Iterator[Callable[[], None]]:
    """Yield a function that waits until the cores share a cache, for a device that works with several threads.

    For other devices, and for one that refuses the barrier probe or whose worker dies of it, it returns immediately.
    The shortest latency of the barrier probe in the journal, for the device in its present state, is that on cores
    that share a cache.
    """
    if not campaign.threads_meet:
        yield _wait_for_nothing
        return
    probe, known = barrier_probe(), _known(run)
    if any(run.journal.probes(one.id)[probe.id].refused for one in known) or not _accepts(run, probe):
        yield _wait_for_nothing
        return
    cores = _Cores(run, probe.id, _shortest_s(run, known))
    try:
        yield cores.wait
    finally:
        cores.report()
    run.session.drop([probe.id])
    _keep(run, cores.shortest)


def _wait_for_nothing() -> None:
    """Return immediately."""


@dataclass
class _Cores:
    """The cores of a device during a campaign; `near_s` is the shortest latency of the barrier probe."""

    run: DeviceRun
    probe: str
    near_s: float | None
    shortest: tuple[Sample, ...] = ()
    _waited_s: float = 0.0
    _began_s: float = field(default_factory=time.monotonic)

    def wait(self) -> None:
        """Wait until the cores share a cache, or the campaign has waited long enough."""
        began_s = time.monotonic()
        measured_s = began_s - self._began_s - self._waited_s
        patience_s = min(max(LEAST_PATIENCE_S, measured_s), MOST_PATIENCE_S)
        before_s = self._waited_s
        while self._are_far() and self._waited_s < patience_s and not self.run.stop.is_set():
            self.run.observe(Progress("waiting until the threads share a cache", 0, 0, phase="measuring"))
            self.run.stop.wait(PAUSE_S)
            self._waited_s = before_s + time.monotonic() - began_s

    def report(self) -> None:
        """Show how long the campaign waited, if it was long."""
        if self._waited_s >= _SHOWN_S:
            notes_of(self.run.observe)(
                f"Waited {self._waited_s:.0f} s: the threads of {self.run.device} ran on cores that share no cache, "
                "or other programs held a core"
            )

    def _are_far(self) -> bool:
        taken = tuple(
            sample
            for series, _ in self.run.session.run([Visit(self.probe, _WARMUP, _RUNS)])
            for one in series
            for sample in one.samples
        )
        if not taken:
            return False
        latency_s = undisturbed(taken, "wall").latency_s
        if not self.shortest or latency_s < undisturbed(self.shortest, "wall").latency_s:
            self.shortest = taken
        self.near_s = latency_s if self.near_s is None else min(self.near_s, latency_s)
        return latency_s > FAR * self.near_s


def _known(run: DeviceRun) -> list[Campaign]:
    """Return the newest campaigns of the barrier probe on the device in its present state."""
    probe = barrier_probe().id
    known = [one for one in run.journal.campaigns(run.device) if one.purpose == BARRIER and one.reference == probe]
    return [one for one in known if one.fingerprint == run.fingerprint][-_NEWEST:]


def _accepts(run: DeviceRun, probe: Probe) -> bool:
    """Load the barrier probe; return whether the device accepts it. A death of its worker counts as a refusal later."""
    try:
        run.session.put(load_request(probe))
    except BackendError:
        return False
    except WorkerDied as death:
        kept = _begin(run)
        run.journal.refuse(kept.id, run.session.token, probe.id, f"the worker died while loading it: {death.why}")
        raise
    return True


def _shortest_s(run: DeviceRun, known: Sequence[Campaign]) -> float | None:
    """Return the shortest latency of the barrier probe in these campaigns, None if they have no samples of it."""
    found = [run.journal.samples_of(one.id, one.reference) for one in known]
    return min((undisturbed(taken, "wall").latency_s for taken in found if taken), default=None)


def _begin(run: DeviceRun) -> Campaign:
    return run.begin(plan_alone(barrier_probe(), _RUNS), RepeatPolicy(runs=1).settings(BARRIER, 0))


def _keep(run: DeviceRun, shortest: tuple[Sample, ...]) -> None:
    """Add the shortest samples of a campaign to the journal."""
    if not shortest:
        return
    kept = _begin(run)
    run.journal.add(kept.id, run.session.token, [(Slot(0, 0, 0), kept.reference, shortest)], {})
    run.journal.complete(kept.id, run.session.token)
