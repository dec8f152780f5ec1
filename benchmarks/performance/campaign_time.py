"""Measure how long campaigns take beside the time on their device, and what shortens them.

    python -m benchmarks.performance.campaign_time [--networks builtin:squeezenet,…] [--repeats 3] [--timeline]

- `cpu01`, on this machine and behind an sshd on loopback: probes that stay loaded, in turn with probes that are loaded
  for every pass;
- `validate` on `cpu01`, after a campaign and a table;
- `npu01`: compiling on one core and on all, and with everything in the cache, in turn.

Prints medians and ranges of wall time, of the CPU time of controller, agent and worker together, and of wall time over
device time. Compare only lines of one run. `--timeline` prints instead where the wall time of one campaign goes, on
`cpu01` and over SSH.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import os
import resource
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from harness import build_lut, profile, validate
from harness.measure.journal.journal import Journal
from harness.workspace import Workspace

NETWORKS = "builtin:squeezenet,builtin:mobilenetv2,builtin:resnet50"
NPU_NETWORK = "builtin:resnet50"


@dataclass(frozen=True)
class Took:
    """Wall and CPU time of a task, and its time on the device, in seconds."""

    wall_s: float
    cpu_s: float
    device_s: float


def timed(task: Callable[[], float]) -> Took:
    """Run a task that returns its time on the device."""
    started_s, cpu_s = time.perf_counter(), _cpu_s()
    device_s = task()
    return Took(time.perf_counter() - started_s, _cpu_s() - cpu_s, device_s)


def _cpu_s() -> float:
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in usage)


@contextlib.contextmanager
def new_workspace(devices: str = "") -> Iterator[Workspace]:
    """A workspace with this devices.toml."""
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(Path(folder))
        workspace.devices.write_text(devices)
        yield workspace


def campaign(device: str, models: Sequence[str], devices: str = "", share: float | None = None) -> Took:
    """Run a campaign in a new workspace; `share` is the part of the memory that loaded probes may keep."""
    keeping = contextlib.nullcontext() if share is None else mock.patch("harness.measure.loaded_probes._SHARE", share)
    with new_workspace(devices) as workspace, keeping:
        return timed(lambda: profile(models, device=device, workspace=workspace).device_seconds)


def validation(device: str, models: Sequence[str]) -> Took:
    """Validate networks in three processes, with a table of the same networks."""
    with new_workspace() as workspace:
        profile(models, device=device, workspace=workspace)
        build_lut(device, workspace=workspace)

        def task() -> float:
            validate(models, device=device, workspace=workspace)
            with Journal(workspace.journal) as journal:
                return sum(journal.spent_s(one.id) for one in journal.campaigns(device) if one.purpose == "validate")

        return timed(task)


@contextlib.contextmanager
def cores(number: int) -> Iterator[None]:
    """Let this process and those that it starts use so many cores."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:number])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def npu_campaigns() -> Iterator[tuple[str, Took]]:
    """Yield campaigns on the emulated NPU: compiled on one core, on all cores, and not at all."""
    number = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        for label, cache, used in (("one core", "a", 1), (f"{number} cores", "b", number), ("cached", "b", number)):
            with mock.patch.dict(os.environ, HARNESS_CACHE_DIR=f"{folder}/{cache}"), cores(used):
                yield f"npu01 profile, {label}", campaign("npu01", [NPU_NETWORK])


@contextlib.contextmanager
def board() -> Iterator[str]:
    """A devices.toml with an sshd on loopback as `board`."""
    from sshd_server import running_sshd

    with tempfile.TemporaryDirectory() as folder:
        leases = Path(folder) / "leases"
        leases.mkdir(mode=0o700)
        with running_sshd(Path(folder) / "sshd", leases) as sshd:
            yield (
                f'[devices.board]\ntransport = "ssh"\nhost = "127.0.0.1"\nport = {sshd.port}\n'
                f'user = "{getpass.getuser()}"\nidentity = "{sshd.identity}"\nknown_hosts = "{sshd.known_hosts}"\n'
                "[devices.board.options]\nthreads = 1\n"
            )


def show(found: Mapping[str, Sequence[Took]]) -> None:
    """Print a line for each kind of task."""
    for label, runs in found.items():
        columns = []
        for values, unit in (
            ([one.wall_s for one in runs], "s wall"),
            ([one.cpu_s for one in runs], "s CPU"),
            ([one.wall_s / one.device_s for one in runs], "x device time"),
        ):
            columns.append(f"{statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}] {unit}")
        print(f"{label}: {', '.join(columns)}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=NETWORKS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--timeline", action="store_true")
    options = parser.parse_args()
    models, found = options.networks.split(","), defaultdict[str, list[Took]](list)
    with board() as devices:
        if options.timeline:
            from benchmarks.performance.timeline import show_timeline

            for device in ("cpu01", "board"):
                show_timeline(device, models, devices)
            return
        for _ in range(options.repeats):
            for device in ("cpu01", "board"):
                found[f"{device} profile, probes kept"].append(campaign(device, models, devices))
                found[f"{device} profile, loaded for each pass"].append(campaign(device, models, devices, share=0.0))
            found["cpu01 validate"].append(validation("cpu01", models))
            for label, took in npu_campaigns():
                found[label].append(took)
    show(found)


if __name__ == "__main__":
    main()
