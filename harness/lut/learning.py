"""The predictor of a table: what its entries teach of layers that were not measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.lut.table import Entry
from harness.predictor.features.key_features import describe
from harness.predictor.features.layer_features import TrainingExample
from harness.predictor.fit import LEAST_SAMPLES, fit_predictor

LEAST_S = 1e-8
"""What layers that a device executes for nothing are told to take: learning goes by logarithms."""


def learn_predictor(entries: Sequence[Entry]) -> bytes:
    """An ONNX model, or nothing where the entries are too few to learn from."""
    examples = tuple(_samples(entries))
    if len({example.layer for example in examples}) < LEAST_SAMPLES:
        return b""
    return fit_predictor(examples).model


def _samples(entries: Sequence[Entry]) -> Iterator[TrainingExample]:
    """Layers as networks run them: in a neighbourhood where the table has such, else in context."""
    near = {entry.key for entry in entries if "@" in entry.context}
    for entry in entries:
        layer = describe(entry.signature)
        if layer is not None and ("@" in entry.context or entry.key not in near):
            yield TrainingExample(
                layer, max(entry.latency_s, LEAST_S), entry.stderr_s, frozenset(entry.networks.split())
            )
