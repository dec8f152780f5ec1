"""The time that a campaign still takes, from what its batches have taken to load and to visit so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class CampaignForecast:
    """What a campaign has measured of itself; batches that it has not met take as long as the others by their size.

    `sizes` are the efforts that the batches take, in any unit, and `passes` the rounds that each has after each pass
    over it. `rounds` are those done, by batch. `prior_s` is the time of the whole campaign if it is like earlier
    ones, None if there were none.
    """

    sizes: Sequence[float]
    passes: Sequence[Sequence[int]]
    rounds: list[int]
    prior_s: float | None = None
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
        """The seconds that the campaign still takes; before the first visit as earlier ones took, or None."""
        whole = max(1.0, sum(self.sizes))
        if not self._round_s:
            unbegun = sum(size for size, done in zip(self.sizes, self.rounds, strict=True) if not done)
            return None if self.prior_s is None else self.prior_s * unbegun / whole
        left_s = {batch: self._batch_s(batch) for batch in range(len(self.sizes))}
        unmet = [batch for batch in left_s if batch not in self._load_s]
        unmet_s = sum(left_s[batch] for batch in unmet)
        met_s = sum(left_s.values()) - unmet_s
        if self.prior_s is not None:
            # The first batches are small and say little of the others, which earlier campaigns had, too.
            share = sum(self.sizes[batch] for batch in unmet) / whole
            unmet_s = (1 - share) * unmet_s + share * self.prior_s * share
        return met_s + unmet_s

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


@dataclass
class ProcessForecast:
    """The time that several processes take which run nearly the same campaign, and that of what follows.

    `loads` are the numbers of loads that the processes measure: a process that has not begun takes as long as the one
    before, by its number of loads. What follows the last one takes `after_s`, and `after_openings` times as long as it
    took to open a process: that shows how fast the machine starts processes and reads files.
    """

    loads: Sequence[int]
    after_s: float = 0.0
    after_openings: float = 0.0
    _began_s: float = 0.0
    _number: int = 0
    _opening_s: float | None = None

    def begin(self, number: int, now_s: float) -> None:
        """Note that a process begins."""
        self._number, self._began_s = number, now_s

    def opened(self, now_s: float) -> None:
        """Note that the process is open; the first one counts."""
        if self._opening_s is None:
            self._opening_s = now_s - self._began_s

    def remaining_s(self, own_s: float | None, now_s: float) -> float | None:
        """Return the seconds left of all processes and what follows, if the present one has `own_s` left."""
        if own_s is None:
            return None
        whole_s, later = now_s - self._began_s + own_s, sum(self.loads[self._number + 1 :])
        after_s = self.after_s + self.after_openings * (self._opening_s or 0.0)
        return own_s + whole_s * later / max(1, self.loads[self._number]) + after_s


@dataclass(frozen=True)
class ClosingForecast:
    """The time behind a campaign: its second golden probe, and further processes if it takes `least_s` or longer."""

    golden_s: float
    further_s: float
    least_s: float

    def later_s(self, campaign_s: float) -> float:
        """Return the time behind a campaign of this length."""
        return self.golden_s + (self.further_s if campaign_s >= self.least_s else 0.0)
