"""Operators that only rearrange elements: views if possible, else copies."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.constants import derived
from device_agents.emulated_npu.compiler.graph.drafts import Builder, Handler
from device_agents.emulated_npu.compiler.graph.hardware_graph import View
from device_agents.emulated_npu.compiler.graph.parsed_model import OnnxNode, unsupported
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import Function


def _same(build: Builder, node: OnnxNode) -> None:
    """Bind the output of Identity, or of Dropout at inference, to its input."""
    if any(name in build.source.readers or name in build.source.outputs for name in node.outputs[1:] if name):
        raise unsupported(node, "Its second output, the mask, is not supported")
    if node.input(2) and bool(build.required(node.inputs[2], "mode")):
        raise unsupported(node, "It is in training mode")
    build.bind(node.outputs[0], build.view(node.inputs[0]))


def _reshape(build: Builder, node: OnnxNode) -> None:
    """Bind the output of Reshape, Flatten, Squeeze or Unsqueeze to the reshaped input."""
    output = node.outputs[0]
    build.bind(output, build.reshape(build.view(node.inputs[0]), build.type(output).shape, output))


def _transpose(build: Builder, node: OnnxNode) -> None:
    source = build.view(node.inputs[0])
    permutation = node.attribute("perm") or tuple(reversed(range(len(source.axes))))
    if sorted(permutation) != list(range(len(source.axes))):
        raise unsupported(node, f"Its perm {list(permutation)} is not a permutation of {len(source.axes)} axes")
    build.bind(node.outputs[0], views.permuted(source, permutation))


def _expand(build: Builder, node: OnnxNode) -> None:
    build.bind(node.outputs[0], views.expanded(build.view(node.inputs[0]), build.type(node.outputs[0]).shape))


def _slice(build: Builder, node: OnnxNode) -> None:
    """Bind a Slice with bounds from attributes (opset 9) or constant inputs; steps may be negative."""
    source = build.view(node.inputs[0])
    rank = len(source.axes)

    def numbers(name: str, place: int) -> list[int] | None:
        given = node.attribute(name)
        if given is None and node.input(place):
            given = build.required(node.inputs[place], name).reshape(-1).tolist()
        return None if given is None else [int(number) for number in given]

    starts, ends = numbers("starts", 1) or [], numbers("ends", 2) or []
    axes = numbers("axes", 3) or list(range(len(starts)))
    steps = numbers("steps", 4) or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        place = axis % rank
        picked = range(*slice(start, end, step).indices(source.shape[place]))
        if not picked:
            raise unsupported(node, "Its result has no elements")
        source = views.sliced(source, place, picked.start, len(picked), step)
    build.bind(node.outputs[0], source)


def _split(build: Builder, node: OnnxNode) -> None:
    source = build.view(node.inputs[0])
    axis = node.attribute("axis", 0) % len(source.axes)
    start = 0
    for output in node.outputs:
        if not output:
            raise unsupported(node, "One of its outputs is missing")
        size = build.type(output).shape[axis]
        if size < 1 or start + size > source.shape[axis]:
            why = f"The slice is from {start} to {start + size} of {source.shape[axis]} elements"
            raise unsupported(node, why)
        build.bind(output, views.sliced(source, axis, start, size))
        start += size


def _concat(build: Builder, node: OnnxNode) -> None:
    """Add a Concat; if possible, the producers of the operands write in place."""
    output = build.result()
    axis = node.attribute("axis", 1) % len(output.axes)
    start = 0
    for name in node.inputs:
        part = build.view(name)
        build.place(part, views.sliced(output, axis, start, part.shape[axis]))
        start += part.shape[axis]


def _tile(build: Builder, node: OnnxNode) -> None:
    """Bind a Tile to a view whose axes are each preceded by a repeating axis, merged by copies."""
    source = build.view(node.inputs[0])
    output = build.type(node.outputs[0]).shape
    repeats = {axis: size // own for axis, (size, own) in enumerate(zip(output, source.shape, strict=True))}
    build.bind(node.outputs[0], build.repeated(source, repeats, 0, output, node.outputs[0]))


def _gather(build: Builder, node: OnnxNode) -> None:
    """Add a Gather: a slice if the indices are constant and evenly spaced, else a layer that picks rows."""
    source = build.view(node.inputs[0])
    axis = node.attribute("axis", 0) % len(source.axes)
    size = source.shape[axis]
    indices = build.known(node.inputs[1])
    if indices is not None:
        _check_indices(node, indices, size)
        if (picked := _evenly_spaced(indices, size)) is not None:
            start, step = picked
            view = views.sliced(source, axis, start, indices.size, step)
            shape = (*source.shape[:axis], *indices.shape, *source.shape[axis + 1 :])
            build.bind(node.outputs[0], views.divided(view, shape))
            return
    second, output = _row_numbers(build, node, size), build.result()
    picks, places = range(axis, axis + len(second.axes)), range(len(output.axes))
    first = views.permuted(source, (axis, *(place for place in range(len(source.axes)) if place != axis)))
    moved = views.permuted(output, (*picks, *(place for place in places if place not in picks)))
    build.layer(Function.GATHER, [first, second], moved)


def _evenly_spaced(indices: Array, size: int) -> tuple[int, int] | None:
    """Return first index and step if the indices are start, start + step, ... with a step other than 0."""
    flat = np.where(indices < 0, indices + size, indices).reshape(-1)
    steps = np.unique(np.diff(flat))
    if len(steps) > 1 or (len(steps) == 1 and steps[0] == 0):
        return None
    return int(flat[0]), int(steps[0]) if len(steps) else 1


def _check_indices(node: OnnxNode, indices: Array, size: int) -> None:
    wrong = indices[(indices < -size) | (indices >= size)]
    if wrong.size:
        raise unsupported(node, f"Its index {int(wrong.flat[0])} is outside an axis of {size} elements")


def _row_numbers(build: Builder, node: OnnxNode, size: int) -> View:
    """Return the indices as rows; negative constants count from the end."""
    tensor = node.inputs[1]
    constant = build.constant(tensor)
    if constant is None:
        return build.view(tensor)

    def count(array: Array) -> Array:
        _check_indices(node, array, size)
        return np.where(array < 0, array + size, array)

    return build.constant_view(derived(f"{tensor}.of{size}", constant.shape, constant.dtype, (constant,), count))


def _depth_to_space(build: Builder, node: OnnxNode) -> None:
    block = node.attribute("blocksize")
    batch, channels, height, width = build.view(node.inputs[0]).shape
    depth = channels // block**2
    if (node.attribute("mode") or b"DCR") == b"DCR":
        shape, permutation = (batch, block, block, depth, height, width), (0, 3, 4, 1, 5, 2)
    else:
        shape, permutation = (batch, depth, block, block, height, width), (0, 1, 4, 2, 5, 3)
    _shuffled(build, node, shape, permutation)


def _space_to_depth(build: Builder, node: OnnxNode) -> None:
    block = node.attribute("blocksize")
    batch, channels, height, width = build.view(node.inputs[0]).shape
    shape = (batch, channels, height // block, block, width // block, block)
    _shuffled(build, node, shape, (0, 3, 5, 1, 2, 4))


def _shuffled(build: Builder, node: OnnxNode, shape: tuple[int, ...], permutation: tuple[int, ...]) -> None:
    """Bind the output to the input with axes divided, permuted and merged again."""
    name = node.outputs[0]
    divided = build.reshape(build.view(node.inputs[0]), shape, f"{name}.divided", "divided")
    moved = views.permuted(divided, permutation)
    build.bind(name, build.reshape(moved, build.type(name).shape, name))


HANDLERS: Mapping[str, Handler] = {
    "Identity": _same,
    "Dropout": _same,
    "Reshape": _reshape,
    "Flatten": _reshape,
    "Squeeze": _reshape,
    "Unsqueeze": _reshape,
    "Transpose": _transpose,
    "Expand": _expand,
    "Slice": _slice,
    "Split": _split,
    "Concat": _concat,
    "Tile": _tile,
    "Gather": _gather,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
}
