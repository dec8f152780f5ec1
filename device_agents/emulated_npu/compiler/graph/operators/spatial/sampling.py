"""AffineGrid: the positions of a grid, moved by a matrix that the network computes."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.constants import known
from device_agents.emulated_npu.compiler.graph.drafts import Builder, Handler
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import OnnxNode, unsupported
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import DataType, Function


def _affine_grid(build: Builder, node: OnnxNode) -> None:
    """Add an AffineGrid of constant size: theta (N, axes, axes + 1) times all positions of a grid."""
    theta = build.view(node.inputs[0])
    sizes = [int(size) for size in build.required(node.inputs[1], "size").reshape(-1)[2:]]
    if theta.shape[1:] != (len(sizes), len(sizes) + 1):
        raise unsupported(node, f"A theta of shape {list(theta.shape)} does not fit {len(sizes)} axes")
    positions = [_positions(size, bool(node.attribute("align_corners", 0))) for size in sizes]
    grid = np.stack([*np.meshgrid(*positions, indexing="ij")[::-1], np.ones(sizes)])  # x first
    name, count = node.outputs[0], math.prod(sizes)
    weights = known(f"{name}.positions", grid.reshape(-1, count), DataType.FLOAT32)
    product = build.temporary("product", (theta.shape[0], len(sizes), count), build.dtype(theta))
    build.layer(Function.CONVOLVE, [theta], product, weights=weights, matrix=True)
    found = views.divided(product, (theta.shape[0], len(sizes), *sizes))
    build.bind(name, views.permuted(found, (0, *range(2, len(sizes) + 2), 1)))


def _positions(size: int, align_corners: bool) -> Array:
    """Return the normalised positions of the elements of an axis; -1 and 1 are its ends."""
    if align_corners:
        return np.linspace(-1.0, 1.0, size)
    return (2.0 * np.arange(size) + 1.0) / size - 1.0


HANDLERS: Mapping[str, Handler] = {"AffineGrid": _affine_grid}
