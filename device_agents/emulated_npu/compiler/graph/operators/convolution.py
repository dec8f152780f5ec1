"""Convolutions: dense, grouped and depthwise, over one to three spatial axes."""

from __future__ import annotations

from collections.abc import Mapping

from device_agents.emulated_npu.compiler.graph.constants import ChannelStep
from device_agents.emulated_npu.compiler.graph.drafts import Builder, Handler
from device_agents.emulated_npu.compiler.graph.hardware_graph import LazyConstant, View
from device_agents.emulated_npu.compiler.graph.operators.padding import pad_by_zeros
from device_agents.emulated_npu.compiler.graph.operators.window_attributes import read_window
from device_agents.emulated_npu.compiler.graph.parsed_model import OnnxNode, unsupported
from device_agents.emulated_npu.unit_commands import Function


def convolution(build: Builder, node: OnnxNode) -> None:
    """Add a Conv: out = weights * x + bias; it is depthwise if every channel is a group of its own."""
    source = build.view(node.inputs[0])
    weights = build.parameter(node.inputs[1], "weight")
    groups = node.attribute("group", 1)
    _check_shapes(build, node, source, weights)
    window = read_window(node, weights.shape[2:], source.shape[2:])
    if window.lies_outside(source.shape[2:], build.type(node.outputs[0]).shape[2:]):
        # A tile of such windows would read no input: the padding becomes part of the map.
        source, window = pad_by_zeros(build, source, window.before, window.after), window.without_padding()
    function = Function.DEPTHWISE if groups > 1 and groups == source.shape[1] else Function.CONVOLVE
    draft = build.layer(function, [source], build.result(), window.settings(), weights=weights, groups=groups)
    if node.input(2):
        bias = build.parameter(node.inputs[2], "bias")
        draft.steps.append(ChannelStep((bias,), lambda scale, shift, values: (scale, shift + values)))


def _check_shapes(build: Builder, node: OnnxNode, source: View, weights: LazyConstant) -> None:
    """Raise UnsupportedOperator if groups, channels, kernel and bias contradict each other."""
    groups, channels = node.attribute("group", 1), source.shape[1] if len(source.axes) > 1 else 0
    if groups < 1:
        raise unsupported(node, f"Its group is {groups}")
    if len(weights.shape) != len(source.axes):
        raise unsupported(node, f"Its weights have {len(weights.shape)} axes and its input {len(source.axes)}")
    shape = list(weights.shape)
    if shape[1] * groups != channels or shape[0] % groups:
        raise unsupported(node, f"Weights of shape {shape} do not fit {channels} channels in {groups} groups")
    kernel = node.attribute("kernel_shape")
    if kernel is not None and list(kernel) != shape[2:]:
        raise unsupported(node, f"Its kernel_shape is {list(kernel)}, and that of its weights {shape[2:]}")
    if node.input(2) and build.type(node.input(2)).shape != weights.shape[:1]:
        raise unsupported(node, f"Its bias does not have {weights.shape[0]} elements")


HANDLERS: Mapping[str, Handler] = {"Conv": convolution}
