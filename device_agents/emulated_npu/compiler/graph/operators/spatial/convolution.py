"""Convolutions: dense, grouped and depthwise, over one to three spatial axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.constants import addition_step
from device_agents.emulated_npu.compiler.graph.drafts import Builder, Handler
from device_agents.emulated_npu.compiler.graph.hardware_graph import View
from device_agents.emulated_npu.compiler.graph.operators.spatial.padding import pad_by_zeros
from device_agents.emulated_npu.compiler.graph.operators.spatial.window_attributes import Window, read_window
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import OnnxNode, unsupported
from device_agents.emulated_npu.unit_commands import Function
from device_agents.emulated_npu.unit_settings import Binary


def convolution(build: Builder, node: OnnxNode) -> None:
    """Add a Conv: out = weights * x + bias; it is depthwise if every channel is a separate group."""
    source = build.view(node.inputs[0])
    groups, shape = node.attribute("group", 1), build.type(node.inputs[1]).shape
    _check_shapes(build, node, source, shape)
    window = read_window(node, shape[2:], source.shape[2:])
    if any(build.constant(name) is None for name in node.inputs[1:3] if name):
        _computed_weights(build, node, source, window)
        return
    weights = build.parameter(node.inputs[1], "weight")
    if window.lies_outside(source.shape[2:], build.type(node.outputs[0]).shape[2:]):
        # A tile of such windows would read no input: the padding becomes part of the map.
        source, window = pad_by_zeros(build, source, window.before, window.after), window.without_padding()
    function = Function.DEPTHWISE if groups > 1 and groups == source.shape[1] else Function.CONVOLVE
    draft = build.layer(function, [source], build.result(), window.settings(), weights=weights, groups=groups)
    if node.input(2):
        bias = build.parameter(node.inputs[2], "bias")
        draft.steps.append(addition_step(bias))


def _computed_weights(build: Builder, node: OnnxNode, source: View, window: Window) -> None:
    """Add a Conv whose weights or bias the network computes: a product of its windows, copied to rows, by the weights.

    The matrix unit takes weights of a convolution only as they are packed before the network runs.
    """
    groups, result = node.attribute("group", 1), build.result()
    batch, counts = result.shape[0], result.shape[2:]
    outputs, inputs = result.shape[1] // groups, source.shape[1] // groups
    taps = inputs * math.prod(window.kernel)
    if any(window.before) or any(window.after):
        source = pad_by_zeros(build, source, window.before, window.after)
    rows = build.temporary("rows", (batch, groups, math.prod(counts), taps), build.dtype(source))
    build.copy(
        _windows(source, groups, window, counts), views.divided(rows, _window_shape(source, groups, window, counts))
    )
    weights = build.reshape(
        build.view(node.inputs[1]), (groups, outputs, taps), f"{node.outputs[0]}.weights", "weights"
    )
    second = views.expanded(views.permuted(weights, (0, 2, 1)), (batch, groups, taps, outputs))
    products = build.temporary("products", (batch, groups, math.prod(counts), outputs), build.dtype(source))
    build.layer(Function.CONVOLVE, [rows, second], products, matrix=True)
    spatial = range(2, 2 + len(counts))
    found = views.permuted(
        views.divided(products, (batch, groups, *counts, outputs)), (0, 1, 2 + len(counts), *spatial)
    )
    target = views.divided(result, (batch, groups, outputs, *counts))
    if node.input(2):
        bias = build.divided(build.view(node.inputs[2]), (groups, outputs, *[1] * len(counts)))
        build.binary(Binary.ADD, found, bias, target)
    else:
        build.copy(found, target)


def _window_shape(source: View, groups: int, window: Window, counts: Sequence[int]) -> tuple[int, ...]:
    return (source.shape[0], groups, *counts, source.shape[1] // groups, *window.kernel)


def _windows(source: View, groups: int, window: Window, counts: Sequence[int]) -> View:
    """Return all windows of a padded map: (batch, groups, windows along each axis, channels, kernel)."""
    divided = views.divided(source, (source.shape[0], groups, source.shape[1] // groups, *source.shape[2:]))
    batch, group, channel, *spatial = divided.axes
    starts = [
        replace(axis, size=count, step=axis.step * stride)
        for axis, count, stride in zip(spatial, counts, window.stride, strict=True)
    ]
    taps = [
        replace(axis, size=size, step=axis.step * step)
        for axis, size, step in zip(spatial, window.kernel, window.dilation, strict=True)
    ]
    return replace(divided, axes=(batch, group, *starts, channel, *taps))


def _check_shapes(build: Builder, node: OnnxNode, source: View, weights: Sequence[int]) -> None:
    """Raise UnsupportedOperator if groups, channels, kernel and bias contradict each other."""
    groups, channels = node.attribute("group", 1), source.shape[1] if len(source.axes) > 1 else 0
    if groups < 1:
        raise unsupported(node, f"Its group is {groups}")
    shape = list(weights)
    if len(shape) != len(source.axes):
        raise unsupported(node, f"Its weights have {len(shape)} axes and its input {len(source.axes)}")
    if shape[1] * groups != channels or shape[0] % groups:
        raise unsupported(node, f"Weights of shape {shape} do not fit {channels} channels in {groups} groups")
    kernel = node.attribute("kernel_shape")
    if kernel is not None and list(kernel) != shape[2:]:
        raise unsupported(node, f"Its kernel_shape is {list(kernel)}, and that of its weights {shape[2:]}")
    if node.input(2) and build.type(node.input(2)).shape != (shape[0],):
        raise unsupported(node, f"Its bias does not have {shape[0]} elements")


HANDLERS: Mapping[str, Handler] = {"Conv": convolution}
