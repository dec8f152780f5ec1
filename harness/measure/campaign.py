"""Run a probe plan on a device: batches of probes, rounds in random order, every sample into the journal."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.device.session import LoadRequest, Series, Visit
from harness.errors import BackendError, CampaignIncomplete, ProtocolError, WorkerDied
from harness.measure.device_run import DeviceRun
from harness.measure.journal import Campaign, Slot
from harness.measure.policy import RepeatPolicy, unsettled, visit_order
from harness.measure.progress import Progress
from harness.measure.summary import Measurement, summarise
from harness.probe.batches import Batch, probe_of
from harness.probe.probe import Probe
from harness.probe.probe_plan import ProbePlan
from harness.samples import Sample

CHECKED_PASSES = 2
POOL_REFERENCE_EVERY = 4
"""Rounds of a pool for each visit to the reference probe."""
POOL_REQUEST_S = 0.1
"""Device time of the rounds of a pool that are requested at once."""
COLD_FACTOR = 4
"""How much longer the first round of a pool may take than the following ones."""
MAX_REQUEST_VISITS = 2000
"""Visits that one request surely holds."""
REQUEST_S = 30.0
"""Expected time of one request outside pools: what is lost at most if the connection breaks before its end record."""
_UNKNOWN_S = 1.0
_OVERHEAD_S = 1.0
"""Expected time of a run while none is known, and time of a request that does not count as slowness."""
CANCEL_S = 120.0
"""How long a device may take to end a run that was cancelled because its time is up."""
MAX_DEATHS = 3
"""Deaths of the worker while it loads a probe, after which the probe counts as refused."""


def load_request(probe: Probe, load: str | None = None, *, reveal: bool = False) -> LoadRequest:
    """Return a probe as the session sends it, under its own id or as another copy `load` of it."""
    model = probe.model
    weights, inputs = ([spec.wire() for spec in specs] for specs in (model.weights, model.inputs))
    return LoadRequest(load or probe.id, model.content, weights, inputs, model.output_bytes, reveal)


def device_s(samples: Sequence[Sample]) -> float:
    """Return the device time of samples in seconds."""
    return sum(sample.device_ns or sample.wall_ns for sample in samples) / 1e9


class _TimeUp(Exception):
    """The wall time of the run is used up."""


@dataclass
class CampaignRun:
    """One run of a campaign on a leased device.

    It passes over all batches several times and adds part of the minimum number of rounds each time. Then batches with
    probes short of the target continue, the one first where a second of device time narrows the networks' intervals
    most. A complete campaign is `excluded` from tables if a reason is given.
    """

    on: DeviceRun
    campaign: Campaign
    plan: ProbePlan
    policy: RepeatPolicy
    excluded: str | None = None
    _device_s: float = 0.0
    _samples: dict[str, list[Sample]] = field(default_factory=dict)
    _rounds: list[int] = field(default_factory=list)
    _refused: set[str] = field(default_factory=set)
    _started_s: float = field(default_factory=time.monotonic)
    _visited: int = 0
    _slowness: float = 1.0

    def run(self) -> None:
        """Measure what the journal does not hold yet; raises Interrupted when stopped, and a DeviceError.

        Raises CampaignIncomplete if the wall time of the run ends before the minimum number of rounds.

        The campaign is complete when every batch has been measured well enough, or as well as the budget allows
        with at least the minimum number of rounds.
        """
        journal, number = self.on.journal, self.campaign.id
        self._samples, self._device_s = journal.samples(number), journal.spent_s(number)
        self._refused = {record.id for record in journal.probes(number).values() if record.refused}
        self._rounds = [self._whole_rounds(batch) for batch in range(len(self.plan.batches))]
        time_is_up = False
        try:
            self._measure()
        except _TimeUp:
            time_is_up = True
        if min(self._rounds, default=0) >= self.policy.fewest_rounds or not self._rounds:
            settled = not (time_is_up or self._is_spent())
            journal.complete(number, self.on.session.token, settled, self.excluded)
        elif time_is_up:
            what = f"{self.on.device} did not finish within {self._limit_s:.0f} s"
            step = "Run the same command again; it continues from here, and --time-limit allows it more time"
            raise CampaignIncomplete(what, why="Not every probe has its minimum of samples", next_step=step)

    def _measure(self) -> None:
        """Pass over all batches, then continue where it helps most."""
        for batch, rounds in self._passes():
            if not self._is_spent():
                self._measure_batch(batch, rounds)
        while not self._is_spent() and (chosen := self._most_worthwhile()) is not None:
            self._measure_batch(*chosen)

    @functools.cached_property
    def _limit_s(self) -> float:
        """The wall time of this run of the campaign, whatever device time the device reports."""
        batches = self.plan.batches
        runs = sum((len(one.loads) + 2) * (one.runs + one.warmup) for one in batches)
        return self.policy.limit_s(sum(len(one.loads) for one in batches), runs)

    def _passes(self) -> Iterator[tuple[int, int]]:
        """Batches with the rounds they should have, pass by pass; batches that only check end before the last pass."""
        for at, rounds in enumerate(self.policy.passes):
            for number, batch in enumerate(self.plan.batches):
                if any(map(self.plan.weight, batch.probes)) or at < CHECKED_PASSES or self.policy.runs is not None:
                    yield number, rounds

    def _whole_rounds(self, number: int) -> int:
        """Rounds marked as finished, and rounds that are whole but were never marked."""
        batch = self.plan.batches[number]
        accepted = {load for load in (*batch.loads, self.plan.reference) if probe_of(load) not in self._refused}
        rounds = self.on.journal.rounds(self.campaign.id, number)
        while True:
            whole = [load for load in self._order(number, rounds) if load in accepted]
            if not whole or len(self.on.journal.slots(self.campaign.id, number, rounds)) < len(whole):
                return rounds
            rounds += 1

    def _is_spent(self) -> bool:
        return self.policy.budget_s is not None and self._device_s >= self.policy.budget_s

    def _measure_batch(self, number: int, rounds: int) -> None:
        """Load a batch and visit it until it has so many rounds, or the budget is spent."""
        if self._rounds[number] >= rounds:
            return
        self._report("loading", number)
        batch = self.plan.batches[number]
        present = {load for load in (*batch.loads, self.plan.reference) if self._load(load)}
        batch = replace(batch, loads=tuple(load for load in batch.loads if load in present))
        at_once = self._pool_rounds(batch) if batch.visits == "pool" else 1
        while self._rounds[number] < rounds and not (self._is_spent() and self._rounds[number]):
            first = self._rounds[number]
            last = min(first + at_once, rounds)
            due = [self._due(number, batch, present, round) for round in range(first, last)]
            for part in self._requests(list(itertools.chain(*due)), batch):
                self._visit(part, batch, untimed=batch.loads if at_once > 1 else ())
            self._rounds[number] = last
            self.on.journal.finish_round(self.campaign.id, self.on.session.token, number, self._rounds[number])
            self._report("measuring", number)
        self.on.session.drop(sorted(present))

    def _pool_rounds(self, batch: Batch) -> int:
        """Run a pool without keeping its samples; return how many rounds to request at once.

        A network runs without pauses. Between two requests there is one, in which other programs empty the last cache
        that all share: after 10 ms, a layer with 1 MB of weights took three times as long. So short rounds are
        requested together, behind one that is not timed.
        """
        if not batch.loads:
            return 1
        round_s = self._untimed_round(batch)
        if round_s < COLD_FACTOR * POOL_REQUEST_S:  # it was cold; the next one shows how long a round takes
            round_s = self._untimed_round(batch)
        most = MAX_REQUEST_VISITS // len(batch.loads) - 1
        return max(1, min(most, int(POOL_REQUEST_S / max(round_s, 1e-9))))

    def _untimed_round(self, batch: Batch) -> float:
        """Visit each load of a batch once and return the device time in seconds."""
        parts = self._confirmed([Visit(load, 0, 1) for load in batch.loads])
        round_s = sum(device_s(one.samples) for part, _ in parts for one in part)
        self._spend(round_s)
        self._check_stop()
        return round_s

    def _due(self, number: int, batch: Batch, present: set[str], round: int) -> list[tuple[Slot, str]]:
        """Return the visits of a round that the journal lacks, in their order."""
        order = self._order(number, round)
        # Cold visits beyond the minimum need only the probes that are still uncertain.
        is_extra = batch.visits == "cold" and self.policy.runs is None and round >= self.policy.min_rounds
        visited = {*(self._open(batch, round) if is_extra else batch.loads), self.plan.reference} & present
        taken = self.on.journal.slots(self.campaign.id, number, round)
        due = [(Slot(number, round, at), load) for at, load in enumerate(order) if load in visited]
        return [(slot, load) for slot, load in due if slot not in taken]

    def _order(self, number: int, round: int) -> list[str]:
        """Return the loads of a batch and the reference probe in the order of a round."""
        batch = self.plan.batches[number]
        order = visit_order(self.campaign.seed, number, round, batch.loads, self.plan.reference)
        if batch.visits != "pool":
            return order
        # Nothing between the visits of a pool, and little between its rounds.
        references = [self.plan.reference] if round % POOL_REFERENCE_EVERY == 0 else []
        return [load for load in order if load != self.plan.reference] + references

    def _open(self, batch: Batch, rounds: int) -> dict[str, Measurement]:
        """Probes of a batch that enter an estimate and are short of the target or of the minimum of rounds."""
        measured = {
            probe: summarise(self._samples[probe], self.campaign.clock)
            for probe in batch.probes
            if probe in self._samples and probe not in self._refused
        }
        short = rounds < self.policy.min_rounds
        open_probes = tuple(measured) if short else unsettled(measured, self.policy.target)
        return {probe: measured[probe] for probe in open_probes if self.plan.weight(probe)}

    def _most_worthwhile(self) -> tuple[int, int] | None:
        """The batch in which a second of device time narrows intervals most, with its new number of rounds, or None."""
        found: list[tuple[float, int, int]] = []
        for number, batch in enumerate(self.plan.batches):
            rounds = self._rounds[number]
            open_probes = self._open(batch, rounds)
            if more := self.policy.more_rounds(rounds, open_probes):
                found.append((self._worth(batch, open_probes, rounds, more), number, rounds + more))
        return max(found, key=lambda one: one[0])[1:] if found else None

    def _worth(self, batch: Batch, open_probes: Mapping[str, Measurement], rounds: int, more: int) -> float:
        """Variance that further rounds remove from the batch's sum, relative to the square of the sum, per second."""
        clock, samples = self.campaign.clock, self._samples
        measured = [(one, summarise(samples[one], clock)) for one in batch.probes if one in samples]
        total_s = sum(self.plan.weight(probe) * one.latency_s for probe, one in measured)
        gained = sum((self.plan.weight(probe) * one.stderr_s) ** 2 for probe, one in open_probes.items())
        visited = open_probes if batch.visits == "cold" else batch.loads
        cost_s = sum(device_s(samples[probe_of(load)][-1:]) for load in visited if probe_of(load) in samples)
        return gained * more / (rounds + more) / max(total_s, 1e-12) ** 2 / max(cost_s * more, 1e-12)

    def _load(self, load: str) -> bool:
        """Load a probe and return whether the device accepted it."""
        probe = self.plan.probes[probe_of(load)]
        if probe.id in self._refused:
            return False
        self._check_stop()
        try:
            self.on.session.put(load_request(probe, load))
        except BackendError as refusal:
            if load != probe.id:  # perhaps one copy too many; the probe itself is loaded
                return False
            self._refuse(probe, refusal.why or refusal.what)
            return False
        except WorkerDied as death:  # another cause would not repeat at the same probe
            if self.on.journal.count_death(self.campaign.id, self.on.session.token, probe.id) >= MAX_DEATHS:
                self._refuse(probe, f"the worker died while loading it: {death.why}")
            raise
        return True

    def _refuse(self, probe: Probe, reason: str) -> None:
        self._refused.add(probe.id)
        self.on.journal.refuse(self.campaign.id, self.on.session.token, probe.id, reason)

    def _requests(self, due: list[tuple[Slot, str]], batch: Batch) -> Iterator[list[tuple[Slot, str]]]:
        """Divide visits into requests of about REQUEST_S, as the visits so far suggest; a pool is not divided."""
        while due and batch.visits != "pool":
            known = {probe: device_s(samples[-1:]) for probe, samples in self._samples.items()}
            longest_s, left_s = max(known.values(), default=_UNKNOWN_S), REQUEST_S
            for count, (_, load) in enumerate(due):
                left_s -= known.get(probe_of(load), longest_s) * (batch.runs + batch.warmup) * self._slowness
                if left_s < 0 and count:
                    break
            else:
                break
            yield due[:count]
            due = due[count:]
        if due:
            yield due

    def _visit(self, due: Sequence[tuple[Slot, str]], batch: Batch, untimed: Sequence[str] = ()) -> None:
        """Visit the loads of these slots in one request, after a visit to each of `untimed`."""
        visits = [Visit(load, batch.warmup, batch.runs) for load in (*untimed, *(load for _, load in due))]
        slots: list[Slot | None] = [*(None for _ in untimed), *(slot for slot, _ in due)]
        started_s, timed_s = time.monotonic(), 0.0
        for series, state in self._confirmed(visits):
            before = sum(device_s(one.samples) for one in series if slots[one.visit] is None)
            placed = [(slot, one) for one in series if (slot := slots[one.visit]) is not None]
            taken = [(slot, probe_of(one.probe), one.samples) for slot, one in placed]
            if before:
                self._spend(before)
            self.on.journal.add(self.campaign.id, self.on.session.token, taken, state)
            for _, probe, samples in taken:
                self._samples.setdefault(probe, []).extend(samples)
                self._device_s += device_s(samples)
                timed_s += device_s(samples)
                self._visited += len(samples)
        if batch.warmup:  # an untimed run takes about as long as a timed one
            self._spend(batch.warmup / batch.runs * timed_s)
        took_s = time.monotonic() - started_s - _OVERHEAD_S
        self._slowness = max(1.0, took_s / max(timed_s * (1 + batch.warmup / batch.runs), 1e-9))
        self._check_stop()

    def _spend(self, seconds: float) -> None:
        self._device_s += seconds
        self.on.journal.spend(self.campaign.id, self.on.session.token, seconds)

    def _confirmed(self, visits: Sequence[Visit]) -> list[tuple[tuple[Series, ...], Mapping[str, float]]]:
        """Return the series of a request and the state after each part, once its end record has confirmed them.

        Before, they are not data: a device may have sent them wrongly. An error drops them.
        """
        self._check_stop()
        staged = []
        for part in self.on.session.run(visits):
            staged.append(part)
            over_s = time.monotonic() - self._started_s - self._limit_s
            if over_s > CANCEL_S:
                why = f"It went on measuring for {over_s:.0f} s after the end of its time"
                raise ProtocolError(f"{self.on.device} does not end a run that was cancelled", why=why)
            if self.on.stop.is_set() or over_s > 0:
                self.on.session.cancel()
        return staged

    def _check_stop(self) -> None:
        resumes = self.campaign.settings["purpose"] != "validate"
        again = "Run the same command again" + (" to resume" if resumes else "; it starts anew")
        self.on.check_stop(next_step=again)
        if time.monotonic() - self._started_s > self._limit_s:
            raise _TimeUp

    def _report(self, stage: str, batch: int) -> None:
        """Report progress; the minimum of rounds is planned for each batch, or more if more were done."""
        rounds, fewest = self._rounds[batch], self.policy.passes[-1]
        sizes = [len(one.loads) for one in self.plan.batches]
        done = sum(size * own for size, own in zip(sizes, self._rounds, strict=True))
        planned = sum(size * max(fewest, own) for size, own in zip(sizes, self._rounds, strict=True))
        elapsed_s = time.monotonic() - self._started_s
        remaining_s = elapsed_s * (planned - done) / done if done and self._visited else None
        samples = sum(map(len, self._samples.values()))
        self.on.observe(Progress(stage, batch, len(self.plan.batches), rounds, samples, self._device_s, remaining_s))
