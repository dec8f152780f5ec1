"""The remaining time of a campaign, from the time that loading and visiting its batches has taken so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from harness.device.session import PREPARE, AgentSession
from harness.network.assemble import AssembledModel
from harness.network.effort import compile_effort, run_effort, side_by_side
from harness.probe.batches import probe_of
from harness.probe.probe_plan import ProbePlan

_LOAD_BYTES = 300 << 10
"""The fixed time to load a probe, expressed as the number of bytes of weights that take as long to load."""


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

        It takes no less than others by their size. What is prepared has still to be loaded.
        """
        if self._kept.get(batch):
            return
        others = {number: took_s for number, took_s in self._load_s.items() if number != batch}
        expected_s = self._mean(others, self.loads) * self.loads[batch]
        whole_s = max(seconds / share, expected_s, 1e-9) if share else self._load_s.get(batch, expected_s)
        self._load_s[batch], self.step_s = whole_s, next_share * whole_s - seconds
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
        return sum(map(self._batch_s, range(len(self.sizes)))) if self._round_s else None

    @property
    def effort(self) -> float:
        """The effort of compiling what the passes still need, or of their rounds if nothing is left to compile."""
        rounds_left = [max((0, *passes)) - done for passes, done in zip(self.passes, self.rounds, strict=True)]
        loads = sum(load for load, left in zip(self.loads, rounds_left, strict=True) if left > 0)
        rounds = sum(size * max(0, left) for size, left in zip(self.sizes, rounds_left, strict=True))
        return (self.compiles and loads) or rounds

    def _batch_s(self, batch: int) -> float:
        done, own = self.rounds[batch], [rounds for rounds in self.passes[batch] if rounds > self.rounds[batch]]
        last = max((done, *own))
        expected, share = self._expected.get(batch) or self._typical(last)
        further = max(0, expected - last)
        loadings = len(own) + bool(further)
        if self._kept.get(batch, self._mostly_kept):
            loadings = min(loadings, int(batch not in self._load_s))
        load_s = self._load_s.get(batch, self._mean(self._load_s, self.loads) * self.loads[batch])
        round_s = self._round_s.get(batch, self._mean(self._round_s, self.sizes) * self.sizes[batch])
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


def _load_effort(model: AssembledModel) -> float:
    """Return about how long a runtime takes to load a model relative to others."""
    return math.sqrt(_LOAD_BYTES + model.weight_bytes + model.input_bytes + model.output_bytes)


def _compile_efforts(session: AgentSession, batches: Sequence[Sequence[AssembledModel]]) -> list[float]:
    """Return about how long each batch takes to compile; the first one compiles what several have in common."""
    products = {model.content: model.products for models in batches for model in models}
    left = {content: compile_effort(products[content]) for content in session.unprepared(products)}
    return [side_by_side(left.pop(model.content, 0.0) for model in models) for models in batches]
