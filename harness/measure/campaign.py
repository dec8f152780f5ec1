"""Runs a probe plan on a device: batches of probes, rounds in random order, every sample into the journal."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness.device.session import AgentSession, ProbePayload, Sample, Visit
from harness.errors import BackendError, Interrupted, WorkerDied
from harness.measure.journal import Campaign, Journal, Place
from harness.measure.policy import RepeatPolicy, visit_order
from harness.measure.progress import Observer, Progress
from harness.measure.summary import Measurement, summarise
from harness.probe.plan import ProbePlan
from harness.probe.probe import Probe

RUNS_PER_VISIT: Mapping[str, tuple[int, int]] = {"network": (1, 3), "single": (2, 3)}
"""Warm-up and timed runs per visit by role. All others run once, cold: one sample a visit."""


def payload_of(probe: Probe) -> ProbePayload:
    """The probe as the session sends it."""
    model = probe.model
    return ProbePayload(
        probe.id,
        model.content,
        tuple(spec.wire() for spec in model.weights),
        tuple(spec.wire() for spec in model.inputs),
        model.output_bytes,
    )


@dataclass
class CampaignRun:
    """One sitting of a campaign; `stop` ends it after the current visit, everything kept."""

    session: AgentSession
    journal: Journal
    campaign: Campaign
    plan: ProbePlan
    policy: RepeatPolicy
    observe: Observer
    stop: threading.Event
    _device_s: float = 0.0
    _samples: int = 0
    _due: list[int] = field(default_factory=list)
    _refused: set[str] = field(default_factory=set)
    _started_s: float = field(default_factory=time.monotonic)

    def run(self) -> None:
        """Measures what the journal does not hold yet; raises Interrupted when stopped, and a DeviceError.

        The campaign is complete when every batch has been measured well enough, or as well as the budget
        allows and with the fewest rounds at least.
        """
        for taken in self.journal.samples(self.campaign.id).values():
            self._count(taken)
        self._refused = {record.id for record in self.journal.probes(self.campaign.id).values() if record.refused}
        finished = self.journal.finished_batches(self.campaign.id)
        self._due = [number for number in range(len(self.plan.batches)) if number not in finished]
        rounds = [self._run_batch(number, self.plan.batches[number]) for number in self._due]
        if min(rounds, default=self.policy.fewest_rounds) >= self.policy.fewest_rounds:
            settled = len(self.journal.finished_batches(self.campaign.id)) == len(self.plan.batches)
            self.journal.complete(self.campaign.id, settled)

    def _run_batch(self, number: int, batch: Sequence[str]) -> int:
        """Runs rounds until they are enough or the batch's part of the budget is spent; returns how many.

        A batch that had enough is marked in the journal; another goes on when the campaign is resumed.
        """
        self._report("loading", number, 0)
        reference = self.plan.reference
        present = {probe for probe in (*batch, reference) if self._load(self.plan.probes[probe])}
        loaded = [probe for probe in batch if probe in present]
        samples = self.journal.samples(self.campaign.id, number)
        taken = self.journal.places(self.campaign.id, number)
        allowance_s = self._allowance_s(number)
        started_s = self._device_s
        rounds = 0
        visited = False
        while not self._is_enough(rounds, samples, loaded) and not (
            allowance_s is not None and visited and self._device_s - started_s >= allowance_s
        ):
            order = visit_order(self.campaign.seed, number, rounds, batch, reference)
            due = [(Place(number, rounds, at), probe) for at, probe in enumerate(order) if probe in present]
            due = [(place, probe) for place, probe in due if place not in taken]
            visited |= bool(due)
            for probe, sample in self._visit(due):
                samples.setdefault(probe, []).append(sample)
            rounds += 1
            self._report("measuring", number, rounds)
        self.session.drop(sorted(present))
        if self._is_enough(rounds, samples, loaded):
            self.journal.finish_batch(self.campaign.id, number)
        return rounds if loaded else self.policy.fewest_rounds

    def _load(self, probe: Probe) -> bool:
        """Loads a probe unless the device refuses it, now or before; whether it is there."""
        if probe.id in self._refused:
            return False
        self._check_stop()
        try:
            self.session.put(payload_of(probe))
        except BackendError as refusal:
            self._refuse(probe, refusal.why or refusal.what)
            return False
        except WorkerDied as death:  # it may have died of something else, but hardly twice
            if self.journal.count_death(self.campaign.id, probe.id) > 1:
                self._refuse(probe, f"the worker died of it: {death.why}")
            raise
        return True

    def _refuse(self, probe: Probe, reason: str) -> None:
        self._refused.add(probe.id)
        self.journal.refuse(self.campaign.id, probe.id, reason)

    def _count(self, samples: Sequence[Sample]) -> None:
        self._samples += len(samples)
        self._device_s += sum(sample.device_ns or sample.wall_ns for sample in samples) / 1e9

    def _visit(self, due: Sequence[tuple[Place, str]]) -> Iterator[tuple[str, Sample]]:
        self._check_stop()
        visits = [Visit(probe, *RUNS_PER_VISIT.get(self.plan.probes[probe].role, (0, 1))) for _, probe in due]
        for series, state in self.session.run(visits):
            self.journal.add(
                self.campaign.id, self.session.token, [(*due[one.visit], one.samples) for one in series], state
            )
            for one in series:
                self._count(one.samples)
                yield from ((one.probe, sample) for sample in one.samples)
            if self.stop.is_set():
                self.session.cancel()
        self._check_stop()

    def _is_enough(self, rounds: int, samples: Mapping[str, Sequence[Sample]], loaded: Sequence[str]) -> bool:
        if not loaded:
            return True
        return rounds > 0 and self.policy.is_enough(rounds, self._measurements(samples, loaded))

    def _measurements(self, samples: Mapping[str, Sequence[Sample]], loaded: Sequence[str]) -> dict[str, Measurement]:
        return {probe: summarise(samples[probe], self.campaign.clock) for probe in loaded if probe in samples}

    def _allowance_s(self, number: int) -> float | None:
        """This batch's part of the device time that is left, by its number of probes."""
        if self.policy.budget_s is None:
            return None
        ahead = sum(len(batch) for batch in self.plan.batches[number:])
        return max(0.0, self.policy.budget_s - self._device_s) * len(self.plan.batches[number]) / ahead

    def _check_stop(self) -> None:
        if self.stop.is_set():
            raise Interrupted(
                "Stopped on request", why="All samples so far are in the journal", next_step=self._again(),
            )  # fmt: skip

    def _again(self) -> str:
        resumes = self.campaign.settings["purpose"] == "profile"
        return "Run the same command again to resume" if resumes else "Run the same command again; it begins anew"

    def _report(self, stage: str, batch: int, round: int) -> None:
        self.observe(
            Progress(
                stage,
                batch,
                len(self.plan.batches),
                round,
                self._samples,
                self._device_s,
                self._remaining_s(batch, round),
            )
        )

    def _remaining_s(self, batch: int, round: int) -> float | None:
        """Time left if the probes ahead take as long as those behind, and every round that may be needed."""
        sizes = {number: len(self.plan.batches[number]) for number in self._due}
        share = min(1.0, round / (self.policy.runs or self.policy.max_rounds))
        behind = sum(size for number, size in sizes.items() if number < batch) + sizes[batch] * share
        elapsed_s = time.monotonic() - self._started_s
        return elapsed_s * (sum(sizes.values()) - behind) / behind if behind else None
