"""Train the predictor of a table on its entries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from harness.lut.chain_rows import ChainRow
from harness.lut.layer_work import MULTIPLIES
from harness.lut.table import WARM, Entry
from harness.predictor.features.key_features import describe
from harness.predictor.features.layer_features import LEAST_SAMPLES, TrainingExample

if TYPE_CHECKING:
    from harness.predictor.fit import Steps

LEAST_S = 1e-9
"""Shorter latencies count as this one: the predictor learns logarithms."""
_LEAST_UNSURE_S = 1e-8
"""The standard error of such a latency at least: an exact zero has no logarithm that rates could be learnt from."""

LEARNING = "learning the predictor"
"""The phase of a build that fits the predictor."""


def learn_predictor(
    entries: Sequence[Entry], chains: Sequence[ChainRow] = (), *, progress: Steps = lambda _done, _count: None
) -> bytes:
    """Return the bytes of a predictor, or empty bytes where the entries are too few to learn from.

    `chains` list the layers of the chains of the table.
    """
    examples = tuple(training_examples(entries, chains))
    if len({example.layer for example in examples}) < LEAST_SAMPLES:
        return b""
    from harness.predictor.fit import fit_predictor  # loads an optimiser

    return fit_predictor(examples, progress=progress).content


def training_examples(entries: Sequence[Entry], chains: Sequence[ChainRow] = ()) -> Iterator[TrainingExample]:
    """Yield layers as networks run them: in a neighbourhood where the table has one, else in context.

    In `chains`, only data movement is learnt in its neighbourhood. A product's part of its chain depends mostly on what
    its neighbours load, store and hide, so products are learnt in context.
    """
    near = {entry.key for entry in entries if "@" in entry.context}
    chained = {row.key for row in chains}
    alone = {entry.key for entry in entries if "@" not in entry.context and entry.key in chained and _is_product(entry)}
    in_chains = near - alone
    learnt = [entry for entry in entries if ("@" in entry.context) == (entry.key in in_chains)]
    shares = _unresolved_shares(learnt)
    for entry in learnt:
        layer = describe(entry.signature, entry.context, warm=entry.visit == WARM)
        if layer is not None:
            latency_s = entry.latency_s if entry.resolved else entry.latency_s * shares[entry.op]
            stderr_s = entry.stderr_s if latency_s >= LEAST_S else max(entry.stderr_s, _LEAST_UNSURE_S)
            yield TrainingExample(layer, max(latency_s, LEAST_S), stderr_s, frozenset(entry.networks.split()))


def _is_product(entry: Entry) -> bool:
    layer = describe(entry.signature, entry.context)
    return layer is not None and layer.operator.startswith(MULTIPLIES)


def _unresolved_shares(entries: Sequence[Entry]) -> dict[str, float]:
    """Return by operators what remains of layers below resolution, as a share of their latencies.

    Each of these latencies is positive, so that together they are too long: their remainders add up to the truth.
    """
    remainders: defaultdict[str, float] = defaultdict(float)
    latencies: defaultdict[str, float] = defaultdict(float)
    for entry in entries:
        if not entry.resolved:
            remainders[entry.op] += entry.remainder_s
            latencies[entry.op] += entry.latency_s
    return {op: min(1.0, max(0.0, remainders[op] / whole_s)) for op, whole_s in latencies.items()}
