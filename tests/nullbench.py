"""Networks with known latency on a null device: `c + a * input + b * output + w * weights`, in bytes."""

import itertools
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from in_process import in_process
from onnx import TensorProto, helper, numpy_helper
from opened_run import open_run

from harness import build_lut
from harness.device.inventory import Device, find_device, load_inventory
from harness.device.session import AgentSession
from harness.lut.table import Lut
from harness.measure.policy import RepeatPolicy
from harness.measure.profiling import ProfileResult, profile_networks
from harness.measure.progress import Observer, ignore
from harness.measure.request import ProfileRequest
from harness.network.layers import Layer, cut
from harness.network.model_references import load_network
from harness.workspace import Workspace

DEVICE = "bench"
LEFT_OUT_ABOVE = 1024
"""Weights with more elements than this do not travel; on a null device only they take time."""


def build_network(path: Path, widths: Sequence[int] = (8, 32, 32, 32), edge: int = 16, classes: int = 64) -> Path:
    """A chain of convolutions with activations, a pooling layer and a classifier; equal widths repeat a layer."""
    nodes, weights = [], []
    tensor = "x"
    for index, (inside, outside) in enumerate(itertools.pairwise(widths)):
        weights.append(numpy_helper.from_array(np.full((outside, inside, 3, 3), 0.01, np.float32), f"w{index}"))
        inputs = [tensor, f"w{index}"]
        nodes.append(helper.make_node("Conv", inputs, [f"c{index}"], f"conv{index}", kernel_shape=[3, 3], pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{index}"], [f"r{index}"], f"relu{index}"))
        tensor = f"r{index}"
    nodes.append(helper.make_node("GlobalAveragePool", [tensor], ["pooled"], "pool"))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["flat"], "flatten"))
    weights.append(numpy_helper.from_array(np.full((widths[-1], classes), 0.01, np.float32), "wf"))
    nodes.append(helper.make_node("Gemm", ["flat", "wf"], ["y"], "classifier"))
    read = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, widths[0], edge, edge))
    written = helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, classes))
    graph = helper.make_graph(nodes, "chain", [read], [written], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


@dataclass(frozen=True)
class Truth:
    """The options of a null device."""

    a_s_per_byte: float = 1e-10
    b_s_per_byte: float = 2e-10
    c_s: float = 1e-4
    weight_s_per_byte: float = 1e-9
    noise: float = 0.01
    seed: int = 1

    def layer_s(self, layer: Layer, path: Path) -> float:
        """The true latency of a layer, from the weights of its nodes in the file."""
        sizes = {tensor.name: int(np.prod(tensor.dims)) for tensor in onnx.load(path).graph.initializer}
        elements = [sizes.get(name, 0) for node in layer.graph.nodes for name in node.inputs]
        return self.weight_s_per_byte * 4 * sum(count for count in elements if count > LEFT_OUT_ABOVE)

    def network_s(self, path: Path) -> float:
        """The true latency of the whole network."""
        graph = onnx.load(path).graph
        read, written = (
            sum(4 * int(np.prod([size.dim_value for size in value.type.tensor_type.shape.dim])) for value in values)
            for values in (graph.input, graph.output)
        )
        weights = sum(
            4 * int(np.prod(tensor.dims)) for tensor in graph.initializer if np.prod(tensor.dims) > LEFT_OUT_ABOVE
        )
        moved = self.a_s_per_byte * read + self.b_s_per_byte * written
        return self.c_s + moved + self.weight_s_per_byte * weights


@dataclass
class Bench:
    """A workspace with one null device and a small network."""

    root: Path
    truth: Truth = field(default_factory=Truth)
    model: Path = field(init=False)

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self.model = build_network(self.root / "chain.onnx")
        self.set_device()

    @property
    def workspace(self) -> Workspace:
        """The workspace around the files."""
        return Workspace(self.root)

    def set_device(self, truth: Truth | None = None, name: str = DEVICE) -> None:
        """Writes devices.toml with one null device, which is leased like a real one."""
        self.truth = truth or self.truth
        options = "".join(f"{key} = {value!r}\n" for key, value in vars(self.truth).items())
        table = f'[devices.{name}]\nbackend = "null"\nexclusive = true\n'
        self.workspace.devices.write_text(f"{table}[devices.{name}.options]\n{options}")

    def profile(
        self,
        *models: Path,
        device: str = DEVICE,
        observe: Observer = ignore,
        stop: threading.Event | None = None,
        connect: Callable[[Device], AgentSession] = in_process,
        **fields: Any,
    ) -> ProfileResult:
        """Measures the small network, or others, without golden probes; ten runs per probe unless given.

        By default the device is part of this process; `open_session` starts its agent and worker instead.
        """
        fields.setdefault("policy", RepeatPolicy(runs=10))
        request = ProfileRequest(device, tuple(map(str, models or (self.model,))), **fields)
        known, networks = find_device(load_inventory(self.workspace.devices), device), request.networks()
        with open_run(known, self.workspace, observe, stop, connect=connect) as run:
            return profile_networks(run, networks, request).result

    def build(self, device: str = DEVICE, **options: Any) -> Lut:
        """Builds a table."""
        return build_lut(device, workspace=self.workspace, **options)

    def layers(self, table: Lut, model: Path | None = None) -> Mapping[str, float]:
        """The true latency of each layer by the digest of its key."""
        path = model or self.model
        return {
            layer.key.digest: self.truth.layer_s(layer, path) for layer in cut(load_network(str(path)), table.rules)
        }

    def visits(self, campaign: int) -> list[tuple[int, int, int, str, int]]:
        """Batch, round, position, probe and number of samples of every series, straight from the file."""
        query = (
            "SELECT batch, round, position, probe, (SELECT count(*) FROM samples WHERE samples.series=series.id)"
            " FROM series WHERE campaign=? ORDER BY batch, round, position"
        )
        database = sqlite3.connect(self.workspace.journal)
        try:
            return database.execute(query, (campaign,)).fetchall()
        finally:
            database.close()


class StopAfter(threading.Event):
    """A stop request that is set once it was read a given number of times."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks = looks

    def is_set(self) -> bool:
        """Whether it was read often enough."""
        self.looks -= 1
        return self.looks < 0
