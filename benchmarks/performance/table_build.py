"""Measure the processor time of `harness lut build`: on a journal that exists, or on a campaign that is measured first.

    python -m benchmarks.performance.table_build [--device NAME] [--workspace DIR] [--repeats N]

Without a journal in the workspace, the built-in networks are profiled with few runs. Prints medians over the builds:
the whole build, the latencies of layers with their covariance, and the predictor. The time to import libraries is in
the first build alone, which is printed apart. Then the predictor learns without each of some networks and with it, and
the fits are counted whose data did not change: what a build could keep from the one before a network was added.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import numpy as np

from harness import build_lut, profile
from harness.latency.estimators import estimate_layers
from harness.lut.build import read_campaign
from harness.lut.learning import learn_predictor
from harness.lut.table import Entry, Lut
from harness.measure.journal.journal import Journal
from harness.measure.policy import RepeatPolicy
from harness.network.model_references import BUILTIN_NAMES, BUILTIN_PREFIX
from harness.predictor import training_data
from harness.predictor.features.layer_arrays import LayerArrays
from harness.predictor.roofline import tiling_search
from harness.predictor.roofline.roofline_fit import fit_roofline
from harness.settings import DEFAULT_DEVICE
from harness.workspace import Workspace

RUNS = 4
NETWORKS_ADDED = 3
Result = TypeVar("Result")


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """Return a result and the processor time that it took, in seconds."""
    started_s = time.process_time()
    result = work()
    return result, time.process_time() - started_s


def measure(device: str, workspace: Workspace, repeats: int) -> Lut:
    """Build the table several times and print the times; returns it."""
    table, first_s = timed(lambda: build_lut(device, workspace=workspace))
    builds_s = [timed(lambda: build_lut(device, workspace=workspace))[1] for _ in range(repeats)]
    predictors_s = [timed(lambda: learn_predictor(table.entries))[1] for _ in range(repeats)]
    with Journal(workspace.journal) as journal:
        campaign = journal.campaign(max(entry.campaign for entry in table.entries))
        measured, overhead = read_campaign(journal, campaign)
    layers_s = [timed(lambda: estimate_layers(measured, "joint", overhead))[1] for _ in range(repeats)]
    networks = {name for entry in table.entries for name in entry.networks.split()}
    print(f"{device}: {len(networks)} networks, {len(measured.summaries):,} probes, {len(table.entries):,} entries")
    print(f"first build, with imports: {first_s:.1f} s of processor time; medians of {repeats} more:")
    for name, found in (("build", builds_s), ("layers and covariance", layers_s), ("predictor", predictors_s)):
        print(f"{name}: {statistics.median(found):.2f} s [{min(found):.2f}, {max(found):.2f}]")
    return table


def count_unchanged(entries: Sequence[Entry]) -> None:
    """Print how many fits of a predictor have the data of one that was fitted without a network."""
    fits, fits_s = fits_of(entries)
    for name in sorted({name for entry in entries for name in entry.networks.split()})[:NETWORKS_ADDED]:
        before, _ = fits_of([entry for entry in entries if entry.networks != name])
        added = sum(entry.networks == name for entry in entries)
        kept = {kind: sum(fit in before[kind] for fit in fits[kind]) for kind in fits}
        counts = ", ".join(f"{kept[kind]} of {len(fits[kind])} {kind}" for kind in fits)
        print(f"{added} layers of one network added: unchanged are the data of {counts}")
    print(f"processor time of these fits: {', '.join(f'{kind} {fits_s[kind]:.2f} s' for kind in fits)}")


def fits_of(entries: Sequence[Entry]) -> tuple[dict[str, list[bytes]], dict[str, float]]:
    """Return the hash of what each fit of a predictor gets, by kind of fit, and the processor time of each kind."""
    found: dict[str, list[bytes]] = {}
    times_s: dict[str, float] = {}

    def counted(kind: str, fit: Callable[..., Result]) -> Callable[..., Result]:
        found[kind], times_s[kind] = [], 0.0

        def run(*given: Any, **named: Any) -> Result:
            found[kind].append(hashlib.sha256(b"".join(map(_bytes_of, (*given, *named.values())))).digest())
            result, took_s = timed(lambda: fit(*given, **named))
            times_s[kind] += took_s
            return result

        return run

    trees = {name: counted(f"{name} trees", grow) for name, grow in training_data.WAYS.items() if name != "none"}
    with (
        mock.patch.dict(training_data.WAYS, trees),
        mock.patch.object(training_data, "fit_roofline", counted("rooflines", fit_roofline)),
        mock.patch.object(tiling_search, "fit_roofline", counted("rooflines of tilings", fit_roofline)),
    ):
        learn_predictor(entries)
    return found, times_s


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, LayerArrays):
        return b"".join(column.tobytes() for column in value.sizes.values())
    return bytes(value.tobytes()) if isinstance(value, np.ndarray) else repr(value).encode()


def main() -> None:
    """Profile if there is no journal, then measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default=DEFAULT_DEVICE)
    parser.add_argument("--workspace", type=Path, help="folder with a journal; default: a temporary one")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        workspace = Workspace(given.workspace or Path(temporary))
        if not workspace.journal.exists():
            models = [BUILTIN_PREFIX + name for name in BUILTIN_NAMES]
            profile(models, device=given.device, workspace=workspace, policy=RepeatPolicy(runs=RUNS))
        count_unchanged(measure(given.device, workspace, given.repeats).entries)


if __name__ == "__main__":
    main()
