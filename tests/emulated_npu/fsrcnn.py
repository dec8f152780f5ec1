"""FSRCNN, the network of the halo anchor, at any size, and the totals of its runs."""

import math
import tomllib
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from small_models import model, node, values

from device_agents.emulated_npu.compiler.compiled import Compiled
from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph
from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.compiler.options import HaloChoice, Options
from device_agents.emulated_npu.compiler.stages import compile_graph
from device_agents.emulated_npu.isa.sequencer import sequence
from device_agents.emulated_npu.machine import Machine, find_machine
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import Command, DataType, Function, Space

ANCHOR: dict[str, Any] = tomllib.loads(
    (Path(__file__).parents[1] / "published_figures" / "halo_fsrcnn.toml").read_text(encoding="utf-8")
)
LAYERS = [(each["kernel"], each["in_channels"], each["out_channels"]) for each in ANCHOR["layers"]]
WIDTH, HEIGHT = ANCHOR["width"], ANCHOR["height"]
MARGIN = sum(kernel - 1 for kernel, _, _ in LAYERS)
"""Rows and columns that the input has more than the output."""


@dataclass(frozen=True)
class Fsrcnn:
    """The network as a model, with its weights and an input."""

    model: bytes
    weights: dict[str, Array]
    inputs: dict[str, Array]


@cache
def fsrcnn(width: int, height: int) -> Fsrcnn:
    """Return FSRCNN with an output of `width` x `height` and seeded weights."""
    weights = {}
    nodes = []
    for place, (kernel, channels, filters) in enumerate(LAYERS):
        scale = 1 / math.sqrt(channels * kernel**2)
        weights[f"w{place}"] = values((filters, channels, kernel, kernel), place, -scale, scale)
        nodes.append(node("Conv", f"{f'v{place - 1}' if place else 'x'} w{place}", f"v{place}"))
    inputs = {"x": values((1, LAYERS[0][1], height + MARGIN, width + MARGIN), 50)}
    proto = model(nodes, inputs, weights, [f"v{len(LAYERS) - 1}"])
    return Fsrcnn(proto.SerializeToString(), weights, inputs)


@cache
def full_graph() -> Graph:
    """Return the network at the size of the anchor."""
    return import_model(fsrcnn(WIDTH, HEIGHT).model)


def anchor_machine() -> Machine:
    """Return the edge preset in 8 bit with buffers that hold whole layers.

    Its array computes pixels one by one: several side by side multiply by zeros, which the published counts leave out.
    """
    edge = find_machine("edge")
    unit = replace(edge.mfu, packing="none")
    return replace(edge, data_type=DataType.INT8, mfu=unit, nb_bytes=1 << 28, sb_bytes=1 << 20, halo_bytes=1 << 26)


@cache
def chained(tile_width: int, tile_height: int, halo: HaloChoice) -> Compiled:
    """Return the network compiled as one chain in tiles of its output."""
    return compile_graph(full_graph(), anchor_machine(), Options("whole", halo, (tile_height, tile_width)))


@cache
def layer_by_layer() -> Compiled:
    """Return the network compiled with every intermediate in external memory."""
    return compile_graph(full_graph(), anchor_machine(), Options("layers", "refetch"))


@dataclass(frozen=True)
class Counted:
    """Multiply-adds of a program, and the feature-map elements that it loads and stores."""

    macs: int
    loaded: int
    stored: int

    @property
    def external(self) -> int:
        """Elements of feature maps that touch external memory."""
        return self.loaded + self.stored


def count(compiled: Compiled) -> Counted:
    """Return the totals from the operands of the decoded commands, loops unrolled."""
    found: Counter[str] = Counter()
    for step in sequence(compiled.program.code, layer_of=compiled.program.layer_of):
        command = step.item
        if not isinstance(command, Command):
            continue
        elements = command.target.descriptor.elements
        if command.function is Function.CONVOLVE and command.second is not None:
            found["macs"] += elements * math.prod(command.second.descriptor.dims[:4])
        elif command.function is Function.LOAD and command.target.descriptor.space is Space.NB:
            found["loaded"] += elements
        elif command.function is Function.STORE:
            found["stored"] += elements
    return Counted(found["macs"], found["loaded"], found["stored"])
