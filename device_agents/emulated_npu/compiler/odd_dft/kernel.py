"""The DFT of the kernels of a convolution, as layers that run once when the program is loaded (S4.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from device_agents.emulated_npu.compiler.graph.constants import derived
from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer, LazyConstant, Value, View, ViewAxis
from device_agents.emulated_npu.compiler.graph.odd_blocks import OddBlocks
from device_agents.emulated_npu.compiler.graph.views import UNIT
from device_agents.emulated_npu.compiler.odd_dft import matrices
from device_agents.emulated_npu.compiler.odd_dft.rewriting import PARTS, Rewriting
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import Function

_CONJUGATE = 1
"""The sign of the exponent. ONNX's convolution is a correlation, which multiplies by conjugates."""


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
