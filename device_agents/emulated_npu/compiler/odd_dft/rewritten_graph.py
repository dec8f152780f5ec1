"""Replaces convolutions of a graph by the layers of their DFTs (S4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph, HardwareLayer, Value
from device_agents.emulated_npu.compiler.graph.odd_blocks import OddBlocks, TransformedConvolution
from device_agents.emulated_npu.compiler.odd_dft.dft_layers import transform
from device_agents.emulated_npu.compiler.odd_dft.kernel import transform_kernels
from device_agents.emulated_npu.compiler.odd_dft.levels import CacheLevels


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
