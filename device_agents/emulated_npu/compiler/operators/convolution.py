"""Convolutions: dense, grouped and depthwise, over one to three spatial axes."""

from __future__ import annotations

from collections.abc import Mapping

from device_agents.emulated_npu.command import Function
from device_agents.emulated_npu.compiler.constants import ChannelStep
from device_agents.emulated_npu.compiler.drafts import Builder, Handler
from device_agents.emulated_npu.compiler.layers import Constant
from device_agents.emulated_npu.compiler.operators.windows import read_window
from device_agents.emulated_npu.compiler.source import Node


def bias_step(bias: Constant, factor: float = 1.0) -> ChannelStep:
    """x -> x + factor bias."""
    return ChannelStep((bias,), lambda scale, shift, values: (scale, shift + factor * values))


def convolution(build: Builder, node: Node) -> None:
    """Conv: out = weights * x + bias; depthwise where every channel is a group of its own."""
    source = build.view(node.inputs[0])
    weights = build.parameter(node.inputs[1], "weight")
    groups = node.attribute("group", 1)
    window = read_window(node, weights.shape[2:], source.shape[2:])
    depthwise = groups > 1 and groups == source.shape[1]
    draft = build.layer(
        Function.DEPTHWISE if depthwise else Function.CONVOLVE,
        [source],
        build.result(),
        window.settings(),
        weights=weights,
        groups=groups,
    )
    if node.input(2):
        draft.steps.append(bias_step(build.parameter(node.inputs[2], "bias")))


HANDLERS: Mapping[str, Handler] = {"Conv": convolution}
