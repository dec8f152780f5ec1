"""The time that a campaign still takes, from what its batches have taken to load and to visit so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class CampaignForecast:
    """What a campaign has measured of itself; batches that it has not met take as long as the others by their size.

    `sizes` are the efforts that the batches take, in any unit, and `passes` the rounds that each has after each pass
    over it. `rounds` are those done, by batch.
    """

    sizes: Sequence[float]
    passes: Sequence[Sequence[int]]
    rounds: list[int]
    _load_s: dict[int, float] = field(default_factory=dict)
    _round_s: dict[int, float] = field(default_factory=dict)
    _kept: dict[int, bool] = field(default_factory=dict)
    _expected: dict[int, tuple[int, float]] = field(default_factory=dict)
    _loading: tuple[int, float] | None = None

    def loading(self, batch: int, share: float, seconds: float) -> None:
        """Note that a share of a batch is prepared after some seconds; it takes no less than others by their size.

        What is prepared has still to be loaded.
        """
        if share > 0 and not self._kept.get(batch):
            others = {number: took_s for number, took_s in self._load_s.items() if number != batch}
            whole_s = max(seconds / share, self._mean(others) * self.sizes[batch], seconds, 1e-9)
            self._load_s[batch] = whole_s
            self._loading = batch, seconds / whole_s

    def loaded(self, batch: int, seconds: float) -> None:
        """Note how long it took to load a batch."""
        self._loading = None
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
    def work(self) -> float:
        """The effort of the rounds that the passes still need."""
        needs = zip(self.sizes, self.passes, self.rounds, strict=True)
        return sum(size * max(0, max(passes, default=0) - done) for size, passes, done in needs)

    def _batch_s(self, batch: int) -> float:
        done, own = self.rounds[batch], [rounds for rounds in self.passes[batch] if rounds > self.rounds[batch]]
        last = max((done, *own))
        expected, share = self._expected.get(batch) or self._typical(last)
        further = max(0, expected - last)
        loadings = len(own) + bool(further)
        if self._kept.get(batch, self._mostly_kept):
            loadings = min(loadings, int(batch not in self._load_s))
        size = self.sizes[batch]
        load_s = self._load_s.get(batch, self._mean(self._load_s) * size)
        round_s = self._round_s.get(batch, self._mean(self._round_s) * size)
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
        return 2 * sum(self._kept.values()) > len(self._kept)

    def _mean(self, seconds: dict[int, float]) -> float:
        """Return the seconds per effort."""
        return sum(seconds.values()) / max(1.0, sum(self.sizes[batch] for batch in seconds))
