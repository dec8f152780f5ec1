"""Transposed convolutions and Col2Im, over one to three spatial axes.

The matrix unit has no transposed convolution. Outputs at distances of the stride read the same inputs with other taps,
so the taps are divided into one kernel for each phase, and a copy brings the phases together, as DepthToSpace does.
Where the channels of a phase fill the columns of the unit, each phase is a convolution of its own taps. Fewer channels
share the columns: one convolution computes all phases as channels, and taps that a phase lacks are zeros. Col2Im is a
transposed convolution by weights of zeros and ones, and so is the second half of a transposed convolution whose weights
the network computes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.constants import ChannelStep, derived, known
from device_agents.emulated_npu.compiler.graph.drafts import Builder, Draft, Handler
from device_agents.emulated_npu.compiler.graph.hardware_graph import LazyConstant, QuantisedConstant, View
from device_agents.emulated_npu.compiler.graph.operators.spatial.padding import pad_by_zeros
from device_agents.emulated_npu.compiler.graph.operators.spatial.transposed_axes import (
    TransposedAxis,
    phases_apart,
    window_of,
)
from device_agents.emulated_npu.compiler.graph.operators.spatial.window_attributes import Window, read_window
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import OnnxNode, unsupported
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import MAX_RANK, Function
from device_agents.emulated_npu.unit_settings import Binary

_SHAPES = ((1, "image_shape"), (2, "block_shape"))
"""The inputs of Col2Im that must be constant."""

_ZERO = np.zeros(1, np.int8)


def transposed_convolution(build: Builder, node: OnnxNode) -> None:
    """Add a ConvTranspose; its weights and its bias are constant, or the network computes them."""
    source, groups = build.view(node.inputs[0]), node.attribute("group", 1)
    shape = build.type(node.inputs[1]).shape
    _check_shapes(node, source, shape, groups)
    weights = build.constant(node.inputs[1])
    if weights is None:
        columns = _columns(build, node, source, shape)
        _add_columns(build, node, columns, shape[2:])
    else:
        _transposed(build, node, source, weights)


def col2im(build: Builder, node: OnnxNode) -> None:
    """Add a Col2Im of constant shapes: it adds the columns (N, C * block, blocks) where they overlap."""
    source = build.view(node.inputs[0])
    image, block = (build.required(node.inputs[place], what).reshape(-1).tolist() for place, what in _SHAPES)
    pads, count = node.attribute("pads") or [0] * 2 * len(image), len(image)
    strides, dilations = (node.attribute(name) or [1] * count for name in ("strides", "dilations"))
    rows = zip(image, block, strides, dilations, pads[:count], pads[count:], strict=True)
    counts = [
        (size + first + last - (taps - 1) * apart - 1) // step + 1 for size, taps, step, apart, first, last in rows
    ]
    if len(source.axes) != 3 or source.shape[1] % math.prod(block) or min(counts) < 1:
        raise unsupported(node, f"An input of shape {list(source.shape)} does not fit blocks of {block} in {image}")
    columns = build.divided(source, (*source.shape[:2], *counts))
    attributes = {"pads": pads, "strides": strides, "dilations": dilations}
    _add_columns(build, replace(node, inputs=(), attributes=attributes), columns, block)


def _columns(build: Builder, node: OnnxNode, source: View, shape: Sequence[int]) -> View:
    """Return what each input adds to each output: the product of the map by computed weights, as columns of Col2Im."""
    groups, spatial = node.attribute("group", 1), source.shape[2:]
    depth, width = shape[0] // groups, math.prod(shape[1:])
    columns = build.temporary("columns", (source.shape[0], groups * width, *spatial), build.dtype(source))
    last = (0, 1, *range(3, 3 + len(spatial)), 2)
    first, output = (
        views.permuted(views.divided(view, (view.shape[0], groups, size, *spatial)), last)
        for view, size in ((source, depth), (columns, width))
    )
    name = f"{node.outputs[0]}.weights"
    weights = build.reshape(build.view(node.inputs[1]), (groups, depth, width), name, "weights")
    for _ in spatial[:-1]:
        weights = views.with_axis(weights, 1)
    second = views.expanded(weights, (*first.shape[:-2], depth, width))
    build.layer(Function.CONVOLVE, [first, second], output, matrix=True)
    return columns


def _add_columns(build: Builder, node: OnnxNode, columns: View, kernel: Sequence[int]) -> None:
    """Add a transposed convolution by which every column (N, M * kernel, ...) reaches its tap of its channel."""
    taps = math.prod(kernel)
    channels = columns.shape[1] // taps
    ones = np.tile(np.eye(taps).reshape(taps, 1, *kernel), (channels, 1, *[1] * len(kernel)))
    weights = known(f"{node.outputs[0]}.taps", ones, build.dtype(columns))
    _transposed(build, replace(node, attributes={**node.attributes, "group": channels}), columns, weights)


def _transposed(build: Builder, node: OnnxNode, source: View, weights: LazyConstant) -> None:
    """Add the convolutions that compute the phases of the stride, and a copy that joins them."""
    groups = node.attribute("group", 1)
    axes = _axes(build, node, source, weights)
    phases, batch, made = math.prod(axis.stride for axis in axes), source.shape[0], weights.shape[1]
    if phases == 1:
        _convolve(build, node, source, weights, axes, build.result())
        return
    apart = phases_apart(axes, 1 if _is_depthwise(source, groups) else build.columns, made)
    counts = [axis.groups for axis in (axes if apart is None else apart[0].axes)]
    channels = made * groups
    computed = build.temporary("phases", (batch, phases * channels, *counts), build.dtype(source))
    if apart is None:
        _convolve(build, node, source, weights, axes, computed)
        _join(build, node, computed, groups, axes)
        return
    for place, phase in enumerate(apart):
        part = views.sliced(computed, 1, place * channels, channels)
        _convolve(build, node, source, phase.taps_of(weights), phase.axes, part)
    _join(build, node, computed, 1, [replace(axis, pad=0) for axis in axes])


def _is_depthwise(source: View, groups: int) -> bool:
    return groups > 1 and groups == source.shape[1]


def _convolve(
    build: Builder, node: OnnxNode, source: View, weights: LazyConstant, axes: Sequence[TransposedAxis], output: View
) -> None:
    """Add a convolution that computes all phases of some axes as channels of its output."""
    groups, phases = node.attribute("group", 1), math.prod(axis.stride for axis in axes)
    shape = (groups, phases, weights.shape[1])
    read, window = _read(build, source, axes)
    function = Function.DEPTHWISE if _is_depthwise(source, groups) else Function.CONVOLVE
    kernels = _kernels(weights, groups, axes)
    draft = build.layer(function, [read], output, window.settings(), weights=kernels, groups=groups)
    bias = build.constant(node.input(2))
    if bias is not None:

        def add(scale: Array, shift: Array, values: Array) -> tuple[Array, Array]:
            return scale, shift + np.broadcast_to(values.reshape(groups, 1, -1), shape).reshape(-1)

        draft.steps.append(ChannelStep((bias,), add))
    elif node.input(2):
        _add_bias(build, node, draft, shape)


def _add_bias(build: Builder, node: OnnxNode, draft: Draft, shape: tuple[int, int, int]) -> None:
    """Add a computed bias to the channels that a draft writes: (groups, phases, channels of a group)."""
    output = draft.layer.output
    unbiased = build.temporary("unbiased", output.shape, build.dtype(output))
    draft.layer = replace(draft.layer, output=unbiased)
    groups, phases, made = shape
    bias = build.divided(build.view(node.inputs[2]), (groups, 1, made))
    count = math.prod(shape)
    flat = build.reshape(views.expanded(bias, (groups, phases, made)), (count,), f"{node.outputs[0]}.bias", "bias")
    build.binary(Binary.ADD, unbiased, views.divided(flat, (count, *[1] * (len(output.axes) - 2))), output)


def _axes(build: Builder, node: OnnxNode, source: View, weights: LazyConstant) -> tuple[TransposedAxis, ...]:
    """Return the spatial axes; raises UnsupportedOperator for attributes that no output can have."""
    sizes, outputs, kernel = source.shape[2:], build.type(node.outputs[0]).shape[2:], weights.shape[2:]
    window = read_window(node, kernel, sizes)
    automatic = (node.attribute("auto_pad") or b"NOTSET").decode()
    before: Sequence[int] = window.before
    if node.attribute("output_shape") or automatic.startswith("SAME"):
        more = node.attribute("output_padding", [0] * len(sizes))
        rows = zip(sizes, window.stride, window.reach, outputs, more, strict=True)
        totals = [max(0, stride * (size - 1) + extra + reach - out) for size, stride, reach, out, extra in rows]
        before = [total // 2 if automatic == "SAME_UPPER" else total - total // 2 for total in totals]
    columns = (sizes, outputs, kernel, window.stride, window.dilation, before)
    found = tuple(TransposedAxis(*column) for column in zip(*columns, strict=True))
    if any(axis.outputs < 1 or axis.start >= axis.inputs for axis in found):
        raise unsupported(node, "Its padding leaves out all that its input contributes to")
    return found


def _read(build: Builder, source: View, axes: Sequence[TransposedAxis]) -> tuple[View, Window]:
    """Return the map from the first input that is read, and the window of all phases over it."""
    for place, axis in enumerate(axes, 2):
        if axis.start > 0:
            source = views.sliced(source, place, axis.start, axis.inputs - axis.start)
    window = window_of(axes)
    if window.lies_outside(source.shape[2:], [axis.groups for axis in axes]):
        return pad_by_zeros(build, source, window.before, window.after), window.without_padding()
    return source, window


def _kernels(weights: LazyConstant, groups: int, axes: Sequence[TransposedAxis]) -> LazyConstant:
    """Return weights (C, M / groups, kernel...) as (groups * phases * M / groups, C / groups, taps...)."""
    phases = math.prod(axis.stride for axis in axes)
    read, made = weights.shape[0] // groups, weights.shape[1]
    count = len(axes)

    def divided(array: Array, absent: Array = _ZERO) -> Array:
        """Return the taps by phases; those that are absent have the value `absent`, of all or of each channel."""
        spread = np.empty((*array.shape[:2], *(axis.taps * axis.stride for axis in axes)), array.dtype)
        spread[...] = absent.reshape(-1, *[1] * count)
        places = tuple(slice(0, axis.kernel * axis.dilation, axis.dilation) for axis in axes)
        spread[(slice(None), slice(None), *places)] = array
        shape = [size for axis in axes for size in (axis.taps, axis.stride)]
        parts = spread.reshape(groups, read, made, *shape)  # tap q % stride + stride * j at (j, q % stride)
        taps, own = [3 + 2 * place for place in range(count)], [4 + 2 * place for place in range(count)]
        return np.flip(parts.transpose(0, *own, 2, 1, *taps), axis=tuple(range(-count, 0)))

    name = f"{weights.name}.phases{'x'.join(str(axis.stride) for axis in axes)}/{groups}"
    name += "".join(f",{axis.dilation}" for axis in axes)
    shape = (groups * phases * made, read, *(axis.taps for axis in axes))
    found = derived(name, shape, weights.dtype, (weights,), divided)
    code = weights.quantised
    if code is None or (code.axis is not None and (groups, code.axis) != (1, 1)):
        return found
    zero = [] if code.zero_point is None else [code.zero_point]
    integers = derived(f"{name}.integers", shape, code.integers.dtype, (code.integers, *zero), divided)
    several = code.scale, *zero
    if code.axis is not None:
        several = tuple(_repeated(each, phases) for each in several)
    axis = None if code.axis is None else 0
    return replace(found, quantised=QuantisedConstant(integers, several[0], several[1] if zero else None, axis))


def _repeated(constant: LazyConstant, times: int) -> LazyConstant:
    """Return a vector several times, one after the other."""
    name, size = f"{constant.name}.x{times}", math.prod(constant.shape)
    return derived(name, (times * size,), constant.dtype, (constant,), lambda array: np.tile(array.reshape(-1), times))


def _join(build: Builder, node: OnnxNode, computed: View, groups: int, axes: Sequence[TransposedAxis]) -> None:
    """Copy the phases to their places, and bind the output to the part of them that the padding leaves."""
    phases, count = _in_one_copy(build, computed, groups, axes), len(axes)
    pairs = [place for at in range(count) for place in (3 + count + at, 2 + at)]
    phases = views.permuted(phases, (0, 1, 2 + count, *pairs))
    sizes = [axis.groups * axis.stride for axis in axes]
    cuts = [axis.pad - axis.first * axis.stride for axis in axes]
    whole = not any(cuts) and sizes == [axis.outputs for axis in axes]
    batch, _, made = phases.shape[:3]
    spaced = (
        build.result() if whole else build.temporary("spaced", (batch, groups * made, *sizes), build.dtype(computed))
    )
    build.copy(phases, views.divided(spaced, phases.shape))
    if not whole:
        for place, (axis, cut) in enumerate(zip(axes, cuts, strict=True), 2):
            spaced = views.sliced(spaced, place, cut, axis.outputs)
        build.bind(node.outputs[0], spaced)


def _in_one_copy(build: Builder, computed: View, groups: int, axes: Sequence[TransposedAxis]) -> View:
    """Return the phases as (batch, groups, *strides, channels, *groups of positions), such that one copy joins them.

    Where a command has too few axes for that, copies of whole tensors join the phases of the last axes before, one axis
    after the other; the stride of such an axis is then 1.
    """
    count, batch = len(axes), computed.shape[0]
    strides, counts = [axis.stride for axis in axes], [axis.groups for axis in axes]
    made = computed.shape[1] // groups // math.prod(strides)
    for place in reversed(range(count)):
        shape = (batch, groups, *strides, made, *counts)
        if sum(size > 1 for size in shape) <= MAX_RANK:
            break
        order = [at for at in range(len(shape)) if at != 2 + place]
        order.insert(order.index(3 + count + place) + 1, 2 + place)
        phases = views.permuted(views.divided(computed, shape), order)
        rows, width = made * math.prod(counts[:place]), strides[place] * math.prod(counts[place:])
        whole_shape = (math.prod(shape) // (rows * width), rows, width)
        computed = build.temporary(f"joined{place}", whole_shape, build.dtype(computed))
        joined = views.divided(computed, phases.shape)
        for index in range(batch):  # an axis more than a command has, and one that nothing interleaves
            build.copy(*(views.sliced(view, 0, index, 1) for view in (phases, joined)))
        counts[place], strides[place] = counts[place] * strides[place], 1
    return views.divided(computed, (batch, groups, *strides, made, *counts))


def _check_shapes(node: OnnxNode, source: View, weights: Sequence[int], groups: int) -> None:
    """Raise UnsupportedOperator if groups, channels and kernel contradict each other."""
    if groups < 1:
        raise unsupported(node, f"Its group is {groups}")
    if len(weights) != len(source.axes) or len(source.axes) < 3:
        raise unsupported(node, f"Its weights have {len(weights)} axes and its input {len(source.axes)}")
    channels = source.shape[1]
    if weights[0] != channels or channels % groups:
        raise unsupported(node, f"Weights of shape {list(weights)} do not fit {channels} channels in {groups} groups")
    kernel = node.attribute("kernel_shape")
    if kernel is not None and list(kernel) != list(weights[2:]):
        raise unsupported(node, f"Its kernel_shape is {list(kernel)}, and that of its weights {list(weights[2:])}")


HANDLERS: Mapping[str, Handler] = {"ConvTranspose": transposed_convolution, "Col2Im": col2im}
