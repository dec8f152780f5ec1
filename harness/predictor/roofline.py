"""The roofline that a predictor corrects: launch, memory, and the fastest of several tiled kernels.

    latency = launch + (kernel^p + memory^p)^(1/p)
    kernel  = softest minimum over tiles of: waves * (start + turns * turn)
    memory  = bytes * seconds_per_byte

All constants are fitted to logarithms of latencies with a robust loss. Each has a value for the device and,
drawn towards it, an offset for each operator and for each variant of one (kernel, stride). Latency grows with
every size of a layer by construction, since waves, turns and bytes do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.sparse import csr_matrix

from harness.predictor.steps import Steps
from harness.predictor.work import Floats, Ints, Work

_JOIN = 3.0
_CHOICE = 12.0
_HUBER = 0.05
_PULL_DEVICE = 3e-3
_PULL_OFFSET = 0.1
_FASTEST, _SLOWEST = 0.95, 0.05


@dataclass(frozen=True)
class Terms:
    """Logarithms of seconds: the roofline and what it is made of; `tiles` is (layers, tiles), the others (layers,)."""

    latency: Floats
    kernel: Floats
    memory: Floats
    tiles: Floats


@dataclass(frozen=True)
class Roofline:
    """Fitted logarithms of seconds.

    `tables` has one array (names + 1, constants) for the device, the operators and their variants, whose last
    row, zeros, stands for names that were not seen. Constants in order: start and turn of each tile, memory
    per byte, launch.
    """

    steps: Steps
    names: tuple[tuple[str, ...], ...]
    tables: tuple[Floats, ...]

    def terms(self, work: Work) -> Terms:
        """The roofline of some layers."""
        inputs = _Inputs(self.steps, work)
        constants = sum(table[index] for table, index in zip(self.tables, self._indices(work), strict=True))
        return _forward(inputs, np.asarray(constants)).terms

    def _indices(self, work: Work) -> list[Ints]:
        return [_index(names, level) for names, level in zip(self.names, _levels(work), strict=True)]


def fit_roofline(work: Work, latency_s: Floats, steps: Steps, *, iterations: int = 400) -> Roofline:
    """Fits the roofline of `steps` to measured latencies."""
    levels = _levels(work)
    names = tuple(tuple(sorted(set(level))) for level in levels)
    groups = [_indicator(_index(known, level), len(known)) for known, level in zip(names, levels, strict=True)]
    inputs = _Inputs(steps, work)
    start = _start(inputs, work, latency_s)
    pull = np.concatenate([np.full(g.shape[0] * start.size, p) for g, p in zip(groups, _pulls(groups), strict=True)])
    log_latency = np.log(latency_s)
    split = np.cumsum([group.shape[0] for group in groups])[:-1]
    stacked = _stack(groups)

    def loss(offsets: Floats) -> tuple[float, Floats]:
        tables = offsets.reshape(-1, start.size)
        state = _forward(inputs, np.asarray(start + stacked.T @ tables))
        error = state.terms.latency - log_latency
        bend = np.sqrt(1.0 + (error / _HUBER) ** 2)
        slope = (error / bend)[:, None] * state.gradient / (_HUBER * len(work))
        value = _HUBER * float(np.mean(bend - 1.0)) + float(pull @ offsets**2) / len(work)
        return value, np.asarray((stacked @ slope).ravel() + 2.0 * pull * offsets / len(work))

    found = minimize(loss, np.zeros(pull.size), jac=True, method="L-BFGS-B", options={"maxiter": iterations})
    tables = np.split(found.x.reshape(-1, start.size), split)
    tables[0] = tables[0] + start
    unseen = np.zeros((1, start.size))
    return Roofline(steps, names, tuple(np.vstack([table, unseen]) for table in tables))


class _Inputs:
    """What the roofline of some layers is computed from."""

    def __init__(self, steps: Steps, work: Work) -> None:
        self.waves = steps.waves(work)
        self.turns = self.waves * steps.turns(work)[:, None]
        self.area = np.array([rows * columns * together for rows, columns, together in steps.tiles], dtype=np.float64)
        self.turn_macs = self.area * steps.depth * steps.units
        self.log_bytes = np.log(work.moved_bytes)


@dataclass(frozen=True)
class _State:
    terms: Terms
    gradient: Floats


def _forward(inputs: _Inputs, constants: Floats) -> _State:
    """Terms and the gradient of the logarithm of latency with respect to the constants, (layers, constants)."""
    count = inputs.waves.shape[1]
    starts = np.exp(constants[:, :count]) * inputs.waves
    turns = np.exp(constants[:, count : 2 * count]) * inputs.turns
    tiles = np.log(starts + turns)
    choice = -_CHOICE * tiles
    peak = choice.max(axis=1, keepdims=True)
    weight = np.exp(choice - peak)
    total = weight.sum(axis=1, keepdims=True)
    kernel = -(peak + np.log(total))[:, 0] / _CHOICE
    memory = inputs.log_bytes + constants[:, -2]
    joined = np.logaddexp(_JOIN * kernel, _JOIN * memory)
    kernel_share = np.exp(_JOIN * kernel - joined)
    latency = np.logaddexp(joined / _JOIN, constants[:, -1])
    run_share = np.exp(joined / _JOIN - latency)
    weight *= (run_share * kernel_share)[:, None] / total / (starts + turns)
    sides = np.stack([run_share * (1.0 - kernel_share), 1.0 - run_share], axis=1)
    return _State(Terms(latency, kernel, memory, tiles), np.hstack([weight * starts, weight * turns, sides]))


def _start(inputs: _Inputs, work: Work, latency_s: Floats) -> Floats:
    """Constants to start from: the best rates and the shortest times in the data."""
    shortest_s = float(np.quantile(latency_s, _SLOWEST))
    mac_s = 1.0 / float(np.quantile(work.macs / latency_s, _FASTEST))
    byte_s = 1.0 / float(np.quantile(work.moved_bytes / latency_s, _FASTEST))
    start = np.full(inputs.area.size, np.log(shortest_s / 4.0))
    return np.concatenate([start, np.log(inputs.turn_macs * mac_s), [np.log(byte_s), np.log(shortest_s / 2.0)]])


def _levels(work: Work) -> tuple[tuple[str, ...], ...]:
    variants = tuple(" ".join(map(str, variant)) for variant in work.variants)
    return (("device",) * len(work), work.operators, variants)


def _pulls(groups: Sequence[csr_matrix]) -> list[float]:
    return [_PULL_DEVICE] + [_PULL_OFFSET] * (len(groups) - 1)


def _index(names: Sequence[str], level: Sequence[str]) -> Ints:
    place = {name: index for index, name in enumerate(names)}
    return np.array([place.get(name, len(names)) for name in level], dtype=np.int64)


def _indicator(index: Ints, count: int) -> csr_matrix:
    return csr_matrix((np.ones(index.size), (index, np.arange(index.size))), shape=(count, index.size))


def _stack(groups: Sequence[csr_matrix]) -> csr_matrix:
    from scipy.sparse import vstack

    return csr_matrix(vstack(groups))
