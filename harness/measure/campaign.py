"""Run a probe plan on a device: batches of probes, rounds in random order, every sample into the journal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from harness.errors import BackendError, WorkerDied
from harness.measure.campaign_forecast import CampaignForecast, CampaignProgress
from harness.measure.core_placement import waiting_for_shared_cache
from harness.measure.device_requests import DeviceRequests, DueVisit, TimeUp, device_s, load_request
from harness.measure.device_run import DeviceRun
from harness.measure.journal.records import Campaign, Slot
from harness.measure.loaded_probes import LoadedProbes, prepare
from harness.measure.policy import FEWEST_ROUNDS, KEPT_PASSES, PASSES, RepeatPolicy, unsettled, visit_order
from harness.measure.summary import Measurement, summarise
from harness.probe.batches import Batch, probe_of
from harness.probe.probe import Probe
from harness.probe.probe_plan import ProbePlan

CHECKED_SHARE = 2 / 3
"""The part of the rounds that batches take which only check."""
POOL_REFERENCE_EVERY = 4
"""Rounds of a pool for each visit to the reference probe."""
MAX_DEATHS = 3
"""Deaths of the worker while it loads a probe, after which the probe counts as refused."""

_Prospect = tuple[float, int, int]
"""What further rounds of a batch are worth, the number of the batch, and the rounds that it has then."""


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
    _requests: DeviceRequests = field(init=False)
    _loaded: LoadedProbes = field(init=False)
    _sends_ahead: bool = False
    _prospects: dict[int, tuple[int, _Prospect | None]] = field(default_factory=dict)
    _pass_rounds: tuple[int, ...] = ()
    _rounds: list[int] = field(default_factory=list)
    _refused: set[str] = field(default_factory=set)
    _progress: CampaignProgress = field(init=False)

    def run(self) -> None:
        """Measure what the journal does not hold yet; raises Interrupted when stopped, and a DeviceError.

        Raises DeviceTooSlow if the wall time of the run ends before the minimum number of rounds.

        The campaign is complete when every batch has been measured well enough, or as well as the budget allows
        with at least the minimum number of rounds.
        """
        with waiting_for_shared_cache(self.on, self.campaign) as wait:
            self._requests = DeviceRequests.of(self.on, self.campaign, self._limit_s(), wait)
            self._run()

    def _run(self) -> None:
        """Measure with `_requests`; see `run`."""
        journal, number = self.on.journal, self.campaign.id
        # Beside others, nobody knows which probe killed a worker: after a death, probes are loaded one by one.
        self._sends_ahead = not journal.has_deaths(number)
        self._loaded = LoadedProbes.of(self.on.session, self._weight_bytes, self._send_ahead)
        self._refused = {record.id for record in journal.probes(number).values() if record.refused}
        self._rounds = [self._whole_rounds(batch) for batch in range(len(self.plan.batches))]
        batches = self.plan.batches
        self._pass_rounds = self.policy.passes(self._most_passes())
        targets = [[rounds for rounds in self._pass_rounds if self._is_due(one, rounds)] for one in batches]
        forecast = CampaignForecast.of(self.on.session, self.plan, targets, list(self._rounds))
        self._progress = CampaignProgress(self.on.observe, forecast, self._requests, self.policy.budget_s)
        time_is_up = False
        try:
            self._measure()
        except TimeUp:
            time_is_up = True
        finally:
            self._requests.write_spent()
        self._loaded.drop()
        if min(self._rounds, default=0) >= self.policy.fewest_rounds or not self._rounds:
            settled = not (time_is_up or self._is_spent())
            journal.complete(number, self.on.session.token, settled, self.excluded)
        elif time_is_up:
            raise self._requests.too_slow(f"Not every probe has its minimum of samples{self._refusals()}")

    def _measure(self) -> None:
        """Pass over all batches, then continue where it helps most."""
        for batch, rounds in self._passes():
            if not self._is_spent():
                self._measure_batch(batch, rounds)
        while not self._is_spent() and (chosen := self._most_worthwhile()) is not None:
            self._measure_batch(*chosen)

    def _limit_s(self) -> float:
        """The wall time of this run of the campaign, whatever device time the device reports."""
        batches = self.plan.batches
        runs = sum((len(one.loads) + 2) * (one.runs + one.warmup) for one in batches)
        return self.policy.limit_s(sum(len(one.loads) for one in batches), runs)

    def _passes(self) -> Iterator[tuple[int, int]]:
        """Batches with the rounds they should have, pass by pass; batches that only check end before the last pass."""
        for rounds in self._pass_rounds:
            for number, batch in enumerate(self.plan.batches):
                if self._is_due(batch, rounds):
                    yield number, rounds

    def _is_due(self, batch: Batch, rounds: int) -> bool:
        """Return whether a batch takes part in the pass that brings it to so many rounds."""
        enters = self.policy.runs is not None or any(map(self.plan.weight, batch.probes))
        return enters or rounds <= max(self._pass_rounds[0], math.ceil(CHECKED_SHARE * self._pass_rounds[-1]))

    def _most_passes(self) -> int:
        """Return the number of passes; a device's own clock does not show slow phases of its host."""
        loads = {load for batch in self.plan.batches for load in batch.loads}
        return KEPT_PASSES if self.campaign.clock != "device" and self._loaded.has_room(loads) else PASSES

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

    @property
    def _left_s(self) -> float:
        """The device time left of the budget."""
        return math.inf if self.policy.budget_s is None else self.policy.budget_s - self._requests.spent_s

    def _is_spent(self) -> bool:
        return self._left_s <= 0

    def _measure_batch(self, number: int, rounds: int) -> None:
        """Load a batch and visit it until it has so many rounds, or the budget is spent."""
        if self._rounds[number] >= rounds:
            return
        self._progress.loading(number)
        batch = self.plan.batches[number]
        stayed = self._loaded.holds(batch.loads)
        probes = map(self.plan.probes.__getitem__, batch.probes)
        prepare(self.on.session, probes, self._progress.compiling, self.on.stop)
        present = self._loaded.load((*batch.loads, self.plan.reference), self._load)
        batch = replace(batch, loads=tuple(load for load in batch.loads if load in present))
        self._progress.loaded()
        pool_rounds = self._requests.pool_rounds(batch, ran=stayed) if batch.visits == "pool" else 0
        untimed = batch.loads if pool_rounds > 1 else ()
        while self._rounds[number] < rounds and not (self._is_spent() and self._rounds[number]):
            self._progress.visiting()
            first = self._rounds[number]
            last = min(first + (pool_rounds or self._requests.rounds_at_once(batch, self._left_s)), rounds)
            finish = partial(self.on.journal.finish_round, self.campaign.id, self.on.session.token, number, last)
            self._requests.visit(self._due(number, batch, present, range(first, last)), batch, finish, untimed)
            self._rounds[number] = last
            self._progress.visited(last)
        self._loaded.end_batch(present)
        self._progress.ended(*self._expected(number), kept=self._loaded.holds(present))

    def _expected(self, number: int) -> tuple[int, float]:
        """Return the rounds that a batch will have in the end, as its probes scatter so far, and the share of them."""
        batch, rounds = self.plan.batches[number], self._rounds[number]
        open_probes = self._open(batch, max(rounds, self.policy.min_rounds)) if rounds >= FEWEST_ROUNDS else {}
        share = len(open_probes) / max(1, len(batch.probes)) if batch.visits == "cold" else 1.0
        return rounds + self.policy.more_rounds(rounds, open_probes), share

    def _due(self, number: int, batch: Batch, present: set[str], rounds: range) -> list[DueVisit]:
        """Return the visits of rounds that the journal lacks, in their order."""
        # Cold visits beyond the minimum need only the probes that are still uncertain.
        sequential = batch.visits == "cold" and self.policy.runs is None and rounds.stop > self.policy.min_rounds
        short = self._open(batch, rounds.start) if sequential else {}
        until = {probe: rounds.start + self.policy.needed_rounds(rounds.start, one) for probe, one in short.items()}
        due: list[DueVisit] = []
        for round in rounds:
            is_extra = sequential and round >= self.policy.min_rounds
            loads = [probe for probe, end in until.items() if round < end] if is_extra else batch.loads
            visited = {*loads, self.plan.reference} & present
            taken = self.on.journal.slots(self.campaign.id, number, round)
            slots = ((Slot(number, round, at), load) for at, load in enumerate(self._order(number, round)))
            due.extend((slot, load) for slot, load in slots if load in visited and slot not in taken)
        return due

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
        samples = self._requests.samples
        measured = {
            probe: summarise(samples[probe], self.campaign.clock)
            for probe in batch.probes
            if probe in samples and probe not in self._refused
        }
        short = rounds < self.policy.min_rounds
        open_probes = tuple(measured) if short else unsettled(measured, self.policy.target)
        return {probe: measured[probe] for probe in open_probes if self.plan.weight(probe)}

    def _most_worthwhile(self) -> tuple[int, int] | None:
        """The batch in which a second of device time narrows intervals most, with its new number of rounds, or None."""
        found = [one for number in range(len(self.plan.batches)) if (one := self._prospect(number)) is not None]
        return max(found, key=lambda one: one[0])[1:] if found else None

    def _prospect(self, number: int) -> _Prospect | None:
        """Return the value of further rounds of a batch; computed again if its probes have new samples."""
        batch, rounds, samples = self.plan.batches[number], self._rounds[number], self._requests.samples
        count = sum(len(samples.get(probe, ())) for probe in batch.probes)
        if number not in self._prospects or self._prospects[number][0] != count:
            open_probes = self._open(batch, rounds)
            more = self.policy.more_rounds(rounds, open_probes)
            worth = self._worth(batch, open_probes, rounds, more) if more else 0.0
            self._prospects[number] = count, (worth, number, rounds + more) if more else None
        return self._prospects[number][1]

    def _worth(self, batch: Batch, open_probes: Mapping[str, Measurement], rounds: int, more: int) -> float:
        """Variance that further rounds remove from the batch's sum, relative to the square of the sum, per second."""
        clock, samples = self.campaign.clock, self._requests.samples
        measured = [(one, summarise(samples[one], clock)) for one in batch.probes if one in samples]
        total_s = sum(self.plan.weight(probe) * one.latency_s for probe, one in measured)
        gained = sum((self.plan.weight(probe) * one.stderr_s) ** 2 for probe, one in open_probes.items())
        visited = open_probes if batch.visits == "cold" else batch.loads
        cost_s = sum(device_s(samples[probe_of(load)][-1:]) for load in visited if probe_of(load) in samples)
        return gained * more / (rounds + more) / max(total_s, 1e-12) ** 2 / max(cost_s * more, 1e-12)

    def _weight_bytes(self, load: str) -> int:
        return self.plan.probes[probe_of(load)].model.weight_bytes

    def _send_ahead(self, load: str) -> bool:
        """Send a probe before `_load` loads it; return whether the device takes it.

        Whole networks are loaded one at a time, because time and memory of their loading are reported.
        """
        probe = self.plan.probes[probe_of(load)]
        may = self._sends_ahead and probe.role != "network" and probe.id not in self._refused
        return may and self.on.session.put_ahead(load_request(probe, load))

    def _load(self, load: str) -> bool:
        """Load a probe and return whether the device accepted it."""
        probe = self.plan.probes[probe_of(load)]
        if probe.id in self._refused:
            return False
        self._requests.check_stop()
        try:
            self.on.session.put(load_request(probe, load))
        except BackendError as refusal:
            if load != probe.id:  # perhaps one copy too many; the probe itself is loaded
                return False
            self._refuse(probe, refusal.why or refusal.what)
            return False
        except WorkerDied as death:  # another cause would not repeat at the same probe
            deaths = [
                self.on.journal.count_death(self.campaign.id, self.on.session.token, one)
                for one in dict.fromkeys((probe.id, *map(probe_of, self.on.session.sent_ahead)))
            ]
            if deaths[0] >= MAX_DEATHS:
                self._refuse(probe, f"the worker died while loading it: {death.why}")
            raise
        return True

    def _refuse(self, probe: Probe, reason: str) -> None:
        self._refused.add(probe.id)
        self.on.journal.refuse(self.campaign.id, self.on.session.token, probe.id, reason)

    def _refusals(self) -> str:
        """Return how many probes the device has refused so far, and why it refused the first one."""
        refused = [one for one in self.on.journal.probes(self.campaign.id).values() if one.refused]
        return f". The device refused {len(refused)}, the first because: {refused[0].refused}" if refused else ""
