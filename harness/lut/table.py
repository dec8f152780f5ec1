"""The lookup table: layer latencies of one device with their uncertainty."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from harness.latency.method_names import COMPARISON_METHODS, LatencyMethod
from harness.latency.overhead import Overhead, OverheadModel
from harness.lut.chain_rows import ChainRow
from harness.lut.error_correlations import Correlations, unpack, variance
from harness.lut.neighbourhoods import Neighbourhoods
from harness.measure.core_caches import core_cache_bytes
from harness.measure.summary import Z_95
from harness.network.fusion_rules import FusionRule
from harness.network.keyed_network import KeyedNetwork
from harness.network.network import Network

if TYPE_CHECKING:
    from harness.predictor.predictor import Predictor

IMPORT: Literal["import"] = "import"
"""The method of tables whose latencies another tool measured."""
MOST_S = 1e9
"""The largest time of a table, and the largest relative error: estimates add their squares."""
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
    None where there is none. `repeatability` is the relative spread of a latency from process to process, and `machine`
    the verdict on the machine while it measured, empty where nothing is known of it; `reference_s` is the latency of
    the reference probe meanwhile, None where it was not measured. `correlations` are those of the entries' errors,
    packed by `harness.lut.error_correlations`. `predictor` is the ONNX model for unmeasured layers, or empty. `chains`
    are those of the table's networks, none where the device reports no chains. `additivity` is the robust spread in
    standard errors that the additive model leaves unexplained, None where the method does not estimate it. `sum_error`
    is the relative error of sums of entries beyond the errors of their layers; `network_errors` are those of the
    networks in which it was measured, by the beginning of their files' hashes.
    """

    path: Path
    device: str
    created: str
    clock: str
    method: TableMethod
    fingerprint: Mapping[str, str]
    overhead: Overhead
    rules: tuple[FusionRule, ...]
    entries: tuple[Entry, ...]
    additivity: float | None = None
    sum_error: float = 0.0
    network_errors: Mapping[str, float] = field(default_factory=dict)
    correlations: bytes = b""
    predictor: bytes = b""
    chains: tuple[ChainRow, ...] = ()
    other_overhead: Overhead | None = None
    repeatability: float = 0.0
    machine: str = ""
    reference_s: float | None = None

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

    def overhead_by(self, model: OverheadModel) -> Overhead | None:
        """Return the fit of this model, None where the table has none."""
        fits = (self.overhead, self.other_overhead)
        return next((one for one in fits if one is not None and one.model == model), None)

    @functools.cached_property
    def by_place(self) -> Mapping[tuple[str, str], Entry]:
        """Entries by key digest and context."""
        return {entry.place: entry for entry in self.entries}

    @functools.cached_property
    def index(self) -> Mapping[tuple[str, str], int]:
        """The number of each entry, by key digest and context."""
        return {entry.place: number for number, entry in enumerate(self.entries)}

    @functools.cached_property
    def by_key(self) -> Mapping[str, Entry]:
        """One entry for each key digest: between on-chip neighbours if there is one, else any."""
        return {entry.key: entry for entry in sorted(self.entries, key=lambda entry: entry.context, reverse=True)}

    def variance(self, counts: Mapping[int, float]) -> float:
        """Return the variance in s² of a sum of remainders, each counted by its index as often as `counts` says."""
        spread = np.array([entry.remainder_stderr_s for entry in self.entries])
        return variance(self._correlations, spread, counts)

    @functools.cached_property
    def displacement(self) -> float:
        """How far layers in their neighbourhoods are from their time in context, as a fraction; 0 without such."""
        places = ((entry, (entry.key, entry.context.partition("@")[0])) for entry in self.entries)
        pairs = [
            (entry.remainder_s, self.by_place[plain].remainder_s)
            for entry, plain in places
            if plain[1] != entry.context and plain in self.by_place
        ]
        whole_s = sum(alone_s for _, alone_s in pairs)
        return sum(abs(near_s - alone_s) for near_s, alone_s in pairs) / whole_s if whole_s > 0 else 0.0

    @functools.cached_property
    def displaced(self) -> frozenset[str]:
        """Digests of the keys that the table also lists in a neighbourhood."""
        return frozenset(entry.key for entry in self.entries if "@" in entry.context)

    @functools.cached_property
    def _correlations(self) -> Correlations:
        entries = len(self.entries)
        none = np.zeros(entries * (entries - 1) // 2, np.float32)
        return unpack(self.correlations, entries) if self.correlations else none

    @functools.cached_property
    def neighbourhoods(self) -> Neighbourhoods | None:
        """Values of layers in unknown neighbourhoods; None where the device reports no chains."""
        return Neighbourhoods(self.entries, self.chains) if self.chains else None

    @functools.cached_property
    def loaded_predictor(self) -> Predictor | None:
        """The predictor, or None where the table has none; raises LutCorrupt."""
        if not self.predictor:
            return None
        from harness.predictor.predictor import Predictor  # loads ONNX Runtime

        return Predictor(self.predictor)

    def runs_warm(self, network: Network | KeyedNetwork) -> bool:
        """Return whether a network finds its weights in the caches of the table's device."""
        cache_bytes = core_cache_bytes(self.clock, self.fingerprint)
        return cache_bytes is not None and network.runs_from_caches(cache_bytes)

    def find(self, key: str, contexts: Sequence[str]) -> Entry | None:
        """Return the entry of a layer in the first of these contexts that the table holds, else in another one."""
        places = ((key, context) for context in contexts)
        return next((self.by_place[place] for place in places if place in self.by_place), self.by_key.get(key))
