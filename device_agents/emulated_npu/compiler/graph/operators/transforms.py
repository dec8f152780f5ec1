"""Products by constant matrices: DFT and STFT, one for each part of the complex result, and AffineGrid."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.constants import known
from device_agents.emulated_npu.compiler.graph.drafts import Builder, Handler
from device_agents.emulated_npu.compiler.graph.hardware_graph import View
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import OnnxNode, unsupported
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import DataType, Function

_MOST_WEIGHTS = 1 << 26
_AXIS_IS_INPUT = 20
"""The first opset in which the axis of a DFT is an input."""


@dataclass(frozen=True)
class _Transform:
    """A transform of `size` elements, real ones or (`parts` 2) complex ones, of `length`; `onesided` as in ONNX."""

    size: int
    parts: int
    length: int
    inverse: bool
    onesided: bool

    def responses(self) -> list[Array]:
        """Return the matrix (size * parts, results) of each part of the results: the responses to all unit inputs."""
        units = np.concatenate([np.eye(self.size) * unit for unit in (1, 1j)[: self.parts]], axis=1)
        units = units.reshape(self.size * self.parts, self.size)  # parts are the fastest
        if self.inverse and self.onesided:
            return [np.fft.irfft(units, self.length)]
        found = np.fft.ifft(units, self.length) if self.inverse else np.fft.fft(units, self.length)
        found = found[:, : self.length // 2 + 1] if self.onesided else found
        return [found.real, found.imag]


def _add(build: Builder, node: OnnxNode, rows: View, transform: _Transform, output: View, scale: Array) -> None:
    """Add the products of rows (..., size * parts), scaled, into an output (..., results, parts)."""
    if rows.shape[-1] * output.shape[-2] > _MOST_WEIGHTS:
        raise unsupported(node, f"Its matrix has {rows.shape[-1]} rows and {output.shape[-2]} columns")
    if len(rows.axes) == 1:
        rows, output = views.with_axis(rows, 0), views.with_axis(output, 0)
    matrices = transform.responses()
    if output.shape[-2:] != (matrices[0].shape[1], len(matrices)):
        raise unsupported(node, f"Its result has the shape {list(output.shape)} in the file")
    for part, matrix in enumerate(matrices):
        weights = known(f"{node.outputs[0]}.matrix{part}", scale.reshape(-1, 1) * matrix, DataType.FLOAT32)
        last = len(output.axes) - 1
        target = views.divided(views.sliced(output, last, part, 1), output.shape[:-1])
        build.layer(Function.CONVOLVE, [rows], target, weights=weights, matrix=True)


def _dft(build: Builder, node: OnnxNode) -> None:
    """Add a DFT along an axis; the last axis has the parts of complex numbers."""
    source, output = build.view(node.inputs[0]), build.result()
    rank = len(source.axes)
    axis = node.attribute("axis", 1)
    if build.source.opset >= _AXIS_IS_INPUT:
        axis = int(build.number(node.inputs[2], "axis")) if node.input(2) else -2
    axis %= rank
    inverse, onesided = bool(node.attribute("inverse", 0)), bool(node.attribute("onesided", 0))
    size, parts = source.shape[axis], source.shape[-1]
    length = 2 * (size - 1) if inverse and onesided else size
    if node.input(1):
        length = int(build.number(node.inputs[1], "dft_length"))
    if axis == rank - 1 or parts > 2 or length < 1:
        raise unsupported(node, f"It transforms axis {axis} of shape {list(source.shape)} to {length} elements")
    order = [*(place for place in range(rank - 1) if place != axis), axis, rank - 1]
    moved, target = views.permuted(source, order), views.permuted(output, order)
    rows = build.reshape(moved, (*moved.shape[:-2], size * parts), f"{node.outputs[0]}.rows", "rows")
    _add(build, node, rows, _Transform(size, parts, length, inverse, onesided), target, np.ones(size * parts))


def _stft(build: Builder, node: OnnxNode) -> None:
    """Add an STFT by constant steps: frames are copied to rows, and the window scales the matrix."""
    source, output = build.view(node.inputs[0]), build.result()
    source = views.with_axis(source, 2) if len(source.axes) == 2 else source
    step = int(build.number(node.inputs[1], "frame_step"))
    window = build.required(node.inputs[2], "window").reshape(-1) if node.input(2) else None
    length = source.shape[1] if window is None else window.size
    if node.input(3):
        length = int(build.number(node.inputs[3], "frame_length"))
    window = np.ones(length) if window is None else window
    batch, signal, part = source.axes
    frames, parts = output.shape[1], part.size
    if window.size != length or step < 1 or parts > 2 or (frames - 1) * step + length > signal.size:
        raise unsupported(node, f"Its {frames} frames of {length} elements do not fit {signal.size} elements")
    starts, taps = replace(signal, size=frames, step=signal.step * step), replace(signal, size=length)
    rows = build.temporary("rows", (batch.size, frames, length * parts), build.dtype(source))
    read = replace(source, axes=(batch, starts, taps, part))
    build.copy(read, views.divided(rows, read.shape))
    transform = _Transform(length, parts, length, False, bool(node.attribute("onesided", 1)))
    _add(build, node, rows, transform, output, np.repeat(window, parts))


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


HANDLERS: Mapping[str, Handler] = {"DFT": _dft, "STFT": _stft, "AffineGrid": _affine_grid}
