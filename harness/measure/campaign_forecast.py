"""The time of a campaign: before it, from earlier ones; during it, from loads and visits of batches so far."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self

from harness.device.session import PREPARE, AgentSession
from harness.measure.device_requests import DeviceRequests
from harness.measure.journal.journal import Journal
from harness.measure.journal.records import Campaign
from harness.measure.noise.campaign_noise import GOLDEN
from harness.measure.progress import Observer, Progress
from harness.network.assemble import AssembledModel
from harness.network.effort import compile_effort, run_effort, side_by_side
from harness.probe.batches import probe_of
from harness.probe.probe_plan import ProbePlan

_LOAD_BYTES = 300 << 10
"""The fixed time to load a probe, expressed as the number of bytes of weights that take as long to load."""
_NEWEST = 5
"""Campaigns that count: a device and its host change."""
_PAUSE_S = 60.0
"""A longer time without a sample is an interruption."""


@dataclass
class CampaignForecast:
    """The durations measured so far in a campaign; those of unvisited batches are scaled from the others by size.

    `loads` are the efforts of loading the batches, and `sizes` those of a round, in any units; `passes` are the rounds
    that each has after each pass over it. `rounds` are those done, by batch. A device that `compiles` spends most of
    its loading time on that. `step_s` is the remaining time of the current loading step, 0 if there is none.
    """

    loads: Sequence[float]
    sizes: Sequence[float]
    passes: Sequence[Sequence[int]]
    rounds: list[int]
    compiles: bool = False
    step_s: float = field(default=0.0, init=False)
    _load_s: dict[int, float] = field(default_factory=dict)
    _round_s: dict[int, float] = field(default_factory=dict)
    _kept: dict[int, bool] = field(default_factory=dict)
    _expected: dict[int, tuple[int, float]] = field(default_factory=dict)
    _loading: tuple[int, float] | None = None

    @classmethod
    def of(cls, session: AgentSession, plan: ProbePlan, passes: Sequence[Sequence[int]], rounds: list[int]) -> Self:
        """Return the forecast of a plan before its batches are loaded."""
        batches = [[plan.probes[probe_of(load)].model for load in one.loads] for one in plan.batches]
        compiles = PREPARE in session.hello.reveals
        loads = _compile_efforts(session, batches) if compiles else [sum(map(_load_effort, one)) for one in batches]
        sizes = [sum(run_effort(model.products) for model in models) for models in batches]
        return cls(loads, sizes, passes, rounds, compiles)

    def loading(self, batch: int, share: float, next_share: float, seconds: float) -> None:
        """Note which share of a batch is prepared after some seconds, and which it will be after the present step.

        The batch takes at least as long as others of its size. What is prepared still has to be loaded.
        """
        if self._kept.get(batch):
            return
        others = {number: took_s for number, took_s in self._load_s.items() if number != batch}
        expected_s = self._mean(others, self.loads) * self.loads[batch]
        whole_s = max(seconds / share, expected_s, 1e-9) if share else self._load_s.get(batch, expected_s)
        self._load_s[batch], self.step_s = whole_s, max(0.0, next_share * whole_s - seconds)
        self._loading = batch, seconds / whole_s if share else 0.0

    def loaded(self, batch: int, seconds: float) -> None:
        """Note how long it took to load a batch."""
        self._loading, self.step_s = None, 0.0
        if not self._kept.get(batch):
            self._load_s[batch] = seconds

    def visited(self, batch: int, rounds: int, seconds: float) -> None:
        """Note how long it took to bring a batch to so many rounds."""
        self._round_s[batch] = seconds / max(1, rounds - self.rounds[batch])
        self.rounds[batch] = rounds

    def ended(self, batch: int, expected: int, share: float, *, kept: bool) -> None:
        """Note the rounds that a batch will need, the share of its loads in those beyond the passes, and if it stays.

        A batch that stays loaded is not loaded for the next pass.
        """
        self._expected[batch], self._kept[batch] = (expected, share), kept

    @property
    def remaining_s(self) -> float | None:
        """The seconds that the campaign still takes; None before the first visit."""
        if not self._round_s:
            return None
        load_s, round_s = self._mean(self._load_s, self.loads), self._mean(self._round_s, self.sizes)
        return sum(self._batch_s(batch, load_s, round_s) for batch in range(len(self.sizes)))

    @property
    def effort(self) -> float:
        """The effort of compiling what the passes still need, or of their rounds if everything is compiled."""
        rounds_left = [max((0, *passes)) - done for passes, done in zip(self.passes, self.rounds, strict=True)]
        loads = sum(load for load, left in zip(self.loads, rounds_left, strict=True) if left > 0)
        rounds = sum(size * max(0, left) for size, left in zip(self.sizes, rounds_left, strict=True))
        return (self.compiles and loads) or rounds

    def _batch_s(self, batch: int, usual_load_s: float, usual_round_s: float) -> float:
        """Return the seconds that a batch still takes; `usual` ones are those of others per effort."""
        done, own = self.rounds[batch], [rounds for rounds in self.passes[batch] if rounds > self.rounds[batch]]
        last = max((done, *own))
        expected, share = self._expected.get(batch) or self._typical(last)
        further = max(0, expected - last)
        loadings = len(own) + bool(further)
        if self._kept.get(batch, self._mostly_kept):
            loadings = min(loadings, int(batch not in self._load_s))
        load_s = self._load_s.get(batch, usual_load_s * self.loads[batch])
        round_s = self._round_s.get(batch, usual_round_s * self.sizes[batch])
        if self._loading is not None and self._loading[0] == batch:
            load_s, loadings = (1 - self._loading[1]) * load_s, 1
        return loadings * load_s + (last - done + share * further) * round_s

    def _typical(self, last: int) -> tuple[int, float]:
        """Return what a batch needs that was not visited yet: the mean of the others."""
        if not self._expected:
            return last, 1.0
        rounds, shares = zip(*self._expected.values(), strict=True)
        return max(last, round(sum(rounds) / len(rounds))), sum(shares) / len(shares)

    @property
    def _mostly_kept(self) -> bool:
        return 2 * sum(self._kept.values()) >= len(self._kept)

    @staticmethod
    def _mean(seconds: dict[int, float], efforts: Sequence[float]) -> float:
        """Return the seconds per effort."""
        effort = sum(efforts[batch] for batch in seconds)
        return sum(seconds.values()) / effort if effort else 0.0


class CampaignProgress:
    """Reports the progress of a campaign, batch by batch, with the share of its time that has passed.

    A campaign with a budget of `budget_s` of device time ends no later than the budget at the present pace.
    """

    def __init__(
        self, observe: Observer, forecast: CampaignForecast, requests: DeviceRequests, budget_s: float | None
    ) -> None:
        self._observe, self._forecast, self._requests, self._budget_s = observe, forecast, requests, budget_s
        self._effort, self._began_s = forecast.effort, time.monotonic()
        self._batch, self._step_began_s = 0, self._began_s

    def loading(self, batch: int) -> None:
        """Report that the loading of a batch begins; what follows concerns this batch."""
        self._batch = batch
        self._forecast.loading(batch, 0.0, 1.0, 0.0)
        self._report("loading")
        self._step_began_s = time.monotonic()

    def compiling(self, progress: Progress) -> None:
        """Report how far the device has compiled the batch."""
        share, following = progress.share or 0.0, progress.next_share or 1.0
        self._forecast.loading(self._batch, share, following, time.monotonic() - self._step_began_s)
        self._report("compiling")

    def loaded(self) -> None:
        """Report that the batch is loaded, and its visits begin."""
        self._forecast.loaded(self._batch, time.monotonic() - self._step_began_s)
        self._report("measuring")

    def visiting(self) -> None:
        """Note that visits of the batch begin."""
        self._step_began_s = time.monotonic()

    def visited(self, rounds: int) -> None:
        """Report that the batch has so many rounds."""
        self._forecast.visited(self._batch, rounds, time.monotonic() - self._step_began_s)
        self._report("measuring")

    def ended(self, expected: int, share: float, *, kept: bool) -> None:
        """Note what the batch will still need; see `CampaignForecast.ended`."""
        self._forecast.ended(self._batch, expected, share, kept=kept)

    def _left_s(self) -> float | None:
        left_s, requests = self._forecast.remaining_s, self._requests
        if left_s is None or self._budget_s is None or not requests.visited:
            return left_s
        slowness = requests.elapsed_s / max(requests.spent_here_s, 1e-9)
        return min(left_s, max(0.0, self._budget_s - requests.spent_s) * slowness)

    def _report(self, stage: str) -> None:
        left_s, gone_s = self._left_s(), time.monotonic() - self._began_s
        whole_s, step_s = max(1e-9, gone_s + (left_s or 0.0)), self._forecast.step_s
        progress = Progress(
            stage,
            self._batch,
            len(self._forecast.sizes),
            self._forecast.rounds[self._batch],
            sum(map(len, self._requests.samples.values())),
            self._requests.spent_s,
            phase="measuring",
            effort=self._effort,
            share=None if left_s is None else gone_s / whole_s,
            next_share=min(1.0, (gone_s + step_s) / whole_s) if left_s and step_s else None,
        )
        self._observe(progress)


def _load_effort(model: AssembledModel) -> float:
    """Return about how long a runtime takes to load a model relative to others."""
    return math.sqrt(_LOAD_BYTES + model.weight_bytes + model.input_bytes + model.output_bytes)


def _compile_efforts(session: AgentSession, batches: Sequence[Sequence[AssembledModel]]) -> list[float]:
    """Return about how long each batch takes to compile; the first one compiles what several have in common."""
    products = {model.content: model.products for models in batches for model in models}
    left = {content: compile_effort(products[content]) for content in session.unprepared(products)}
    return [side_by_side(left.pop(model.content, 0.0) for model in models) for models in batches]


@dataclass(frozen=True)
class Pace:
    """Wall time of a campaign for each of its probes, the median of `campaigns` earlier ones.

    `around_s` is the wall time of what surrounds a campaign: golden probes, and the search for fusion.
    """

    per_probe_s: float
    around_s: float
    campaigns: int

    def wall_s(self, probes: int) -> float:
        """Return the wall time that a campaign of so many probes takes."""
        return self.around_s + self.per_probe_s * probes


def pace_of(journal: Journal, device: str, purpose: str) -> Pace | None:
    """Return the pace of the newest complete campaigns of a device with this purpose; None if there is none."""
    known = journal.campaigns(device)
    complete = [one for one in known if one.complete and one.purpose == purpose][-_NEWEST:]
    found = [(_span_s(journal, one), len(journal.probes(one.id)), _around_s(journal, known, one)) for one in complete]
    found = [one for one in found if one[0] > 0 and one[1] > 1]  # not those of the reference probe by itself
    per_probe = [span_s / probes for span_s, probes, _ in found]
    if not per_probe:
        return None
    return Pace(statistics.median(per_probe), statistics.median(one[2] for one in found), len(per_probe))


def _span_s(journal: Journal, campaign: Campaign) -> float:
    """Return the time from the start of a campaign to its last sample, without interruptions."""
    times = [datetime.fromisoformat(campaign.created), *journal.times(campaign.id)]
    gaps = [(after - before).total_seconds() for before, after in itertools.pairwise(times)]
    return sum(gap for gap in gaps if 0 < gap < _PAUSE_S)


def _around_s(journal: Journal, known: Sequence[Campaign], campaign: Campaign) -> float:
    """Return the time from the golden probe before a campaign to it, and the time of the golden probe after it."""
    at = next(number for number, one in enumerate(known) if one.id == campaign.id)
    before = [one for one in known[:at] if one.purpose == GOLDEN][-1:]
    after = [one for one in known[at + 1 :] if one.purpose == GOLDEN][:1]
    start = datetime.fromisoformat(campaign.created)
    ahead_s = sum((start - datetime.fromisoformat(one.created)).total_seconds() for one in before)
    return min(ahead_s, len(known) * _PAUSE_S) + sum(_span_s(journal, one) for one in after)
