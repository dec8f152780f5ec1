"""Measure the cost of estimates: processes, networks in one process, many files, and the size of the table.

    python -m benchmarks.performance.estimate

Prints processor times (user and system, child processes included), so that they hold on a busy machine; ratios compare
processes that ran in turns. The table is of `npu01`; the networks are the built-in ones and published topologies, as
files with random weights.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import itertools
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper

from benchmarks.topologies import FAMILIES, build
from harness import build_lut, cache, profile
from harness.estimation.network_estimate import estimate_network
from harness.lut.table import Lut
from harness.lut.table_files import publish, read_lut
from harness.measure.policy import RepeatPolicy
from harness.network.keyed_reading import KeyedReader, read_keyed_networks
from harness.network.model_references import BUILTIN_NAMES, model_path
from harness.workspace import Workspace

DEVICE = "npu01"
PROFILED = ("builtin:resnet50", "builtin:mobilenetv2")
COLD = ("resnet50", "mobilenetv2")
ROUNDS = 5
SIZES = (100, 1_000, 10_000, 100_000)
LOOKUPS = 60
_LOAD = "import sys, onnx; onnx.load(sys.argv[1])"


def main() -> None:
    """Run all measurements and print their figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.performance.estimate", description=__doc__)
    parser.add_argument("--networks", type=Path, metavar="DIR", help="folder for the files; existing ones are used")
    parser.add_argument("--lut", type=Path, metavar="DIR", help="a table of npu01 with ResNet-50 and MobileNetV2")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ[cache.VARIABLE] = str(folder / "cache")
        files = write_networks(options.networks or folder)
        table = read_lut(options.lut) if options.lut else _table(Workspace(folder))
        for model in COLD:
            _cold(next(path for path in files if path.stem == model), table)
        _in_process(files, table)
        for entries in SIZES:
            _load(table, entries, folder / "large")
        _many(files, table)


def _table(workspace: Workspace) -> Lut:
    profile(list(PROFILED), device=DEVICE, workspace=workspace, policy=RepeatPolicy(runs=5))
    return build_lut(DEVICE, workspace=workspace)


def write_networks(folder: Path) -> list[Path]:
    """Write the networks as files with all their weights, but for those that exist."""
    topologies = (*FAMILIES["mobile"], *FAMILIES["dense_prediction"])
    files = [folder / f"{name}.onnx" for name in (*BUILTIN_NAMES, *topologies)]
    for path in files:
        if path.exists():
            continue
        if path.stem in topologies:
            onnx.save(build(path.stem), path)
            continue
        with model_path(f"builtin:{path.stem}") as bare:
            onnx.save(with_weights(onnx.load(bare)), path)
    return files


def with_weights(model: ModelProto) -> ModelProto:
    """Replace the constants that a network of the `onnx` wheel computes by random weights of the same shapes."""
    generator, graph = np.random.default_rng(0), model.graph
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    filled = [node for node in graph.node if node.op_type == "ConstantOfShape" and node.input[0] in shapes]
    for node in filled:
        values = generator.standard_normal(tuple(shapes[node.input[0]]), np.float32)
        graph.initializer.append(numpy_helper.from_array(values, node.output[0]))
        graph.node.remove(node)
    model.ir_version = max(model.ir_version, 8)  # weights need not be inputs
    return model


def _cold(path: Path, table: Lut) -> None:
    """Compare `harness estimate`, of a file that was read before and for the first time, with `onnx.load`, in turns."""
    command = [sys.executable, "-m", "harness", "estimate", str(path), "--lut", str(table.path)]
    load = [sys.executable, "-c", _LOAD, str(path)]
    _process_s(command)
    rounds = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as empty:
            rounds.append((_process_s(load), _process_s(command), _process_s(command, empty)))
    loads_s, again_s, first_s = (statistics.median(times) for times in zip(*rounds, strict=True))
    again, first = (statistics.median(one[at] / one[0] for one in rounds) for at in (1, 2))
    print(
        f"{path.stem}, {path.stat().st_size >> 20} MiB: Python and onnx.load {loads_s:.3f} s, harness estimate "
        f"{again_s:.3f} s, ratio {again:.2f}; the first time {first_s:.3f} s, ratio {first:.2f}"
    )


def _process_s(command: Sequence[str], cached_in: str | None = None) -> float:
    environment = {**os.environ, cache.VARIABLE: cached_in or os.environ[cache.VARIABLE]}
    before_s = _cpu_s()
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return _cpu_s() - before_s


def _cpu_s() -> float:
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in usage)


def _in_process(files: Sequence[Path], table: Lut) -> None:
    """Estimate each network in this process, with an empty cache and again."""
    reader, times = KeyedReader(table.rules), []
    os.environ[cache.VARIABLE] += "-of-process"
    estimate_network(reader.load(str(files[0])), table)
    for path in files:
        marks = [_cpu_s()]
        for _ in range(1 + ROUNDS):
            estimate_network(reader.load(str(path)), table)
            marks.append(_cpu_s())
        steps = [after - before for before, after in itertools.pairwise(marks)]
        times.append((steps[0], statistics.median(steps[1:])))
    first_s, again_s = (statistics.median(column) for column in zip(*times, strict=True))
    slowest_s = max(again for _, again in times)
    print(
        f"{len(files)} networks in one process, per network: first {first_s * 1e3:.1f} ms, "
        f"again {again_s * 1e3:.1f} ms in the median, {slowest_s * 1e3:.0f} ms at most"
    )


def _many(files: Sequence[Path], table: Lut) -> None:
    """Estimate all files at once: read on all cores for the first time, and again."""
    os.environ[cache.VARIABLE] += "-of-list"
    paths = [str(path) for path in files]
    walls = []
    for _ in range(2):
        started_s, cpu_s = time.perf_counter(), _cpu_s()
        found = read_keyed_networks(paths, table.rules)
        walls.append((time.perf_counter() - started_s, _cpu_s() - cpu_s))
    if [network.file for network in found.networks] != paths:
        raise SystemExit("a network is missing")
    (first_s, first_cpu_s), (again_s, _) = walls
    print(
        f"{len(files)} files at once on {os.cpu_count()} cores: first {first_s:.1f} s wall, {first_cpu_s:.1f} s of "
        f"processors; again {again_s:.1f} s wall"
    )


def _load(table: Lut, count: int, root: Path) -> None:
    """Load a table of so many entries and look some up."""
    plain = [entry for entry in table.entries if "@" not in entry.context]
    entries = []
    for number in range(count):
        known = plain[number % len(plain)]
        signature = f"{known.signature}|{number}"
        key = hashlib.sha256(signature.encode()).hexdigest()[:16]
        entries.append(dataclasses.replace(known, signature=signature, key=key))
    path = publish(dataclasses.replace(table, entries=entries, chains=(), correlations=b""), root).path
    size_mb = (path / "entries.csv").stat().st_size / 1e6
    keys = [entries[number * 7919 % count].key for number in range(LOOKUPS)]
    del entries
    times = [_load_s(path, keys) for _ in range(2 * ROUNDS + 1)]
    os.environ[cache.VARIABLE], kept = "", os.environ[cache.VARIABLE]
    whole_s = _load_s(path, keys)
    os.environ[cache.VARIABLE] = kept
    print(
        f"table of {count:,} entries, {size_mb:.1f} MB: loaded with {LOOKUPS} lookups in "
        f"{statistics.median(times) * 1e3:.1f} ms; without its index {whole_s:.2f} s"
    )


def _load_s(path: Path, keys: Sequence[str]) -> float:
    before_s = time.process_time()
    table = read_lut(path)
    if any(table.find(key, ("chip",)) is None for key in keys):
        raise SystemExit("an entry is missing")
    return time.process_time() - before_s


if __name__ == "__main__":
    main()
