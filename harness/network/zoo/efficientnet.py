"""EfficientNet-B0: inverted residuals with squeeze-and-excitation and swish."""

from __future__ import annotations

from typing import NamedTuple

from onnx import ModelProto

from harness.network.zoo.graph_builder import GraphBuilder

SQUEEZE_RATIO = 4  # of the channels that enter the block


class Stage(NamedTuple):
    """A row of table 1 of the paper: `repeats` blocks, the first of them with `stride`."""

    expansion: int
    kernel: int
    stride: int
    channels: int
    repeats: int


STAGES = (
    Stage(1, 3, 1, 16, 1),
    Stage(6, 3, 2, 24, 2),
    Stage(6, 5, 2, 40, 2),
    Stage(6, 3, 2, 80, 3),
    Stage(6, 5, 1, 112, 3),
    Stage(6, 5, 2, 192, 4),
    Stage(6, 3, 1, 320, 1),
)


def build_efficientnet_b0(seed: int = 0) -> ModelProto:
    """Build EfficientNet-B0 at 224x224, 1000 classes.

    Tan and Le 2019, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks" (arXiv 1905.11946).
    Published: 5,288,548 parameters (torchvision; the paper says 5.3 M), 0.39 G multiply-adds.
    """
    graph = GraphBuilder("efficientnet_b0", seed)
    x = graph.input("input", (1, 3, 224, 224))
    x = _conv_swish(graph, "features.0", x, (3, 32), kernel=3, stride=2)
    channels = 32
    for number, stage in enumerate(STAGES, start=1):
        for repeat in range(stage.repeats):
            block = stage if repeat == 0 else stage._replace(stride=1)
            x = _mbconv(graph, f"features.{number}.{repeat}", x, channels, block)
            channels = stage.channels
    x = _conv_swish(graph, "features.8", x, (channels, 1280))
    x = graph.gemm("classifier", graph.global_pool_flatten(x), (1280, 1000))
    graph.output("logits", x, (1, 1000))
    return graph.model()


def _conv_swish(
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
    return graph.swish(f"{name}.swish", x)


def _mbconv(graph: GraphBuilder, name: str, x: str, inside: int, block: Stage) -> str:
    hidden = inside * block.expansion
    y = x
    if block.expansion != 1:
        y = _conv_swish(graph, f"{name}.expand", y, (inside, hidden))
    y = _conv_swish(
        graph, f"{name}.depthwise", y, (hidden, hidden), kernel=block.kernel, stride=block.stride, groups=hidden
    )
    y = _squeeze_excite(graph, f"{name}.se", y, hidden, inside // SQUEEZE_RATIO)
    y = graph.conv_bn(f"{name}.project", y, (hidden, block.channels))
    if block.stride == 1 and inside == block.channels:
        y = graph.node("Add", f"{name}.add", y, x)
    return y


def _squeeze_excite(graph: GraphBuilder, name: str, x: str, channels: int, squeezed: int) -> str:
    y = graph.node("GlobalAveragePool", f"{name}.avgpool", x)
    y = graph.conv(f"{name}.reduce", y, (channels, squeezed), bias=True)
    y = graph.conv(f"{name}.expand", graph.swish(f"{name}.swish", y), (squeezed, channels), bias=True)
    return graph.node("Mul", f"{name}.mul", graph.node("Sigmoid", f"{name}.sigmoid", y), x)
