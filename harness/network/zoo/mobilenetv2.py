"""MobileNetV2: inverted residuals with linear bottlenecks."""

from __future__ import annotations

from typing import NamedTuple

from onnx import ModelProto

from harness.network.zoo.graph_builder import GraphBuilder


class Stage(NamedTuple):
    """A row of table 2 of the paper: `repeats` blocks, the first of them with `stride`."""

    expansion: int
    channels: int
    repeats: int
    stride: int


STAGES = (
    Stage(1, 16, 1, 1),
    Stage(6, 24, 2, 2),
    Stage(6, 32, 3, 2),
    Stage(6, 64, 4, 2),
    Stage(6, 96, 3, 1),
    Stage(6, 160, 3, 2),
    Stage(6, 320, 1, 1),
)


def build_mobilenetv2(seed: int = 0) -> ModelProto:
    """Build MobileNetV2 1.0 at 224x224, 1000 classes.

    Sandler et al. 2018, "MobileNetV2: Inverted Residuals and Linear Bottlenecks" (arXiv 1801.04381).
    Published: 3,504,872 parameters (torchvision; the paper says 3.4 M), 300 M multiply-adds.
    """
    graph = GraphBuilder("mobilenetv2", seed)
    x = graph.input("input", (1, 3, 224, 224))
    x = _conv_relu6(graph, "features.0", x, (3, 32), kernel=3, stride=2)
    channels, index = 32, 1
    for stage in STAGES:
        for repeat in range(stage.repeats):
            stride = stage.stride if repeat == 0 else 1
            x = _inverted_residual(graph, f"features.{index}", x, (channels, stage.channels), stage.expansion, stride)
            channels, index = stage.channels, index + 1
    x = _conv_relu6(graph, f"features.{index}", x, (channels, 1280))
    x = graph.gemm("classifier", graph.global_pool_flatten(x), (1280, 1000))
    graph.output("logits", x, (1, 1000))
    return graph.model()


def _conv_relu6(
    graph: GraphBuilder,
    name: str,
    x: str,
    channels: tuple[int, int],
    *,
    kernel: int = 1,
    stride: int = 1,
    groups: int = 1,
) -> str:
    x = graph.conv_bn(name, x, channels, kernel=kernel, stride=stride, groups=groups)
    return graph.relu6(f"{name}.relu6", x)


def _inverted_residual(
    graph: GraphBuilder, name: str, x: str, channels: tuple[int, int], expansion: int, stride: int
) -> str:
    inside, outside = channels
    hidden = inside * expansion
    y = x
    if expansion != 1:
        y = _conv_relu6(graph, f"{name}.expand", y, (inside, hidden))
    y = _conv_relu6(graph, f"{name}.depthwise", y, (hidden, hidden), kernel=3, stride=stride, groups=hidden)
    y = graph.conv_bn(f"{name}.project", y, (hidden, outside))
    if stride == 1 and inside == outside:
        y = graph.node("Add", f"{name}.add", x, y)
    return y
