"""Start-up and estimates of `harness` beside Python and `onnx.load`: a part of docs/performance.md.

The table is the published one of `npu01`; the networks are built-in ones, as files with random weights, and chains of
convolutions of growing length.
"""

import itertools
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from benchmarks.generated_page import Section, table
from benchmarks.performance.measuring import (
    Run,
    Task,
    cpu,
    grow,
    growth_table,
    half_decades,
    in_turns,
    process,
    ratio,
    spread,
)
from benchmarks.performance.page import reached, reached_linear
from harness import cache
from harness.estimation.network_estimate import estimate_network
from harness.lut.table import Lut
from harness.lut.table_choice import PUBLISHED
from harness.lut.table_files import read_lut
from harness.network.keyed_reading import KeyedReader
from harness.network.model_references import model_path

DEVICE = "npu01"
NETWORKS, QUICK_NETWORKS = ("resnet50", "mobilenetv2"), ("dscnn",)
DEPTHS, QUICK_DEPTHS = half_decades(10, 10_000), (5, 10, 20)
WIDTHS, EDGE = (8, 16, 24, 32, 48, 64), 14
PROCESSES, QUICK_PROCESSES = 5, 1
_LOAD = "import sys, onnx; onnx.load(sys.argv[1])"


def estimate_section(run: Run) -> Section:
    """Measure processes in turns, and how estimates grow with the layers of a network."""
    folder = run.folder("estimate")
    repeats, names = (QUICK_PROCESSES, QUICK_NETWORKS) if run.quick else (PROCESSES, NETWORKS)
    with mock.patch.dict("os.environ", {cache.VARIABLE: str(folder / "cache")}):
        rows, help_ratio = _start_up(repeats)
        ratios = []
        for name in names:
            found, again = _estimates(folder / f"{name}.onnx", name, repeats)
            rows += found
            ratios.append(f"{again:.2f} ({name})")
        depths = QUICK_DEPTHS if run.quick else DEPTHS
        (known,) = map(read_lut, (PUBLISHED / DEVICE).glob("*-*"))
        growths = {
            "read and estimate a network": grow(depths, partial(_reading, folder, known, fresh=True), run.repeats),
            "estimate a network read before": grow(depths, partial(_reading, folder, known, fresh=False), run.repeats),
        }
    text = (
        f"CPU time of processes, {repeats} in turns:\n\n{table(('process', 'CPU s', 'ratio'), rows)}\n\nChains of "
        f"convolutions and activations with {len(WIDTHS)} widths, in one process:\n\n"
        f"{growth_table('nodes', growths)}"
    )
    linear = [reached_linear(f"layers: {name}", one) for name, one in growths.items()]
    return Section(
        text,
        (
            reached("`harness --help`, over Python alone", f"{help_ratio:.2f}", None),
            reached("`harness estimate` of a file read before, over Python and `onnx.load`", ", ".join(ratios), None),
            *linear,
        ),
    )


def _harness(*words: str) -> Task:
    return process([sys.executable, "-m", "harness", *words])


def _start_up(repeats: int) -> tuple[list[tuple[object, ...]], float]:
    tasks = {"python": process([sys.executable, "-c", ""]), "help": _harness("--help")}
    tasks["help"]()  # compiles modules
    found = in_turns(tasks, repeats)
    share = ratio(found["help"], found["python"])
    rows: list[tuple[object, ...]] = [
        ("Python alone", spread(cpu(found["python"])), 1),
        ("`harness --help`", spread(cpu(found["help"])), f"{share:.2f}"),
    ]
    return rows, share


def _estimates(path: Path, name: str, repeats: int) -> tuple[list[tuple[object, ...]], float]:
    """Compare `harness estimate` of a network, read for the first time and again, with `onnx.load`."""
    with model_path(f"builtin:{name}") as bare:
        onnx.save(with_weights(onnx.load(bare)), path)
    estimate = ("estimate", str(path), "--device", DEVICE, "--workspace", str(path.parent), "--allow-partial")
    tasks = {
        "load": process([sys.executable, "-c", _LOAD, str(path)]),
        "first": process([sys.executable, "-m", "harness", *estimate], **{cache.VARIABLE: ""}),
        "again": _harness(*estimate),
    }
    tasks["again"]()  # fills the cache
    found = in_turns(tasks, repeats)
    first, again = (ratio(found[name], found["load"]) for name in ("first", "again"))
    size = f"{name}, {path.stat().st_size >> 20} MiB"
    return [
        (f"Python and `onnx.load`, {size}", spread(cpu(found["load"])), 1),
        ("`harness estimate`, without the cache", spread(cpu(found["first"])), f"{first:.2f}"),
        ("`harness estimate`, file read before", spread(cpu(found["again"])), f"{again:.2f}"),
    ], again


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


def _reading(folder: Path, known: Lut, nodes: int, *, fresh: bool) -> Callable[[], None]:
    """Return a task that estimates a chain, with or without the cache of networks read before."""
    path = folder / f"chain-{nodes}.onnx"
    if not path.exists():
        onnx.save(chain(nodes), path)
    reader = KeyedReader(known.rules)

    def estimate() -> None:
        with mock.patch.dict("os.environ", {cache.VARIABLE: ""} if fresh else {}):
            estimate_network(reader.load(str(path)), known)

    estimate()
    return estimate


def chain(nodes: int) -> ModelProto:
    """Return a chain of so many nodes, convolutions and activations in turn; widths repeat."""
    made, tensor = [], "x"
    weights: dict[str, NDArray[np.float32]] = {}
    widths = itertools.cycle(WIDTHS)
    inside = first = next(widths)
    for number in range(nodes // 2):
        outside = next(widths)
        weight = f"w{inside}-{outside}"
        weights.setdefault(weight, np.full((outside, inside, 3, 3), 0.01, np.float32))
        conv = helper.make_node("Conv", [tensor, weight], [f"c{number}"], kernel_shape=[3, 3], pads=[1] * 4)
        made += [conv, helper.make_node("Relu", [f"c{number}"], [f"r{number}"])]
        tensor, inside = f"r{number}", outside
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, width, EDGE, EDGE))
        for name, width in (("x", first), (tensor, inside))
    ]
    held = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(made, "chain", ends[:1], ends[1:], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
