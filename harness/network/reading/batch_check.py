"""Check by running both that a network with another batch computes, row by row, what the network itself computes.

ONNX Runtime runs both on the host, with the generated weights that a device would use and with random inputs of which
every row is another. Nothing is measured.
"""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from harness.array_types import Array
from harness.errors import HarnessError
from harness.host_runtime import is_shortage, open_session, session_options
from harness.network.assemble import ArraySpec, assemble_network
from harness.network.network import Network
from harness.network.reading.batch import Rebatched, refusal, tiled
from harness.text import byte_size

MAX_CHECK_BYTES = 4 << 30
"""The most memory for tensors of the network with the new batch; above it, nothing is compared."""
MAX_CHECK_S = 10.0
"""The longest expected time of the new network's run; above it, nothing is compared."""
TOO_LARGE = "this takes more memory than there is"
_BLOCK = 1 << 20
_TOLERANCE = 1e-3
_LEAST_TOLERANCE = 2e-5
_ROUNDED = {"float16": 2e-2, "bfloat16": 5e-2}
_QUANTISED = 5e-2
"""The relative difference of a row that rounding to the step of a quantised tensor may make."""
_LEAST_SPREAD = 1e-5
"""Rows of different inputs must differ by this fraction: else their results show nothing."""


def check_rows(original: Network, found: Rebatched, threads: int = 0) -> str:
    """Compare every row of the network with the new batch with the original network; raises UnsupportedNetwork.

    Returns an empty text, or why nothing was compared. 0 leaves the number of threads to the runtime.
    """
    network = found.network
    needed = sum(kind.bytes for kind in network.types.values())
    if needed > MAX_CHECK_BYTES:
        return f"the tensors of a batch of {found.batch} take {byte_size(needed)}"
    try:
        one, many = _Runnable(original), _Runnable(network)
        rows = -(-found.batch // found.before) * found.before
        feeds = {name: _rows(one.specs[name], found.axes[name], rows) for name in found.axes if name in one.specs}
        feeds |= {name: _array(spec, 0) for name, spec in one.specs.items() if name not in feeds}
        weights = {name: _array(spec, spec.seed) for name, spec in one.weights.items()}
        first = one.open(weights, threads)
        started_s = time.monotonic()
        want = {0: first(_chunk(feeds, found, 0))}
        run_s = time.monotonic() - started_s
        many_s = run_s * rows / found.before
        if many_s > MAX_CHECK_S:
            return f"one run takes {run_s:.1f} s on this host"
        parts = range(found.before, rows, found.before)
        chosen = parts if 2 * many_s <= MAX_CHECK_S else parts[-1:]
        want |= {at: first(_chunk(feeds, found, at)) for at in chosen}
        own = _weights_of(many, found, original, weights)
        got = many.open(own, threads)(
            {name: _taken(found, name, value, range(found.batch)) for name, value in feeds.items()}
        )
    except HarnessError as error:  # the assembled model is not valid
        raise refusal(found.batch, error.why or error.what) from error
    except Exception as error:  # the runtime's exceptions have no narrower common base
        if is_shortage(error):
            return TOO_LARGE
        why = " ".join(str(error).split())[:300]
        raise refusal(found.batch, f"ONNX Runtime cannot run it: {why}") from error
    return _compare(found, one, want, got)


class _Runnable:
    """A network as a device gets it: its model, and its inputs and weights by their names in the network."""

    def __init__(self, network: Network) -> None:
        self.model = assemble_network(network)
        generated = {spec.name: spec for spec in self.model.weights}
        origins = self.model.names.constants.items()
        self.specs = dict(zip(network.inputs, self.model.inputs, strict=True))
        self.copied = {name: emitted for emitted, name in origins if emitted in generated}
        self.weights = {name: generated[emitted] for name, emitted in self.copied.items()}
        written = set(self.model.names.tensors.values())
        self.outputs = [name for name in network.outputs if name in written]

    def open(self, weights: Mapping[str, Array], threads: int) -> Any:
        """Return a function from inputs to outputs, both by their names in the network."""
        values = {emitted: weights[name] for name, emitted in self.copied.items()}
        session = open_session(self.model.content, session_options(threads), values)

        def run(feeds: Mapping[str, Array]) -> dict[str, Array]:
            results = session.run(None, {self.specs[name].name: value for name, value in feeds.items()})
            return dict(zip(self.outputs, results, strict=True))

        return run


def _weights_of(many: _Runnable, found: Rebatched, original: Network, weights: Mapping[str, Array]) -> dict[str, Array]:
    """Return the constants of the larger network with the values that the original has in the same places."""
    own: dict[str, Array] = {}
    for name in many.copied:
        source, axis = found.tiled.get(name, (name, 0))
        held = weights.get(source)
        if held is None:  # the original's value is sent with its model
            value = original.constants[source].value
            assert value is not None  # noqa: S101 - only known values are sent
            held = value
        own[name] = held if source == name else tiled(held, axis, found.network.types[name].shape[axis])
    return own


def _chunk(feeds: Mapping[str, Array], found: Rebatched, at: int) -> dict[str, Array]:
    rows = range(at, at + found.before)
    return {name: _taken(found, name, value, rows) for name, value in feeds.items()}


def _taken(found: Rebatched, name: str, value: Array, rows: Sequence[int]) -> Array:
    return np.ascontiguousarray(value.take(list(rows), found.axes[name])) if name in found.axes else value


def _rows(spec: ArraySpec, axis: int, rows: int) -> Array:
    """Return random values for all rows, each row another."""
    shape = list(spec.shape)
    shape[axis] = rows
    return _array(ArraySpec(spec.name, spec.dtype, tuple(shape), 1, spec.distribution, spec.low, spec.high), 1)


def _array(spec: ArraySpec, seed: int) -> Array:
    """Return random values as a device generates them, without its repetition of blocks between rows of inputs."""
    generator, count = np.random.default_rng(seed), math.prod(spec.shape)
    if spec.distribution == "normal":
        values: Array = generator.standard_normal(min(count, _BLOCK), np.float32) * spec.scale
    elif spec.distribution == "uniform":
        values = generator.uniform(spec.low, spec.high, count)
    else:
        values = generator.integers(int(spec.low), int(spec.high), count)
    return np.resize(values.astype(spec.dtype), spec.shape)


def _compare(
    found: Rebatched, one: _Runnable, want: Mapping[int, Mapping[str, Array]], got: Mapping[str, Array]
) -> str:
    """Compare all outputs; returns why this shows nothing, if no output differs from row to row."""
    distinct = False
    for name in one.outputs:
        if name not in found.axes:
            continue
        axis = found.axes[name]
        numbers = [row for at in want for row in range(at, at + found.before) if row < found.batch]
        joined = np.concatenate([part[name] for part in want.values()], axis)
        rows = _by_row(joined, axis, len(want) * found.before)[: len(numbers)]
        own = _by_row(got[name], axis, found.batch)[numbers]
        spread = _spread(rows)
        distinct = distinct or spread > _LEAST_SPREAD
        tolerance = min(_tolerance(found.network), max(spread / 10, _LEAST_TOLERANCE))
        for at, expected, actual in zip(numbers, rows, own, strict=True):
            if not _is_close(expected, actual, tolerance):
                why = f"Row {at} of output {name[:80]!r} differs from the network's result for this row by itself"
                raise refusal(found.batch, f"{why}: {_cause(found.network)}")
    return "" if distinct else "with random weights and inputs, all rows have the same result"


def _cause(network: Network) -> str:
    if any(node.op.startswith("DynamicQuantize") for node in network.nodes):
        return "dynamic quantisation uses one scale for all rows"
    return "its rows are not independent"


def _by_row(value: Array, axis: int, rows: int) -> Array:
    """Return an output as one line per row of the batch."""
    moved = np.moveaxis(value, axis, 0)
    lines: Array = moved.reshape(rows, -1).astype("float64")
    return lines


def _is_close(expected: Array, actual: Array, tolerance: float) -> bool:
    finite = np.isfinite(expected)
    if not np.array_equal(finite, np.isfinite(actual)):
        return False
    size = float(np.linalg.norm(expected[finite]))
    return float(np.linalg.norm(expected[finite] - actual[finite])) <= tolerance * max(size, 1e-12)


def _spread(rows: Array) -> float:
    """Return how much rows differ from the first, as a fraction; infinite for a single one."""
    kept = np.where(np.isfinite(rows), rows, 0.0)
    sizes = np.linalg.norm(kept - kept[:1], axis=1) / max(float(np.linalg.norm(kept[0])), 1e-12)
    return float(sizes[1:].max()) if len(sizes) > 1 else math.inf


def _tolerance(network: Network) -> float:
    operators = {node.op for node in network.nodes}
    types = {kind.dtype for kind in network.types.values()}
    rounded = [_ROUNDED[one] for one in types if one in _ROUNDED]
    quantised = any(one.startswith("Q") or "Linear" in one or "Integer" in one for one in operators)
    return max([_TOLERANCE, *rounded, *([_QUANTISED] if quantised else [])])
