"""How good a predictor is by the number of layers measured: layers that the planner chose against layers at random.

    python benchmarks/space_planner.py v100                      convolutions measured on a V100, in the repository
    python benchmarks/space_planner.py npu01 [COUNT [SPACE]]     measured here, by the ordinary campaigns
    python benchmarks/space_planner.py cpu01 [COUNT [SPACE]]

Both are judged by the predictor that a table would get, on the same layers drawn at random from the space. Prints the
tables of docs/spaces.md; run from the root of the repository.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "tests" / "predictor")]

from harness.array_types import Floats  # noqa: E402
from harness.device.inventory import find_device, load_inventory  # noqa: E402
from harness.measure.device_run import open_run  # noqa: E402
from harness.measure.request import ProfileRequest  # noqa: E402
from harness.predictor.features.layer_features import LayerFeatures, TrainingExample  # noqa: E402
from harness.predictor.fit import fit_predictor  # noqa: E402
from harness.space.committee import points_of  # noqa: E402
from harness.space.exploration import DeviceRounds  # noqa: E402
from harness.space.planner import Described, Measure, Round, RoundResult, Source, choose, explore  # noqa: E402
from harness.space.sampling import SpaceLayers  # noqa: E402
from harness.space.space import load_space  # noqa: E402
from harness.workspace import Workspace  # noqa: E402

COUNTS = (100, 200, 300, 500)
JUDGED = 200
V100_JUDGED = 10_000
SPACE = str(Path(__file__).resolve().parent / "space_convolutions.toml")


Drawn = TypeVar("Drawn", bound=Described)


@dataclass(frozen=True)
class Row:
    """A measured row of the V100 file as a layer that can be drawn."""

    features: LayerFeatures
    latency_s: float


@dataclass(frozen=True)
class Rows:
    """Rows that can be drawn."""

    rows: Sequence[Row]

    def random(self, count: int, generator: np.random.Generator, without: frozenset[Row]) -> list[Row]:
        """Up to `count` rows."""
        order = generator.permutation(len(self.rows))[: count + len(without)]
        return [row for row in (self.rows[place] for place in order) if row not in without][:count]

    def spread(self, count: int, seed: int) -> list[Row]:
        """One row out of each of `count` parts of equal size."""
        generator = np.random.default_rng(seed)
        pool = self.random(20 * count, generator, frozenset())
        places = points_of([row.features for row in pool])
        return [pool[place] for place in choose(places, np.ones(len(pool)), count, generator)]


def errors(train: Sequence[TrainingExample], test: Sequence[TrainingExample]) -> Floats:
    """Relative errors of a predictor."""
    found = fit_predictor(train).predict_all([sample.layer for sample in test])
    return np.array([abs(one.latency_s / sample.latency_s - 1) for one, sample in zip(found, test, strict=True)])


def table(
    label: str, planned: Sequence[TrainingExample], drawn: Sequence[TrainingExample], test: Sequence[TrainingExample]
) -> None:
    """Prints the errors of both by the number of layers measured."""
    print(f"\n{label}, judged on {len(test)} layers at random\n")
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
    """What the planner measures, in order, rounds shuffled so that any first part of them is fair."""
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
    """A round on stderr."""
    print(result, file=sys.stderr, flush=True)


def v100(seed: int) -> None:
    """The planner draws from measured convolutions."""
    from v100_convolutions import measured

    rows = [Row(sample.layer, sample.latency_s) for sample in measured()]
    order = np.random.default_rng(seed).permutation(len(rows))
    test = [TrainingExample(rows[at].features, rows[at].latency_s) for at in order[:V100_JUDGED]]
    known = [rows[at] for at in order[V100_JUDGED:]]
    planned = planned_samples(Rows(known), lambda asked: [row.latency_s for row in asked.layers], COUNTS[-1], seed)
    drawn = [TrainingExample(row.features, row.latency_s) for row in known[: COUNTS[-1]]]
    table(f"V100, seed {seed}", planned, drawn, test)


def device(name: str, count: int, space: str) -> None:
    """Planned, random and judging layers are measured on a device, all in one session."""
    source = SpaceLayers(load_space(space))
    with tempfile.TemporaryDirectory() as folder:
        place = Workspace(Path(folder))
        with open_run(find_device(load_inventory(place.devices), name), place) as run:
            rounds = DeviceRounds(run, ProfileRequest(name, fresh=True))
            generator = np.random.default_rng(1)
            layers = tuple(source.random(JUDGED + count, generator, frozenset()))
            latencies = rounds.measure(Round(0, layers, ())) or []
            pairs = zip(layers, latencies, strict=True)
            samples = [TrainingExample(layer.features, found) for layer, found in pairs if found is not None]
            planned = planned_samples(source, rounds.measure, count, 0)
            table(f"{name}, {source.space.count:,} configurations", planned, samples[JUDGED:], samples[:JUDGED])
            print(f"\n{rounds.device_s:.0f} s on the device for all of them")


if __name__ == "__main__":
    target, *options = sys.argv[1:] or ["v100"]
    if target == "v100":
        for run in range(int(options[0]) if options else 1):
            v100(run)
    else:
        device(target, int(options[0]) if options else COUNTS[-1], options[1] if options[1:] else SPACE)
