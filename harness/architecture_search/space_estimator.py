"""Estimates of any number of candidates of a search space, as array operations on tables that are made once."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.architecture_search.block_codes import Choices
from harness.architecture_search.candidate_weights import WeightTables
from harness.architecture_search.layer_terms import ErrorSources, Terms
from harness.architecture_search.loaded_ahead import LoadedAhead
from harness.architecture_search.neighbourhood_windows import windows_of_neighbours
from harness.architecture_search.pair_tables import PairTables
from harness.architecture_search.position_tables import Candidate, PositionTable, WindowSearch
from harness.architecture_search.search_space import SearchSpace
from harness.architecture_search.sum_tables import SumTables
from harness.arguments import checked, instance
from harness.array_types import Floats
from harness.errors import UsageError
from harness.estimation.layer_estimates import MOSTLY, LookedUp, look_up, mixture
from harness.estimation.network_estimate import COVERAGE_CLASSES
from harness.latency.overhead import row_of
from harness.lut.table import Lut
from harness.lut.table_choice import TableReference, open_lut
from harness.measure.noise.interruptions import lengthening
from harness.measure.summary import Z_95
from harness.network.keyed_network import KeyedLayer, keyed
from harness.probe.overhead_terms import transfers
from harness.workspace import AnyWorkspace

CHUNK = 1 << 13
"""Candidates per batch of computation: their arrays stay in a core's cache."""
_FIELD_BITS = 16


@dataclass(frozen=True)
class CandidateEstimates:
    """Latencies of candidates with their 95 % intervals, NaN where a layer is unknown; in seconds."""

    latency_s: Floats
    low_s: Floats
    high_s: Floats


@dataclass(frozen=True)
class SpaceTables:
    """The tables for candidates whose weights are all in the caches, or all in memory.

    `ahead` is what the device saves by loading weights ahead of predicted layers; None if it does not.
    """

    positions: tuple[PositionTable, ...]
    covariance: Floats
    latencies: SumTables
    coverage: SumTables
    ahead: LoadedAhead | None = None

    @classmethod
    def of(
        cls,
        positions: tuple[PositionTable, ...],
        sizes: Sequence[int],
        covariance: Floats,
        ahead: LoadedAhead | None = None,
    ) -> SpaceTables:
        """Build the tables from the tables of the positions."""
        latencies = SumTables.of(positions, sizes, lambda one: one.remainder_s if one.is_complete else np.nan)
        return cls(positions, covariance, latencies, SumTables.of(positions, sizes, _packed, np.int64), ahead)

    @functools.cached_property
    def variances(self) -> PairTables:
        """The tables of variances, which only intervals need."""
        return PairTables.of(self.positions, self.latencies.codes.sizes, self.covariance)

    @functools.cached_property
    def loads(self) -> SumTables:
        """The tables of loads of weights, which only devices with their own memory need."""
        return SumTables.of(self.positions, self.latencies.codes.sizes, lambda one: one.loads_s)

    def layers_s(self, choices: Choices) -> Floats:
        """Return the sum of the latencies of each candidate's layers."""
        found = np.asarray(self.latencies.sums(choices), np.float64)
        return found if self.ahead is None else found - self.ahead.saved_s(choices)


@dataclass(frozen=True)
class SpaceEstimator:
    """Tables of a space. Estimates are those of `harness.estimate` for the network of each candidate.

    `overhead_s` and `exchange_s` are those of every candidate, with their variances. The layers take at least
    `exchange_s` and the loads of their weights.
    `relative_variance` is that of errors which all layers share, `interruptions` is that of the table. `tables` are for
    weights that are in the caches and for those that are not, or one for both; where there are two, `weights` mixes
    them.
    """

    sizes: tuple[int, ...]
    overhead_s: float
    overhead_variance_s2: float
    relative_variance: float
    interruptions: float
    exchange_s: float
    exchange_variance_s2: float
    tables: tuple[SpaceTables, ...]
    weights: WeightTables | None = None

    @classmethod
    def of(cls, space: SearchSpace, table: Lut) -> SpaceEstimator:
        """Look up or predict the layers of a space, and make the tables.

        Raises UnsupportedNetwork if layers depend on the choices of too many positions.
        """
        terms = transfers(space.network.input_sizes, space.network.output_sizes)
        overhead_s, variance_s2 = table.overhead.of(row_of(terms))
        weights = WeightTables.of(space, table)
        states = (table.cache_bytes is not None,) if weights is None else (True, False)
        relative = table.sum_error**2 + table.overhead.drift**2 + table.repeatability**2
        tables = tuple(_tables(space, table, is_warm) for is_warm in states)
        exchange = table.overhead.exchange(space.network.whole_input_bytes, terms.output_bytes)
        return cls(space.sizes, overhead_s, variance_s2, relative, table.interruptions, *exchange, tables, weights)

    def latency_s(self, candidates: ArrayLike) -> Floats:
        """Return the latency of each row of choices, NaN where a layer is unknown."""
        return np.concatenate([self._latency_s(part) for part in self._parts(candidates)])

    def intervals_s(self, candidates: ArrayLike) -> CandidateEstimates:
        """Return latencies and intervals of rows of choices."""
        found = [self._interval_s(part) for part in self._parts(candidates)]
        return CandidateEstimates(*(np.concatenate(column) for column in zip(*found, strict=True)))

    def coverage(self, candidates: ArrayLike) -> dict[str, NDArray[np.int64]]:
        """Return how many layers of each candidate are measured, interpolated, extrapolated and unknown."""
        packed = np.concatenate([self._coverage(part) for part in self._parts(candidates)])
        mask = (1 << _FIELD_BITS) - 1
        return {name: packed >> (_FIELD_BITS * at) & mask for at, name in enumerate(COVERAGE_CLASSES)}

    def checked(self, candidates: ArrayLike) -> NDArray[np.integer[Any]]:
        """Return candidates as an array; raises UsageError unless each row has a valid choice for each position."""
        rows = np.asarray(candidates)
        if rows.ndim != 2 or rows.shape[1] != len(self.sizes) or not np.issubdtype(rows.dtype, np.integer):
            what = f"Candidates are not an array of whole numbers with {len(self.sizes)} columns"
            why = f"It has shape {rows.shape} and type {rows.dtype}"
            step = "Give one row for each candidate, one column for each position of several choices"
            raise UsageError(what, why=why, next_step=step)
        return rows

    def _parts(self, candidates: ArrayLike) -> list[Choices]:
        """Return checked candidates in chunks, one row for each position."""
        rows = self.checked(candidates)
        chunks = [rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)] or [rows]
        return [self._transposed(chunk) for chunk in chunks]

    def _transposed(self, rows: NDArray[np.integer[Any]]) -> Choices:
        columns = np.ascontiguousarray(rows.T)
        low = columns.min(axis=1, initial=0)
        wrong = (low < 0) | (columns.max(axis=1, initial=0) >= self.sizes)
        if wrong.any():
            at = int(np.argmax(wrong))
            what = f"A candidate has a choice at position {at} that the space does not have"
            raise UsageError(what, next_step=f"Give choices from 0 to {self.sizes[at] - 1}")
        return columns.astype(np.uint8, copy=False)

    def _coverage(self, choices: Choices) -> NDArray[Any]:
        found = [one.coverage.sums(choices) for one in self.tables]
        if self.weights is None:
            return found[0]
        return np.where(self.weights.cold_shares(choices, self.tables[0].layers_s(choices)) > MOSTLY, *found[::-1])

    def _sums(self, choices: Choices) -> list[Floats]:
        """Return the sums of the layers' latencies from each table."""
        return [one.layers_s(choices) for one in self.tables]

    def _latency_s(self, choices: Choices) -> Floats:
        layers_s, *cold_s = self._sums(choices)
        share = self._cold_shares(choices, layers_s)
        for one_s in cold_s:
            layers_s += share * (one_s - layers_s)
        np.maximum(layers_s, self._least_s(choices, share), out=layers_s)
        layers_s += self.overhead_s
        return layers_s if self.interruptions == 0 else layers_s * lengthening(layers_s, self.interruptions)[0]

    def _cold_shares(self, choices: Choices, warm_s: Floats) -> Floats:
        """Return the share of its weights that each candidate misses; 0 where one table serves for all."""
        return np.zeros(len(warm_s)) if self.weights is None else self.weights.cold_shares(choices, warm_s)

    def _least_s(self, choices: Choices, share: Floats) -> Floats:
        """Return how long each candidate's transfers take; 0 on a device without a memory of its own."""
        if not self.exchange_s:
            return np.zeros(len(share))
        warm_s, *cold_s = (np.asarray(one.loads.sums(choices), np.float64) for one in self.tables)
        for one_s in cold_s:
            warm_s += share * (one_s - warm_s)
        return self.exchange_s + warm_s

    def _interval_s(self, choices: Choices) -> tuple[Floats, Floats, Floats]:
        variances_s2 = (one.variances.sums(choices) for one in self.tables)
        (layers_s, variance_s2), *cold = zip(self._sums(choices), variances_s2, strict=True)
        share = self._cold_shares(choices, layers_s)
        for one in cold:
            layers_s, variance_s2 = mixture(share, (layers_s, variance_s2), one)
        least_s = self._least_s(choices, share)
        latency_s = self.overhead_s + np.maximum(layers_s, least_s)
        factor, doubt = lengthening(latency_s, self.interruptions)
        latency_s = factor * latency_s
        exchange_variance_s2 = np.where((self.exchange_s > 0.0) & (layers_s < least_s), self.exchange_variance_s2, 0.0)
        variance_s2 = factor**2 * (np.maximum(variance_s2, 0.0) + self.overhead_variance_s2 + exchange_variance_s2)
        variance_s2 += (self.relative_variance + doubt**2) * latency_s**2
        half_s = Z_95 * np.sqrt(variance_s2)
        return latency_s, np.maximum(latency_s - half_s, 0.0), latency_s + half_s


@checked(space=instance(SearchSpace, "a SearchSpace, which SearchSpace.read makes"))
def estimate_space(
    space: SearchSpace,
    *,
    device: str | None = None,
    lut: TableReference = None,
    workspace: AnyWorkspace = None,
    batch: int | None = None,
    threads: int | None = None,
) -> SpaceEstimator:
    """Make the tables of a space from the newest table of `device`, or from the table `lut`, given as in `open_lut`."""
    table = open_lut(device, lut=lut, workspace=workspace, batch=batch, threads=threads)
    return SpaceEstimator.of(space, table)


def _tables(space: SearchSpace, table: Lut, is_warm: bool) -> SpaceTables:
    sources = ErrorSources(table)

    def terms_of(candidate: Candidate) -> tuple[Terms, ...]:
        network = keyed(space.network_of(candidate), table.rules)
        layers: dict[int, list[tuple[KeyedLayer, LookedUp]]] = defaultdict(list)
        found = zip(network.layers, look_up(network, table, is_warm=is_warm), strict=True)
        for at, layer in zip(space.positions_of(network.layers), found, strict=True):
            layers[at].append(layer)
        return tuple(sources.terms(layers[at]) for at in range(len(space.sizes)))

    search = WindowSearch(space.sizes, terms_of, lambda windows: windows_of_neighbours(space, table, windows))
    positions = search.tables()
    loads = sources.weight_loads()
    ahead = None if loads is None else LoadedAhead.of(positions, space.sizes, loads, table.weights_ahead)
    return SpaceTables.of(positions, space.sizes, sources.covariance(), ahead)


def _packed(terms: Terms) -> int:
    return sum(count << (_FIELD_BITS * at) for at, count in enumerate(terms.coverage))
