"""Train the predictor of a table on its entries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.lut.table import Entry
from harness.predictor.features.key_features import describe
from harness.predictor.features.layer_features import TrainingExample
from harness.predictor.fit import LEAST_SAMPLES, fit_predictor

LEAST_S = 1e-8
"""Shorter latencies count as this one: the predictor learns logarithms."""


def learn_predictor(entries: Sequence[Entry]) -> bytes:
    """Return an ONNX model, or empty bytes where the entries are too few to learn from."""
    examples = tuple(_samples(entries))
    if len({example.layer for example in examples}) < LEAST_SAMPLES:
        return b""
    return fit_predictor(examples).model


def _samples(entries: Sequence[Entry]) -> Iterator[TrainingExample]:
    """Yield layers as networks run them: in a neighbourhood where the table has one, else in context."""
    near = {entry.key for entry in entries if "@" in entry.context}
    for entry in entries:
        layer = describe(entry.signature)
        if layer is not None and ("@" in entry.context or entry.key not in near):
            yield TrainingExample(
                layer, max(entry.latency_s, LEAST_S), entry.stderr_s, frozenset(entry.networks.split())
            )
