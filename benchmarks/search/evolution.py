"""Search a mobile network under a latency bound, then measure it.

    python -m benchmarks.search.evolution

Profiles the super-network on a device, which measures the layers of all candidates at once, searches the candidate with
the most multiply-adds below the bound, and validates and profiles it. Multiply-adds stand for the accuracy that a real
search would predict: the search itself only needs a number for each candidate.
"""

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

import harness
from benchmarks.search.mobile_space import mobile_space, multiply_adds

Rows = NDArray[np.uint8]
POPULATION = 512
GENERATIONS = 60
MUTATION = 0.1
WAIT_S = 1800.0
"""How long to wait for a device that is in use."""


@dataclass(frozen=True)
class Found:
    """The best candidate of a search, and its latency: predicted with its interval, and measured in seconds."""

    choices: tuple[int, ...]
    multiply_adds: int
    estimates: int
    predicted_s: float
    interval_s: tuple[float, float]
    measured_s: float
    profiled_s: float


def evolve(sizes: tuple[int, ...], value: Callable[[Rows], NDArray[np.float64]], seed: int = 0) -> Rows:
    """Return the best row of choices: half of each generation are parents, pairs of which are crossed and mutated."""
    random = np.random.default_rng(seed)

    def drawn(count: int) -> Rows:
        return random.integers(0, sizes, (count, len(sizes))).astype(np.uint8)

    rows = drawn(POPULATION)
    for _ in range(GENERATIONS):
        parents = rows[np.argsort(-value(rows), kind="stable")[: POPULATION // 2]]
        pairs = parents[random.integers(0, len(parents), (2, POPULATION - len(parents)))]
        children = np.where(random.random(pairs[0].shape) < 0.5, pairs[0], pairs[1])
        children = np.where(random.random(children.shape) < MUTATION, drawn(len(children)), children)
        rows = np.concatenate([parents, children])
    best: Rows = rows[np.argmax(value(rows))]
    return best


def search(model: ModelProto, device: str, workspace: Path, bound: float, policy: harness.RepeatPolicy) -> Found:
    """Search below `bound`, a fraction of the latency of the median candidate."""
    space = harness.SearchSpace.read(model)
    harness.profile(model, device=device, workspace=workspace, policy=policy, wait_s=WAIT_S)
    harness.build_lut(device, workspace=workspace)
    estimator = harness.estimate_space(space, device=device, workspace=workspace)

    random = np.random.default_rng(1)
    some = random.integers(0, space.sizes, (1000, len(space.sizes)))
    bound_s = bound * float(np.median(estimator.latency_s(some)))
    gains = _gains(space)
    asked = 0

    def value(rows: Rows) -> NDArray[np.float64]:
        nonlocal asked
        asked += len(rows)
        work = np.sum([gain[column] for gain, column in zip(gains, rows.T, strict=True)], axis=0)
        return np.where(estimator.latency_s(rows) <= bound_s, work, -np.inf)

    best = evolve(space.sizes, value)
    estimate = estimator.intervals_s(best[None, :])
    chosen = space.model(best.tolist())
    (validated,) = harness.validate(chosen, device=device, workspace=workspace, processes=2, wait_s=WAIT_S).networks
    harness.profile(chosen, device=device, workspace=workspace, policy=policy, wait_s=WAIT_S)
    harness.build_lut(device, workspace=workspace)
    (profiled,) = harness.estimate(chosen, device=device, workspace=workspace)
    assert profiled.latency_s is not None
    return Found(
        tuple(best.tolist()),
        multiply_adds(chosen),
        asked,
        float(estimate.latency_s[0]),
        (float(estimate.low_s[0]), float(estimate.high_s[0])),
        validated.measured_s,
        profiled.latency_s,
    )


def _gains(space: harness.SearchSpace) -> list[NDArray[np.float64]]:
    """Return what each choice adds to the multiply-adds of a network."""
    base = [0] * len(space.sizes)
    least = multiply_adds(space.model(base))
    return [
        np.array([multiply_adds(space.model([*base[:at], one, *base[at + 1 :]])) - least for one in range(size)], float)
        for at, size in enumerate(space.sizes)
    ]


def main() -> None:
    """Search and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu01")
    parser.add_argument("--bound", type=float, default=0.8, help="fraction of the median candidate's latency")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds on the device for each profile")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        policy = harness.RepeatPolicy(budget_s=given.budget)
        found = search(mobile_space(), given.device, Path(folder), given.bound, policy)
    low_s, high_s = found.interval_s
    print(f"choices {' '.join(map(str, found.choices))}: {found.multiply_adds / 1e6:.1f} M multiply-adds")
    print(f"{found.estimates:,} candidates were estimated")
    print(f"predicted {found.predicted_s * 1e3:.3f} ms [{low_s * 1e3:.3f}, {high_s * 1e3:.3f}]")
    print(f"measured {found.measured_s * 1e3:.3f} ms: error {found.predicted_s / found.measured_s - 1:+.1%}")
    print(f"estimated after it was profiled itself {found.profiled_s * 1e3:.3f} ms")


if __name__ == "__main__":
    main()
