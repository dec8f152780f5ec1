"""Requests of a campaign to its device: visits divided into runs of some seconds, whose series go into the journal."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness.device.session import LoadRequest, Series, Visit
from harness.device.time_limit import too_slow
from harness.errors import DeviceTooSlow
from harness.measure.device_run import DeviceRun
from harness.measure.journal.records import Campaign, Slot
from harness.measure.policy import REFERENCE_EVERY
from harness.probe.batches import Batch, probe_of
from harness.probe.probe import Probe
from harness.samples import Sample

POOL_REQUEST_S = 0.1
"""Device time of the rounds of a pool in one request."""
COLD_FACTOR = 4
"""How much longer the first round of a pool may take than the following ones."""
MAX_REQUEST_VISITS = 2000
"""Visits that one request surely holds."""
REQUEST_S = 30.0
"""Expected time of one request outside pools: what is lost at most if the connection breaks before its end record."""
ROUNDS_REQUEST_S = 2.0
"""Device time of the rounds outside pools in one request: each request ends with a commit and a report."""
SETTLING_S, MOST_UNTIMED = 40e-6, 4
"""Time of the untimed runs of a warm visit, and their largest number. After another probe, one of 10 µs takes 10, 3, 2
and 1 % longer in its second to fifth run than in its twentieth. A layer's probe loses more than its null probe."""
_UNKNOWN_S = 1.0
_OVERHEAD_S = 1.0
"""Expected time of a run while none is known, and time of a request that does not count as slowness."""

DueVisit = tuple[Slot, str]
"""A load to visit, and the slot of its series."""


class TimeUp(Exception):
    """The wall time of the campaign's run is used up."""


def load_request(probe: Probe, load: str | None = None, *, reveal: bool = False, runs: bool = True) -> LoadRequest:
    """Return a probe as the session sends it, under its own id or as another copy `load` of it."""
    model = probe.model
    weights, inputs = ([spec.wire() for spec in specs] for specs in (model.weights, model.inputs))
    return LoadRequest(load or probe.id, model.content, weights, inputs, model.output_bytes, reveal, runs)


def device_s(samples: Sequence[Sample]) -> float:
    """Return the device time of samples in seconds."""
    return sum(sample.device_ns or sample.wall_ns for sample in samples) / 1e9


def settling_runs(run_s: float) -> int:
    """Return the untimed runs with which a warm visit to a probe of this latency begins."""
    return max(1, min(MOST_UNTIMED, math.ceil(SETTLING_S / max(run_s, 1e-9))))


def _write_nothing() -> None:
    """Finish no round."""


@dataclass
class DeviceRequests:
    """Visits the loads of a campaign on its leased device, for at most `limit_s` on the host's clock.

    `samples` are those of the campaign so far, by probe, and `spent_s` is its device time, untimed runs included; both
    grow with each request. `before` is called before each. `visited` counts the timed runs of this object's requests.
    Each method raises Interrupted when stopped, TimeUp, a DeviceError, and what writing to the journal raises.
    """

    on: DeviceRun
    campaign: Campaign
    limit_s: float
    samples: dict[str, list[Sample]]
    spent_s: float
    before: Callable[[], None]
    visited: int = 0
    _started_s: float = field(default_factory=time.monotonic)
    _slowness: float = 1.0
    _unwritten_s: float = 0.0
    _before_s: float = 0.0

    @classmethod
    def of(cls, on: DeviceRun, campaign: Campaign, limit_s: float, before: Callable[[], None]) -> DeviceRequests:
        """Return the requests of a new or resumed campaign; the limit of the job applies as well."""
        return cls(
            on,
            campaign,
            min(limit_s, on.time_limit.left_s),
            on.journal.samples(campaign.id),
            spent_s := on.journal.spent_s(campaign.id),
            before,
            _before_s=spent_s,
        )

    @property
    def elapsed_s(self) -> float:
        """The time since the campaign was begun or resumed."""
        return time.monotonic() - self._started_s

    @property
    def spent_here_s(self) -> float:
        """The device time since the campaign was begun or resumed."""
        return self.spent_s - self._before_s

    def visit(
        self, due: Sequence[DueVisit], batch: Batch, finish: Callable[[], None], untimed: Sequence[str] = ()
    ) -> None:
        """Visit the loads of slots, in requests that each begin with a visit to each load of `untimed`.

        What `finish` writes to the journal is committed with the last series, if all have come: a commit waits for the
        disk.
        """
        left = len(due)
        for part in self._divided(due, batch):
            left -= len(part)
            self._visit(part, batch, untimed, finish if not left else _write_nothing)
        if not due:
            finish()

    def rounds_at_once(self, batch: Batch, left_s: float) -> int:
        """Return how many rounds of a batch outside pools to request together, with this remaining device time.

        It is one round until each probe has a sample, which shows how long a round takes.
        """
        visited = [*batch.loads, *[self.campaign.reference] * -(-len(batch.loads) // REFERENCE_EVERY)]
        known = self._latest_s(visited)
        if not known.keys() >= set(map(probe_of, visited)):
            return 1
        round_s = sum(known[probe_of(load)] * (batch.runs + self._untimed_runs(load, batch)) for load in visited)
        return max(1, int(min(ROUNDS_REQUEST_S, left_s) / max(round_s, 1e-9)))

    def pool_rounds(self, batch: Batch, *, ran: bool) -> int:
        """Return how many rounds of a pool to request together, after untimed ones if no request begins with one.

        The samples of a pool that `ran`, and has been loaded since, show how long a round takes.

        A network runs without pauses. Between two requests there is one, in which other programs empty the last cache
        that all share: after 10 ms, a layer with 1 MB of weights took three times as long. So short rounds are
        requested together, after one that is not timed.
        """
        if not batch.loads:
            return 1
        latest_s = self._latest_s(batch.loads)
        if ran and latest_s.keys() >= set(batch.probes):
            rounds = self._short_rounds(batch, sum(latest_s[probe_of(load)] for load in batch.loads))
            if rounds > 1:
                return rounds
        round_s = self._untimed_round(batch)
        if not ran and round_s < COLD_FACTOR * POOL_REQUEST_S:  # it was cold; the next one shows how long a round takes
            round_s = self._untimed_round(batch)
        return self._short_rounds(batch, round_s)

    def _short_rounds(self, batch: Batch, round_s: float) -> int:
        """Return how many rounds of this duration one request has."""
        most = MAX_REQUEST_VISITS // len(batch.loads) - 1
        return max(1, min(most, int(POOL_REQUEST_S / max(round_s, 1e-9))))

    def write_spent(self) -> None:
        """Write the time of untimed runs to the journal, if no series has done so since."""
        if self._unwritten_s:
            self.on.journal.spend(self.campaign.id, self.on.session.token, self._unwritten_s)
            self._unwritten_s = 0.0

    def too_slow(self, why: str) -> DeviceTooSlow:
        """Return the error for a device that did not finish in time: that of the job, if that is up."""
        job = self.on.time_limit
        return too_slow(self.on.device, job.limit_s if job.left_s <= 0 else self.limit_s, why)

    def check_stop(self) -> None:
        """Raise Interrupted if a stop was requested, and TimeUp after `limit_s`."""
        resumes = self.campaign.purpose != "validate"
        again = "Run the same command again" + (" to resume" if resumes else "; it starts again")
        self.on.check_stop(next_step=again)
        if self.elapsed_s > self.limit_s:
            raise TimeUp

    def _divided(self, due: Sequence[DueVisit], batch: Batch) -> Iterator[Sequence[DueVisit]]:
        """Divide visits into requests of about REQUEST_S, as the visits so far suggest; a pool is not divided."""
        while due and batch.visits != "pool":
            known = self._latest_s(load for _, load in due)
            unknown = any(probe_of(load) not in known for _, load in due)
            longest_s = max(self._latest_s(self.samples).values(), default=_UNKNOWN_S) if unknown else 0.0
            left_s = REQUEST_S / self._slowness
            visit_s = {
                load: known.get(probe_of(load), longest_s) * (batch.runs + self._untimed_runs(load, batch))
                for load in {load for _, load in due}
            }
            for count, (_, load) in enumerate(due):
                left_s -= visit_s[load]
                if left_s < 0 and count:
                    break
            else:
                break
            yield due[:count]
            due = due[count:]
        if due:
            yield due

    def _untimed_runs(self, load: str, batch: Batch) -> int:
        """Return the untimed runs of a visit: more to a short probe, once a sample of it shows that it is short.

        A device with its own clock needs no more, because its times do not depend on caches.
        """
        latest_s = self._latest_s([load]).get(probe_of(load), math.inf)
        if not batch.warmup or self.campaign.clock == "device":
            return batch.warmup
        return max(batch.warmup, settling_runs(latest_s))

    def _latest_s(self, loads: Iterable[str]) -> dict[str, float]:
        """Return the device time of the newest sample of each probe that has one."""
        probes = dict.fromkeys(map(probe_of, loads))
        return {probe: device_s(taken[-1:]) for probe in probes if (taken := self.samples.get(probe))}

    def _visit(self, due: Sequence[DueVisit], batch: Batch, untimed: Sequence[str], finish: Callable[[], None]) -> None:
        """Visit the loads of these slots in one request, after a visit to each of `untimed`; commit once."""
        loads = (*untimed, *(load for _, load in due))
        warmup = {load: self._untimed_runs(load, batch) for load in set(loads)}
        visits = [Visit(load, warmup[load], batch.runs) for load in loads]
        slots: list[Slot | None] = [*(None for _ in untimed), *(slot for slot, _ in due)]
        self.before()
        started_s = time.monotonic()
        confirmed = self._confirmed(visits)
        with self.on.journal.transaction():
            timed_s = sum(self._record(series, state, slots) for series, state in confirmed)
            # An untimed run takes about as long as a timed one.
            in_visits = [(visits[one.visit], device_s(one.samples)) for series, _ in confirmed for one in series]
            untimed_s = sum(taken_s * visit.warmup / visit.runs for visit, taken_s in in_visits)
            self._spend(untimed_s)
            self.write_spent()
            if sum(len(series) for series, _ in confirmed) == len(visits):  # a cancelled run has fewer
                finish()
        took_s = time.monotonic() - started_s - _OVERHEAD_S
        self._slowness = max(1.0, took_s / max(timed_s + untimed_s, 1e-9))
        self.check_stop()

    def _record(self, series: Sequence[Series], state: Mapping[str, float], slots: Sequence[Slot | None]) -> float:
        """Add the series of timed visits to the journal; return their device time in seconds."""
        self._spend(sum(device_s(one.samples) for one in series if slots[one.visit] is None))
        placed = [(slot, one) for one in series if (slot := slots[one.visit]) is not None]
        taken = [(slot, probe_of(one.probe), one.samples) for slot, one in placed]
        self.on.journal.add(self.campaign.id, self.on.session.token, taken, state)
        timed_s = 0.0
        for _, probe, samples in taken:
            self.samples.setdefault(probe, []).extend(samples)
            timed_s += device_s(samples)
            self.visited += len(samples)
        self.spent_s += timed_s
        return timed_s

    def _untimed_round(self, batch: Batch) -> float:
        """Visit each load of a batch once and return the device time in seconds."""
        self.before()
        parts = self._confirmed([Visit(load, 0, 1) for load in batch.loads])
        round_s = sum(device_s(one.samples) for part, _ in parts for one in part)
        self._spend(round_s)
        self.check_stop()
        return round_s

    def _spend(self, seconds: float) -> None:
        """Count the time of untimed runs, which is written with the next series or by `write_spent`."""
        self.spent_s += seconds
        self._unwritten_s += seconds

    def _confirmed(self, visits: Sequence[Visit]) -> list[tuple[tuple[Series, ...], Mapping[str, float]]]:
        """Return the series of a request and the state after each part, once its end record has confirmed them.

        Before, they are not data: a device may have sent them wrongly. An error drops them.
        """
        self.check_stop()
        staged = []
        for part in self.on.session.run(visits):
            staged.append(part)
            over_s = self.elapsed_s - self.limit_s
            if over_s > self.on.time_limit.grace_s:
                raise self.too_slow("It does not end a run that was cancelled")
            if self.on.stop.is_set() or over_s > 0:
                self.on.session.cancel()
        return staged
