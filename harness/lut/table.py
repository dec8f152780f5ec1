"""The lookup table: layer latencies of one device with their uncertainty."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from harness.latency.method_names import COMPARISON_METHODS, LatencyMethod
from harness.latency.overhead import Overhead, OverheadModel
from harness.lut.chain_rows import ChainRow
from harness.lut.error_correlations import Correlations, unpack, variance
from harness.lut.neighbourhoods import Neighbourhoods
from harness.measure.core_caches import cold_shares, core_cache_bytes, has_cold_activations
from harness.measure.summary import Z_95
from harness.network.fusion.fusion_rules import FusionRule
from harness.notebook import frame, html_table

if TYPE_CHECKING:
    import pandas

    from harness.lut.weights_ahead import ChainFit
    from harness.predictor.predictor import Predictor

IMPORT: Literal["import"] = "import"
"""The method of tables whose latencies another tool measured."""
MOST_S = 1e9
"""The largest time of a table, and the largest relative error: estimates add their squares."""
WARM = "warm"
FEWEST_WARM = 40
"""The fewest warm layers from which others are predicted: as many as trees learn from."""
TableMethod = LatencyMethod | Literal["import"]


@dataclass(frozen=True)
class Entry:
    """One layer in one context; the annotations are what a table's file may hold.

    `key` is the digest of `signature`. `stderr_s` covers the samples and the overhead fit. `resolved` is false where
    the layer is too short to distinguish from noise. `visit` is the visit policy of its probes. `flags` names the
    estimators that disagree beyond all errors, each with its difference; `networks` names the networks with this
    layer by the beginning of their files' hashes. `campaign`, `probe` and `baseline` lead to the journal's samples.
    The remainder is the latency before it was made positive, see `Latency`; sums add it.
    """

    key: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    context: Annotated[str, Field(pattern=r"^(outside|map|chip)(,(outside|map|chip))*(@[0-9a-f]{8})?$")]
    op: Annotated[str, Field(min_length=1)]
    latency_s: Annotated[float, Field(gt=0, le=MOST_S, allow_inf_nan=False)]
    stderr_s: Annotated[float, Field(ge=0, le=MOST_S, allow_inf_nan=False)]
    samples: Annotated[int, Field(ge=1)]
    resolved: bool
    visit: Annotated[str, Field(pattern=r"^[a-z0-9 -]{1,40}$")]
    flags: Annotated[str, Field(max_length=200)]
    networks: Annotated[str, Field(pattern=r"^([0-9a-f]{8}( [0-9a-f]{8})*)?$")]
    campaign: Annotated[int, Field(ge=0, lt=1 << 53)]
    probe: Annotated[str, Field(max_length=80)]
    baseline: Annotated[str, Field(max_length=80)]
    signature: str
    remainder_s: Annotated[float, Field(ge=-MOST_S, le=MOST_S, allow_inf_nan=False)]
    remainder_stderr_s: Annotated[float, Field(ge=0, le=MOST_S, allow_inf_nan=False)]

    @property
    def place(self) -> tuple[str, str]:
        """Key digest and context, which no two entries of a table share."""
        return self.key, self.context

    @property
    def interval_s(self) -> tuple[float, float]:
        """95 % interval; the lower end is never negative."""
        return max(0.0, self.latency_s - Z_95 * self.stderr_s), self.latency_s + Z_95 * self.stderr_s


@dataclass(frozen=True)
class Lut:
    """A published table; `path` is its folder.

    `overhead` is what the method subtracts; `other_overhead` is the fit of the other model to the same null probes,
    None where there is none. `repeatability` is the relative spread of a latency from process to process. `machine` is
    the verdict on the machine while it measured, empty if there is none. `reference_s` is the latency of the reference
    probe then, None if it was not measured. `correlations` are those of the entries' errors, packed by
    `harness.lut.error_correlations`. `predictor` holds the predictor for unmeasured layers, or nothing. `chains` are
    those of the table's networks, none where the device reports no chains. `additivity` is the robust spread in
    standard errors that the additive model leaves unexplained, None where the method does not estimate it. `sum_error`
    is the relative error of sums of entries beyond the errors of their layers; `network_errors` are those of the
    networks in which it was measured, by the beginning of their files' hashes. `interruptions` is what interruptions of
    the machine add to long networks, as a fraction.
    """

    path: Path
    device: str
    created: str
    clock: str
    method: TableMethod
    fingerprint: Mapping[str, str]
    overhead: Overhead
    rules: tuple[FusionRule, ...] = field(repr=False)
    entries: Sequence[Entry] = field(repr=False)
    additivity: float | None = None
    sum_error: float = 0.0
    network_errors: Mapping[str, float] = field(default_factory=dict, repr=False)
    correlations: bytes = field(default=b"", repr=False)
    predictor: bytes = field(default=b"", repr=False)
    chains: tuple[ChainRow, ...] = field(default=(), repr=False)
    other_overhead: Overhead | None = None
    repeatability: float = 0.0
    machine: str = ""
    reference_s: float | None = None
    interruptions: float = 0.0

    @property
    def visits(self) -> str:
        """The visit policies of the entries, separated by commas."""
        return ",".join(sorted({entry.visit for entry in self.entries}))

    @property
    def is_imported(self) -> bool:
        """Whether another tool measured the latencies; `fingerprint` says which."""
        return self.method == IMPORT

    @property
    def name(self) -> str:
        """`<device>/<folder>`."""
        return f"{self.device}/{self.path.name}"

    @property
    def is_comparison(self) -> bool:
        """Whether a method made it that is for comparison only."""
        return self.method in COMPARISON_METHODS

    def to_pandas(self) -> pandas.DataFrame:
        """Return a frame with one entry in each row; device, name, method, clock and overhead are repeated."""
        common = {
            "device": self.device,
            "lut": self.name,
            "method": self.method,
            "clock": self.clock,
            "overhead_a_s_per_byte": self.overhead.a.value,
            "overhead_b_s_per_byte": self.overhead.b.value,
            "overhead_c_s": self.overhead.c.value,
        }
        columns = (*common, *(each.name for each in fields(Entry)))
        return frame([{**common, **asdict(entry)} for entry in self.entries], columns)

    def __repr__(self) -> str:
        return f"<table {self.name}: {len(self.entries)} entries, method {self.method}, clock {self.clock}>"

    def _repr_html_(self) -> str:
        facts = (("method", self.method), ("clock", self.clock), ("entries", f"{len(self.entries)}"))
        return html_table(self.name, ("table", ""), (*facts, ("created", self.created), ("machine", self.machine)))

    def overhead_by(self, model: OverheadModel) -> Overhead | None:
        """Return the fit of this model, None where the table has none."""
        fits = (self.overhead, self.other_overhead)
        return next((one for one in fits if one is not None and one.model == model), None)

    @functools.cached_property
    def by_place(self) -> Mapping[tuple[str, str], Entry]:
        """All entries by key digest and context."""
        return {entry.place: entry for entry in self.entries}

    @functools.cached_property
    def _rows(self) -> Mapping[str, Sequence[int]]:
        """The numbers of the entries of each key."""
        found: Mapping[str, Sequence[int]] | None = getattr(self.entries, "rows", None)
        return rows_by_key(self.entries) if found is None else found

    def at(self, key: str, context: str) -> Entry | None:
        """Return the entry with this key digest and context, None if the table has none."""
        held = (self.entries[row] for row in self._rows.get(key, ()))
        return next((entry for entry in held if entry.context == context), None)

    def index_of(self, entry: Entry) -> int:
        """Return the number of an entry of this table."""
        return next(row for row in self._rows[entry.key] if self.entries[row].context == entry.context)

    def variance(self, counts: Mapping[int, float]) -> float:
        """Return the variance in s² of a sum of remainders, each counted by its index as often as `counts` says."""
        spread = {at: self.entries[at].remainder_stderr_s for at in counts}
        return variance(self._correlations, len(self.entries), spread, counts)

    @functools.cached_property
    def displacement(self) -> float:
        """How far layers in their neighbourhoods are from their time in context, as a fraction; 0 without such."""
        return displacement_of(self.entries, self._rows)

    def is_displaced(self, key: str) -> bool:
        """Return whether the table also lists a key in a neighbourhood."""
        return any("@" in self.entries[row].context for row in self._rows.get(key, ()))

    @functools.cached_property
    def _correlations(self) -> Correlations | None:
        return unpack(self.correlations, len(self.entries)) if self.correlations else None

    @functools.cached_property
    def neighbourhoods(self) -> Neighbourhoods | None:
        """Values of layers in unknown neighbourhoods; None where the device reports no chains."""
        return Neighbourhoods(self.entries, self.chains) if self.chains else None

    @functools.cached_property
    def loaded_predictor(self) -> Predictor | None:
        """The predictor, or None where the table has none; raises LutCorrupt."""
        if not self.predictor:
            return None
        from harness.predictor.predictor import Predictor  # loads numpy

        return Predictor(self.predictor)

    @functools.cached_property
    def _chain_fit(self) -> ChainFit | None:
        if self.loaded_predictor is None or not self.chains:
            return None
        from harness.lut.weights_ahead import fit_chains  # loads the features of a predictor

        return fit_chains(self.by_place, self.chains, self.loaded_predictor.weight_loads)

    @property
    def weights_ahead(self) -> int:
        """The bytes of weights that the device loads ahead of their layers; 0 where the table has no chains."""
        return 0 if self._chain_fit is None else self._chain_fit.ahead_bytes

    @property
    def chain_error(self) -> float:
        """The relative error that all single layers share where networks chain them; 0 without chains."""
        return 0.0 if self._chain_fit is None else self._chain_fit.error

    @property
    def cache_bytes(self) -> int | None:
        """The size of a core's cache; None where latencies do not depend on it: all layers count as cold."""
        return core_cache_bytes(self.clock, self.fingerprint)

    def cold_share(self, weight_bytes: int, warm_s: float) -> float:
        """Return the share of its weights that a network misses; with all of them in the caches it takes `warm_s`.

        Where few layers of the table are warm, as those of one small network, a mixture with them would be uncertain:
        a network is warm or cold as a whole.
        """
        if self.cache_bytes is None:
            return 1.0
        sizes = np.array(weight_bytes), np.array(warm_s)
        return float(cold_shares(*sizes, self.cache_bytes, in_part=self.has_warm_layers))

    @functools.cached_property
    def has_warm_layers(self) -> bool:
        """Whether enough layers are warm to predict others from them."""
        warm = (entry for entry in self.entries if entry.visit == WARM)
        return sum(1 for _ in itertools.islice(warm, FEWEST_WARM)) == FEWEST_WARM

    @functools.cached_property
    def has_cold_activations(self) -> bool:
        """Whether layers that are not warm found their activations in memory, where those of a network do not."""
        return self.has_warm_layers and has_cold_activations(self.fingerprint)

    @functools.cached_property
    def is_mostly_warm(self) -> bool:
        """Whether most layers are warm, as those of a space, whose layers without weights are visited warm alone."""
        return 2 * sum(entry.visit == WARM for entry in self.entries) > len(self.entries)

    def find(self, key: str, contexts: Sequence[str]) -> Entry | None:
        """Return the entry of a layer in the first of these contexts that the table holds, else in another one.

        That is one between on-chip neighbours if there is one.
        """
        held = [self.entries[row] for row in self._rows.get(key, ())]
        by_context = {entry.context: entry for entry in held}
        known = (by_context[context] for context in contexts if context in by_context)
        return next(known, min(held, key=lambda entry: entry.context, default=None))


def rows_by_key(entries: Iterable[Entry]) -> dict[str, list[int]]:
    """Return the numbers of the entries of each key."""
    rows: dict[str, list[int]] = defaultdict(list)
    for number, entry in enumerate(entries):
        rows[entry.key].append(number)
    return dict(rows)


def displacement_of(entries: Sequence[Entry], rows: Mapping[str, Sequence[int]]) -> float:
    """Return how far layers in neighbourhoods are from their time in context, as a fraction; 0 without such."""
    pairs = []
    for near in entries:
        context, mark, _ = near.context.partition("@")
        alone = (entries[row] for row in rows[near.key] if entries[row].context == context) if mark else ()
        pairs += [(near.remainder_s, one.remainder_s) for one in alone]
    whole_s = sum(alone_s for _, alone_s in pairs)
    return sum(abs(near_s - alone_s) for near_s, alone_s in pairs) / whole_s if whole_s > 0 else 0.0
