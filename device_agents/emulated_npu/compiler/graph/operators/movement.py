"""Operators that only rearrange elements (views if possible, else copies), and tensors of a known shape."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import numpy_helper

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.constants import known
from device_agents.emulated_npu.compiler.graph.drafts import Builder, Handler
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import IN_INFERENCE_MODE, OnnxNode, unsupported
from device_agents.emulated_npu.unit_commands import DataType
from device_agents.emulated_npu.unit_settings import Binary


def _same(build: Builder, node: OnnxNode) -> None:
    """Bind the output of Identity, or of Dropout at inference, to its input; Dropout's mask is true everywhere."""
    if node.input(2) and bool(build.required(node.inputs[2], "mode")):
        raise unsupported(node, "It is in training mode", IN_INFERENCE_MODE)
    source = build.view(node.inputs[0])
    build.bind(node.outputs[0], source)
    for mask in filter(None, node.outputs[1:]):
        build.bind(mask, build.constant_view(known(mask, np.ones(source.shape, bool), DataType.BOOL)))


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
        source = views.sliced(source, place, picked.start if picked else 0, len(picked), step)
    build.bind(node.outputs[0], source)


def _split(build: Builder, node: OnnxNode) -> None:
    source = build.view(node.inputs[0])
    axis = node.attribute("axis", 0) % len(source.axes)
    start = 0
    for output in node.outputs:
        if not output:
            raise unsupported(node, "One of its outputs is missing")
        size = build.type(output).shape[axis]
        if start + size > source.shape[axis]:
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
        if 0 in part.shape:  # nothing writes it: a Split gave all elements to others
            continue
        build.place(part, views.sliced(output, axis, start, part.shape[axis]))
        start += part.shape[axis]


def _tile(build: Builder, node: OnnxNode) -> None:
    """Bind a Tile to a view whose axes are each preceded by a repeating axis, merged by copies."""
    source = build.view(node.inputs[0])
    output = build.type(node.outputs[0]).shape
    repeats = {axis: size // own for axis, (size, own) in enumerate(zip(output, source.shape, strict=True))}
    build.bind(node.outputs[0], build.repeated(source, repeats, 0, output, node.outputs[0]))


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
    by_depth = (node.attribute("mode") or b"DCR") == b"DCR"
    _shuffled(build, node, shape, (0, 3, 5, 1, 2, 4) if by_depth else (0, 1, 3, 5, 2, 4))


def _shuffled(build: Builder, node: OnnxNode, shape: tuple[int, ...], permutation: tuple[int, ...]) -> None:
    """Bind the output to the input with axes divided, permuted and merged again."""
    name = node.outputs[0]
    divided = build.reshape(build.view(node.inputs[0]), shape, f"{name}.divided", "divided")
    moved = views.permuted(divided, permutation)
    build.bind(name, build.reshape(moved, build.type(name).shape, name))


def _constant_of_shape(build: Builder, node: OnnxNode) -> None:
    """Bind a tensor of one value; the model states its shape, which the network would compute."""
    kind = build.type(node.outputs[0])
    value = node.attribute("value")
    array = np.zeros(()) if value is None else numpy_helper.to_array(value).reshape(())
    build.bind(node.outputs[0], build.fixed("filled", np.full(kind.shape, array), kind.dtype))


def _range(build: Builder, node: OnnxNode) -> None:
    """Add a Range of stated length: start + place * delta."""
    output = build.result()
    dtype = build.dtype(output)
    start, delta = (views.divided(build.view(node.inputs[place]), (1,)) for place in (0, 2))
    places = build.fixed("places", np.arange(output.shape[0]), dtype)
    build.binary(Binary.ADD, build.combined("scaled", Binary.MULTIPLY, places, delta), start, output)


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
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
}
