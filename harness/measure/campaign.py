"""Runs a probe plan on a device: batches of probes, rounds in random order, every sample into the journal."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.device.session import AgentSession, ProbePayload, Series, Visit
from harness.errors import BackendError, Interrupted, WorkerDied
from harness.measure.journal import Campaign, Journal, Place
from harness.measure.policy import REFERENCE_EVERY, RepeatPolicy, unsettled, visit_order
from harness.measure.progress import Observer, Progress
from harness.measure.summary import Measurement, summarise
from harness.probe.batches import Batch, probe_of
from harness.probe.probe import Probe
from harness.probe.probe_plan import ProbePlan
from harness.samples import Sample

CHECKED_PASSES = 2
DEADLY = 3
"""Deaths of the worker while it loads a probe, after which the probe counts as refused."""


def payload_of(probe: Probe, load: str | None = None) -> ProbePayload:
    """The probe as the session sends it, under its own id or as another load of it."""
    model = probe.model
    return ProbePayload(
        load or probe.id,
        model.content,
        tuple(spec.wire() for spec in model.weights),
        tuple(spec.wire() for spec in model.inputs),
        model.output_bytes,
    )


def device_s(samples: Sequence[Sample]) -> float:
    """Time on the device of these samples."""
    return sum(sample.device_ns or sample.wall_ns for sample in samples) / 1e9


@dataclass
class CampaignRun:
    """One sitting of a campaign; `stop` ends it after the current visit, everything kept.

    All batches are gone through several times, a part of the fewest rounds each time; after that those go on that
    have probes short of the target, first where a second on the device narrows the networks' intervals most. A complete
    campaign whose result still waits for something is `excluded` for that reason.
    """

    session: AgentSession
    journal: Journal
    campaign: Campaign
    plan: ProbePlan
    policy: RepeatPolicy
    observe: Observer
    stop: threading.Event
    excluded: str | None = None
    _device_s: float = 0.0
    _samples: dict[str, list[Sample]] = field(default_factory=dict)
    _rounds: list[int] = field(default_factory=list)
    _refused: set[str] = field(default_factory=set)
    _started_s: float = field(default_factory=time.monotonic)
    _visited: int = 0

    def run(self) -> None:
        """Measures what the journal does not hold yet; raises Interrupted when stopped, and a DeviceError.

        The campaign is complete when every batch has been measured well enough, or as well as the budget
        allows and with the fewest rounds at least.
        """
        self._resume()
        for at, rounds in enumerate(self.policy.passes):
            for number, batch in enumerate(self.plan.batches):
                # What serves as a check alone has enough after all passes but the last.
                enters = any(map(self.plan.weight, batch.probes))
                if not self._is_spent() and (enters or at < CHECKED_PASSES or self.policy.runs is not None):
                    self._sit(number, rounds)
        while not self._is_spent() and (chosen := self._most_worthwhile()) is not None:
            self._sit(*chosen)
        if min(self._rounds, default=0) >= self.policy.fewest_rounds or not self._rounds:
            self.journal.complete(self.campaign.id, self.session.token, not self._is_spent(), self.excluded)

    def _resume(self) -> None:
        self._samples = {probe: list(taken) for probe, taken in self.journal.samples(self.campaign.id).items()}
        self._device_s = self.journal.spent_s(self.campaign.id)
        self._refused = {record.id for record in self.journal.probes(self.campaign.id).values() if record.refused}
        self._rounds = [self._whole_rounds(number) for number in range(len(self.plan.batches))]

    def _whole_rounds(self, number: int) -> int:
        """Rounds that are marked as finished, or are whole though nobody was left to mark them."""
        batch = self.plan.batches[number]
        references = 1 if batch.visits == "pool" else -(-len(batch.loads) // REFERENCE_EVERY)
        if self.plan.reference in self._refused:
            references = 0
        places = references + len([load for load in batch.loads if probe_of(load) not in self._refused])
        rounds = self.journal.rounds(self.campaign.id, number)
        while len(self.journal.places(self.campaign.id, number, rounds)) >= places:
            rounds += 1
        return rounds

    def _is_spent(self) -> bool:
        return self.policy.budget_s is not None and self._device_s >= self.policy.budget_s

    def _sit(self, number: int, rounds: int) -> None:
        """Loads a batch and visits it until it has so many rounds, or the budget is spent."""
        if self._rounds[number] >= rounds:
            return
        self._report("loading", number)
        batch = self.plan.batches[number]
        present = {load for load in (*batch.loads, self.plan.reference) if self._load(load)}
        batch = replace(batch, loads=tuple(load for load in batch.loads if load in present))
        if batch.visits == "pool":
            self._settle(batch)
        while self._rounds[number] < rounds and not (self._is_spent() and self._rounds[number]):
            self._run_round(number, batch, present)
            self._rounds[number] += 1
            self.journal.finish_round(self.campaign.id, self.session.token, number, self._rounds[number])
            self._report("measuring", number)
        self.session.drop(sorted(present))

    def _run_round(self, number: int, batch: Batch, present: set[str]) -> None:
        round = self._rounds[number]
        order = visit_order(self.campaign.seed, number, round, self.plan.batches[number].loads, self.plan.reference)
        if batch.visits == "pool":  # nothing between the visits of a pool
            order = [load for load in order if load != self.plan.reference] + [self.plan.reference]
        wanted = self._wanted(batch, round) & present
        taken = self.journal.places(self.campaign.id, number, round)
        due = [(Place(number, round, at), load) for at, load in enumerate(order) if load in wanted]
        self._visit([(place, load) for place, load in due if place not in taken], batch)

    def _wanted(self, batch: Batch, round: int) -> set[str]:
        """Loads to visit in a round: beyond the fewest rounds, where caches have no say, only what is uncertain."""
        if batch.visits == "cold" and self.policy.runs is None and round >= self.policy.min_rounds:
            return {*self._open(batch, round), self.plan.reference}
        return {*batch.loads, self.plan.reference}

    def _open(self, batch: Batch, rounds: int) -> dict[str, Measurement]:
        """The batch's probes that enter an estimate and are short of the target, or of the fewest rounds."""
        measured = {
            probe: summarise(self._samples[probe], self.campaign.clock)
            for probe in batch.probes
            if probe in self._samples and probe not in self._refused
        }
        short = rounds < self.policy.min_rounds
        open_probes = tuple(measured) if short else unsettled(measured, self.policy.target)
        return {probe: measured[probe] for probe in open_probes if self.plan.weight(probe)}

    def _most_worthwhile(self) -> tuple[int, int] | None:
        """The batch where a second narrows intervals most, and its rounds to come; None where nothing is open."""
        best: tuple[float, int, int] | None = None
        for number, batch in enumerate(self.plan.batches):
            rounds = self._rounds[number]
            open_probes = self._open(batch, rounds)
            more = self.policy.more_rounds(rounds, open_probes)
            if more:
                worth = self._worth(batch, open_probes, rounds, more)
                if best is None or worth > best[0]:
                    best = (worth, number, rounds + more)
        return None if best is None else best[1:]

    def _worth(self, batch: Batch, open_probes: Mapping[str, Measurement], rounds: int, more: int) -> float:
        """Variance that further rounds take from the sum of the batch, relative to that sum's square, per second."""
        total_s = sum(self.plan.weight(one) * summarise(self._samples[one], self.campaign.clock).latency_s
                      for one in batch.probes if one in self._samples)  # fmt: skip
        gained = sum((self.plan.weight(probe) * one.stderr_s) ** 2 for probe, one in open_probes.items())
        visited = open_probes if batch.visits == "cold" else batch.loads
        cost_s = sum(
            device_s(self._samples[probe_of(load)][-1:]) for load in visited if probe_of(load) in self._samples
        )
        return gained * more / (rounds + more) / max(total_s, 1e-12) ** 2 / max(cost_s * more, 1e-12)

    def _load(self, load: str) -> bool:
        """Loads a probe unless the device refuses it, now or before; whether it is there."""
        probe = self.plan.probes[probe_of(load)]
        if probe.id in self._refused:
            return False
        self._check_stop()
        try:
            self.session.put(payload_of(probe, load))
        except BackendError as refusal:
            if load != probe.id:  # a copy too many, perhaps; the probe itself is there
                return False
            self._refuse(probe, refusal.why or refusal.what)
            return False
        except WorkerDied as death:  # it may have died of something else, but hardly every time
            if self.journal.count_death(self.campaign.id, self.session.token, probe.id) >= DEADLY:
                self._refuse(probe, f"the worker died of it: {death.why}")
            raise
        return True

    def _refuse(self, probe: Probe, reason: str) -> None:
        self._refused.add(probe.id)
        self.journal.refuse(self.campaign.id, self.session.token, probe.id, reason)

    def _settle(self, batch: Batch) -> None:
        """A round that is not timed: what loading left in the caches is none of the probes' business."""
        visits = [Visit(load, 0, 1) for load in batch.loads]
        self._spend(sum(device_s(one.samples) for one in self._run(visits)))

    def _visit(self, due: Sequence[tuple[Place, str]], batch: Batch) -> None:
        visits = [Visit(load, batch.warmup, batch.runs) for _, load in due]
        for series, state in self._series(visits):
            taken = [(due[one.visit][0], probe_of(one.probe), one.samples) for one in series]
            self.journal.add(self.campaign.id, self.session.token, taken, state)
            for _, probe, samples in taken:
                self._samples.setdefault(probe, []).extend(samples)
                self._device_s += device_s(samples)
                self._visited += len(samples)
        if batch.warmup:  # an untimed run takes about what a timed one does
            runs = batch.warmup / batch.runs
            self._spend(runs * sum(device_s(self._samples[probe_of(load)][-batch.runs :]) for _, load in due
                                   if probe_of(load) in self._samples))  # fmt: skip

    def _spend(self, seconds: float) -> None:
        self._device_s += seconds
        self.journal.spend(self.campaign.id, self.session.token, seconds)

    def _run(self, visits: Sequence[Visit]) -> Iterator[Series]:
        for series, _ in self._series(visits):
            yield from series

    def _series(self, visits: Sequence[Visit]) -> Iterator[tuple[tuple[Series, ...], Mapping[str, float]]]:
        self._check_stop()
        for series, state in self.session.run(visits):
            yield series, state
            if self.stop.is_set():
                self.session.cancel()
        self._check_stop()

    def _check_stop(self) -> None:
        if self.stop.is_set():
            raise Interrupted(
                "Stopped on request", why="All samples so far are in the journal", next_step=self._again(),
            )  # fmt: skip

    def _again(self) -> str:
        resumes = self.campaign.settings["purpose"] != "validate"
        return "Run the same command again to resume" if resumes else "Run the same command again; it begins anew"

    def _report(self, stage: str, batch: int) -> None:
        done, planned = self._progress()
        elapsed_s = time.monotonic() - self._started_s
        remaining_s = elapsed_s * (planned - done) / done if done and self._visited else None
        samples = sum(map(len, self._samples.values()))
        rounds = self._rounds[batch]
        self.observe(Progress(stage, batch, len(self.plan.batches), rounds, samples, self._device_s, remaining_s))

    def _progress(self) -> tuple[float, float]:
        """Visits done, and those that the fewest rounds ask for or more where more were done."""
        sizes = [len(batch.loads) for batch in self.plan.batches]
        fewest = self.policy.passes[-1]
        done = sum(size * rounds for size, rounds in zip(sizes, self._rounds, strict=True))
        planned = sum(size * max(fewest, rounds) for size, rounds in zip(sizes, self._rounds, strict=True))
        return float(done), float(planned)
