"""Compare layers that the planner chooses with random layers, by the errors of a predictor that learns from them.

    python -m benchmarks.spaces.planner v100 [RUNS]                 convolutions measured on a V100, in the repository
    python -m benchmarks.spaces.planner npu01 [COUNT [SPACE]]       measured here, by ordinary campaigns
    python -m benchmarks.spaces.planner cpu01 [COUNT [SPACE]]

Both predictors are the one that a table would get, and are tested on the same layers drawn at random from the space.
Prints the tables of docs/spaces.md.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from v100_convolutions import measured

from harness.array_types import Floats
from harness.device.inventory import find_device, load_inventory
from harness.measure.device_run import open_run
from harness.measure.request import ProfileRequest
from harness.predictor.features.layer_features import LayerFeatures, TrainingExample
from harness.predictor.fit import fit_predictor
from harness.space.committee import points_of
from harness.space.exploration import DeviceRounds
from harness.space.planner import Described, Measure, Round, RoundResult, Source, choose, explore
from harness.space.sampling import SpaceLayers
from harness.space.space import load_space
from harness.workspace import Workspace

COUNTS = (100, 200, 300, 500)
TESTED = 200
V100_TESTED = 10_000
SPACE = str(Path(__file__).resolve().parent / "space_convolutions.toml")


Drawn = TypeVar("Drawn", bound=Described)


@dataclass(frozen=True)
class Row:
    """A measured convolution of the V100 as a layer of a space."""

    features: LayerFeatures
    latency_s: float


@dataclass(frozen=True)
class Rows:
    """Measured convolutions as a source of layers."""

    rows: Sequence[Row]

    def random(self, count: int, generator: np.random.Generator, without: frozenset[Row]) -> list[Row]:
        """Return up to `count` random rows."""
        order = generator.permutation(len(self.rows))[: count + len(without)]
        return [row for row in (self.rows[at] for at in order) if row not in without][:count]

    def spread(self, count: int, seed: int) -> list[Row]:
        """Return one row from each of `count` parts of equal size."""
        generator = np.random.default_rng(seed)
        pool = self.random(20 * count, generator, frozenset())
        points = points_of([row.features for row in pool])
        return [pool[at] for at in choose(points, np.ones(len(pool)), count, generator)]


def errors(train: Sequence[TrainingExample], test: Sequence[TrainingExample]) -> Floats:
    """Return absolute relative errors of a predictor."""
    found = fit_predictor(train).predict_all([sample.layer for sample in test])
    return np.array([abs(one.latency_s / sample.latency_s - 1) for one, sample in zip(found, test, strict=True)])


def table(
    label: str, planned: Sequence[TrainingExample], drawn: Sequence[TrainingExample], test: Sequence[TrainingExample]
) -> None:
    """Print the errors of both by the number of measured layers."""
    print(f"\n{label}, tested on {len(test)} random layers\n")
    columns = ("median", "90th percentile", "within 10 %")
    header = [f"{who}: {name}" for who in ("planner", "random") for name in columns]
    print(f"| measured | {' | '.join(header)} |")
    print("|---|---|---|---|---|---|---|")
    for count in (count for count in COUNTS if count <= len(planned)):
        cells = []
        for part in (planned, drawn):
            error = errors(part[:count], test)
            cells += [f"{np.median(error):.1%}", f"{np.quantile(error, 0.9):.0%}", f"{np.mean(error <= 0.1):.0%}"]
        print(f"| {count} | {' | '.join(cells)} |", flush=True)


def planned_samples(source: Source[Drawn], measure: Measure[Drawn], count: int, seed: int) -> list[TrainingExample]:
    """Return what the planner measures, in order; each round is shuffled, so that any prefix is a fair sample."""
    samples: list[TrainingExample] = []

    def noted(asked: Round[Drawn]) -> Sequence[float | None] | None:
        latencies = measure(asked)
        pairs = list(zip(asked.layers, latencies or (), strict=True))
        order = np.random.default_rng(asked.number).permutation(len(pairs))
        samples.extend(
            TrainingExample(pairs[at][0].features, found) for at in order if (found := pairs[at][1]) is not None
        )
        return latencies

    explore(source, noted, count=count, target=0.0, seed=seed, observe=show)
    return samples


def show(result: RoundResult) -> None:
    """Print a round on stderr."""
    print(result, file=sys.stderr, flush=True)


def v100(seed: int) -> None:
    """Let the planner choose from measured convolutions."""
    rows = [Row(sample.layer, sample.latency_s) for sample in measured()]
    order = np.random.default_rng(seed).permutation(len(rows))
    test = [TrainingExample(rows[at].features, rows[at].latency_s) for at in order[:V100_TESTED]]
    known = [rows[at] for at in order[V100_TESTED:]]
    planned = planned_samples(Rows(known), lambda asked: [row.latency_s for row in asked.layers], COUNTS[-1], seed)
    drawn = [TrainingExample(row.features, row.latency_s) for row in known[: COUNTS[-1]]]
    table(f"V100, seed {seed}", planned, drawn, test)


def device(name: str, count: int, space: str) -> None:
    """Measure planned, random and test layers on a device, all in one session."""
    source = SpaceLayers(load_space(space))
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(Path(folder))
        with open_run(find_device(load_inventory(workspace.devices), name), workspace) as run:
            rounds = DeviceRounds(run, ProfileRequest(name, fresh=True))
            generator = np.random.default_rng(1)
            layers = tuple(source.random(TESTED + count, generator, frozenset()))
            latencies = rounds.measure(Round(0, layers, ())) or []
            pairs = zip(layers, latencies, strict=True)
            samples = [TrainingExample(layer.features, found) for layer, found in pairs if found is not None]
            planned = planned_samples(source, rounds.measure, count, 0)
            table(f"{name}, {source.space.count:,} configurations", planned, samples[TESTED:], samples[:TESTED])
            print(f"\n{rounds.device_s:.0f} s on the device for all of them")


if __name__ == "__main__":
    target, *options = sys.argv[1:] or ["v100"]
    if target in ("-h", "--help"):
        print(__doc__)
    elif target == "v100":
        for run in range(int(options[0]) if options else 1):
            v100(run)
    else:
        device(target, int(options[0]) if options else COUNTS[-1], options[1] if options[1:] else SPACE)
