"""Replaces convolutions of a graph by the layers of their DFTs (S4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from device_agents.emulated_npu.compiler.graph.constants import derived
from device_agents.emulated_npu.compiler.graph.hardware_graph import (
    Graph,
    HardwareLayer,
    LazyConstant,
    Value,
    View,
    ViewAxis,
)
from device_agents.emulated_npu.compiler.graph.odd_blocks import OddBlocks, TransformedConvolution
from device_agents.emulated_npu.compiler.graph.views import UNIT
from device_agents.emulated_npu.compiler.odd_dft import matrices
from device_agents.emulated_npu.compiler.odd_dft.dft_layers import transform
from device_agents.emulated_npu.compiler.odd_dft.levels import CacheLevels
from device_agents.emulated_npu.compiler.odd_dft.rewriting import PARTS, Rewriting
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import Function

_CONJUGATE = 1
"""The sign of the exponent. ONNX's convolution is a correlation, which multiplies by conjugates."""


@dataclass(frozen=True)
class DftPlan:
    """How one convolution is computed: the length of its blocks, and the values that lie in the last-level cache."""

    length: int
    levels: CacheLevels


def blocks_of(layer: HardwareLayer, length: int) -> OddBlocks:
    """Return the blocks of a convolution for a length."""
    outputs, channels, *kernel = layer.fixed_weights.shape
    pictures, _, *size = layer.output.shape
    return OddBlocks(
        length, (kernel[0], kernel[1]), (size[0], size[1]), channels, outputs // layer.groups, layer.groups, pictures
    )


def rewritten(graph: Graph, plans: Mapping[int, DftPlan]) -> Graph:
    """Return the graph with the layers of these indices computed by DFT; its setup transforms their kernels."""
    if not plans:
        return graph
    values: dict[str, Value] = dict(graph.values)
    before: dict[str, Value] = {}
    layers: list[HardwareLayer] = []
    setup: list[HardwareLayer] = []
    staged: set[str] = set()
    cached: set[str] = set()
    dft: list[TransformedConvolution] = []
    for layer in graph.layers:
        plan = plans.get(layer.index)
        if plan is None:
            layers.append(layer)
            continue
        made = transform(layer, blocks_of(layer, plan.length))
        kernels = transform_kernels(layer, made.blocks, made.values[made.roles["kernels"][0]])
        dft.append(
            TransformedConvolution(
                layer.name,
                made.blocks,
                range(len(layers), len(layers) + len(made.layers)),
                tuple(len(layers) + place for place in made.transforms),
                tuple(len(layers) + place for place in made.products),
                tuple(len(setup) + place for place in kernels.transforms),
            )
        )
        layers.extend(made.layers)
        values.update(made.values)
        setup.extend(kernels.layers)
        before.update(kernels.values)
        staged.update(made.roles["blocks"])
        cached.update(name for role in plan.levels.cached for name in made.roles[role])
    results = tuple(name for name, value in before.items() if value.is_output)
    return replace(
        graph,
        values=values,
        layers=_numbered(layers),
        setup=Graph(before, _numbered(setup), (), results, (), 0),
        staged=graph.staged | staged,
        cached=graph.cached | cached,
        dft=tuple(dft),
    )


def _numbered(layers: list[HardwareLayer]) -> tuple[HardwareLayer, ...]:
    return tuple(replace(layer, index=index) for index, layer in enumerate(layers))


def transform_kernels(layer: HardwareLayer, blocks: OddBlocks, kernels: Value) -> Rewriting:
    """Return the layers that write `kernels`, in the same two directions as for a block.

    Kernels are zero beyond their size, so that the layers use only as many columns of the matrices.
    """
    made = Rewriting(layer, blocks)
    made.values[kernels.name] = replace(kernels, kind="activation", is_output=True)
    source = made.constant(_scaled(layer))
    height, width = blocks.kernel
    channels, outputs, length, lines = blocks.channels, blocks.outputs, blocks.length, blocks.half + 1
    every = blocks.groups * outputs
    rows = made.value("kernel row DFT", (2 * lines, height, channels, every))
    made.multiply(
        "kernel row DFT",
        [replace(source, axes=tuple(source.axes[axis] for axis in (2, 1, 0, 3)))],
        View(rows, (0,) * 4, (ViewAxis(height, 1), ViewAxis(channels, 2), ViewAxis(every, 3), ViewAxis(2 * lines, 0))),
        made.matrix("lines/conjugate", matrices.lines(length, width, _CONJUGATE)),
    )
    # Groups of one channel take the place of the channels and are transformed together.
    together = blocks.is_depthwise
    across, axis = (ViewAxis(blocks.groups, 3, outputs), 2) if together else (ViewAxis(channels, 2), 3)
    for group in range(1 if together else blocks.groups):
        part = View(
            rows,
            (0, 0, 0, group * outputs),
            (ViewAxis(lines, 0, 2), ViewAxis(height, 1), across, ViewAxis(outputs, 3), ViewAxis(2, 0)),
        )
        axes = (ViewAxis(lines, 0), ViewAxis(length, 1), ViewAxis(across.size, axis), ViewAxis(outputs, 4), UNIT)
        for place, (kind, make) in enumerate(matrices.ACROSS.items()):
            target = View(kernels.name, (0, 0, group, 0, place * outputs), axes)
            matrix = made.window(f"across/conjugate/{kind}", make(length, height, _CONJUGATE))
            made.transforms.append(len(made.layers))
            made.add("kernel DFT", Function.CONVOLVE, [part], target, PARTS, matrix)
    return made


def _scaled(layer: HardwareLayer) -> LazyConstant:
    """Return the kernels (M, C, height, width) times the scale of the channels."""
    weights = layer.fixed_weights
    parents: Sequence[LazyConstant] = [weights]
    if layer.scale_shift is not None:
        parents = [weights, layer.scale_shift]

    def compute(kernel: Array, pair: Array | None = None) -> Array:
        return kernel if pair is None else kernel * np.asarray(pair)[0][:, None, None, None]

    return derived(f"{layer.name}/kernels", weights.shape, weights.dtype, parents, compute)
