"""The lookup table: layer latencies of one device with their uncertainty (S1.8)."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.latency.estimators import Method
from harness.latency.overhead import Overhead
from harness.lut.correlation import unpack, variance
from harness.measure.summary import Z_95
from harness.network.fusion_rules import FusionRule
from harness.predictor.predictor import Predictor


@dataclass(frozen=True)
class Entry:
    """One layer in one context.

    `key` is the digest of `signature`. `stderr_s` covers the samples and the overhead fit. `resolved` is false where
    the layer is too short to be told from noise. `visit` is how its probes were visited. `flags` names the estimators
    that disagree by more than all errors, each with its difference; `networks` those that have the layer, by the
    beginning of their files' hashes. `campaign`, `probe` and `baseline` lead back to the samples in the journal.
    """

    key: str
    context: str
    op: str
    latency_s: float
    stderr_s: float
    samples: int
    resolved: bool
    visit: str
    flags: str
    networks: str
    campaign: int
    probe: str
    baseline: str
    signature: str

    @property
    def interval_s(self) -> tuple[float, float]:
        """95 % interval; the lower end is never negative."""
        return max(0.0, self.latency_s - Z_95 * self.stderr_s), self.latency_s + Z_95 * self.stderr_s


@dataclass(frozen=True)
class Lut:
    """A published table; `path` is its folder.

    `correlations` are those of the entries' errors as `harness.lut.correlation` packs them, `predictor` is the ONNX
    model for layers that were not measured, or nothing. `additivity` is the robust spread of what the additive model
    leaves unexplained, in standard errors, None where the method does not tell; `sum_error` the relative error that
    sums of entries have beyond what their layers' errors explain.
    """

    path: Path
    device: str
    created: str
    clock: str
    method: Method
    fingerprint: Mapping[str, str]
    overhead: Overhead
    rules: tuple[FusionRule, ...]
    entries: tuple[Entry, ...]
    additivity: float | None = None
    sum_error: float = 0.0
    correlations: bytes = b""
    predictor: bytes = b""

    @property
    def visits(self) -> str:
        """How probes were visited, where that differs separated by commas."""
        return ",".join(sorted({entry.visit for entry in self.entries}))

    @property
    def name(self) -> str:
        """`<device>/<folder>`."""
        return f"{self.device}/{self.path.name}"

    @functools.cached_property
    def by_place(self) -> Mapping[tuple[str, str], Entry]:
        """Entries by key digest and context."""
        return {(entry.key, entry.context): entry for entry in self.entries}

    @functools.cached_property
    def by_key(self) -> Mapping[str, Entry]:
        """For each key digest one entry, whatever its context; that from on-chip neighbours if there is one."""
        return {entry.key: entry for entry in sorted(self.entries, key=lambda entry: entry.context, reverse=True)}

    def variance(self, counts: Mapping[int, int]) -> float:
        """In s², of a sum of entries, each by its index as often as `counts` says."""
        spread = np.array([entry.stderr_s for entry in self.entries])
        return variance(self._correlation, spread, counts)

    @functools.cached_property
    def displacement(self) -> float:
        """How far layers are off in neighbourhoods, as a fraction of what they take in context; 0 without such."""
        places = ((entry, (entry.key, entry.context.partition("@")[0])) for entry in self.entries)
        pairs = [
            (entry.latency_s, self.by_place[plain].latency_s)
            for entry, plain in places
            if plain[1] != entry.context and plain in self.by_place
        ]
        whole_s = sum(alone_s for _, alone_s in pairs)
        return sum(abs(near_s - alone_s) for near_s, alone_s in pairs) / whole_s if whole_s else 0.0

    @functools.cached_property
    def _correlation(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        return unpack(self.correlations, len(self.entries)) if self.correlations else np.eye(len(self.entries))

    @functools.cached_property
    def learnt(self) -> Predictor | None:
        """The predictor, loaded; None where the table has none. Raises LutCorrupt."""
        return Predictor(self.predictor) if self.predictor else None

    def find(self, key: str, contexts: Sequence[str]) -> Entry | None:
        """The entry of a layer in the first of these contexts that is there, or else in another."""
        places = ((key, context) for context in contexts)
        return next((self.by_place[place] for place in places if place in self.by_place), self.by_key.get(key))
