"""Rows that are left out of a table, and how well its predictor predicts them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from harness.lut.table import Lut
from harness.predictor.features.key_features import describe
from harness.table_import.imported_layers import ImportedLayer

LEVEL = 0.9
"""The level of the predictor's intervals."""


@dataclass(frozen=True)
class HeldOutErrors:
    """Errors of the predictor on layers that are not in the table, as fractions.

    `layers` of the held-out ones were predicted; `unpredicted` belong to operators that no entry has. The intervals are
    the predictor's own of 90 %.
    """

    layers: int
    unpredicted: int
    median_error: float
    mean_error: float
    within_5: float
    within_10: float
    interval_coverage: float


def errors_of(table: Lut, held_out: Sequence[ImportedLayer]) -> HeldOutErrors | None:
    """Return the errors on layers whose key is not in the table; None without a predictor or such layers."""
    predictor = table.loaded_predictor
    known = {entry.signature for entry in table.entries}
    unseen = [one for one in held_out if one.layer.key not in known]
    layers = [(describe(one.layer.key, one.layer.context), one.latency.latency_s) for one in unseen]
    described = [(layer, latency_s) for layer, latency_s in layers if layer is not None]
    if predictor is None or not described:
        return None
    knows = predictor.knows([layer for layer, _ in described])
    asked = [pair for pair, is_known in zip(described, knows, strict=True) if is_known]
    if not asked:
        return None
    found = predictor.predict_all([layer for layer, _ in asked])
    pairs = [(one, latency_s) for one, (_, latency_s) in zip(found, asked, strict=True)]
    errors = [abs(one.latency_s / latency_s - 1) for one, latency_s in pairs]
    return HeldOutErrors(
        layers=len(asked),
        unpredicted=len(layers) - len(asked),
        median_error=statistics.median(errors),
        mean_error=statistics.fmean(errors),
        within_5=statistics.fmean(error <= 0.05 for error in errors),
        within_10=statistics.fmean(error <= 0.10 for error in errors),
        interval_coverage=statistics.fmean(one.low_s <= latency_s <= one.high_s for one, latency_s in pairs),
    )
