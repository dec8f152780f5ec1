"""Measure the processor time of `harness lut build`: on a journal that exists, or on a campaign that is measured first.

    python -m benchmarks.performance.table_build [--device NAME] [--workspace DIR] [--repeats N]

Without a journal in the workspace, the built-in networks are profiled with few runs. Prints medians over the builds:
the whole build, the latencies of layers with their covariance, and the predictor. The time to import libraries is in
the first build alone, which is printed apart.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from harness import build_lut, profile
from harness.latency.estimators import estimate_layers
from harness.lut.build import read_campaign
from harness.lut.learning import learn_predictor
from harness.measure.journal.journal import Journal
from harness.measure.policy import RepeatPolicy
from harness.network.model_references import BUILTIN_NAMES, BUILTIN_PREFIX
from harness.settings import DEFAULT_DEVICE
from harness.workspace import Workspace

RUNS = 4
Result = TypeVar("Result")


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """Return a result and the processor time that it took, in seconds."""
    started_s = time.process_time()
    result = work()
    return result, time.process_time() - started_s


def measure(device: str, workspace: Workspace, repeats: int) -> None:
    """Build the table several times and print the times."""
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
        measure(given.device, workspace, given.repeats)


if __name__ == "__main__":
    main()
