"""Networks of inverted residuals: MobileNetV2 and EfficientNet-B0."""

from __future__ import annotations

from typing import NamedTuple

from onnx import ModelProto

from harness.network.zoo.graph_builder import Conv2d, GraphBuilder

SQUEEZE_RATIO = 4  # of the channels that enter the block


class Stage(NamedTuple):
    """A row of the table in the paper: `repeats` blocks, the first of them with `stride`."""

    expansion: int
    kernel: int
    stride: int
    channels: int
    repeats: int


MOBILENETV2_STAGES = (
    Stage(1, 3, 1, 16, 1),
    Stage(6, 3, 2, 24, 2),
    Stage(6, 3, 2, 32, 3),
    Stage(6, 3, 2, 64, 4),
    Stage(6, 3, 1, 96, 3),
    Stage(6, 3, 2, 160, 3),
    Stage(6, 3, 1, 320, 1),
)
EFFICIENTNET_B0_STAGES = (
    Stage(1, 3, 1, 16, 1),
    Stage(6, 3, 2, 24, 2),
    Stage(6, 5, 2, 40, 2),
    Stage(6, 3, 2, 80, 3),
    Stage(6, 5, 1, 112, 3),
    Stage(6, 5, 2, 192, 4),
    Stage(6, 3, 1, 320, 1),
)


def build_mobilenetv2(seed: int = 0) -> ModelProto:
    """Build MobileNetV2 1.0 at 224x224, 1000 classes.

    Sandler et al. 2018, "MobileNetV2: Inverted Residuals and Linear Bottlenecks" (arXiv 1801.04381).
    Published: 3,504,872 parameters (torchvision; the paper says 3.4 M), 300 M multiply-adds.
    """
    graph = GraphBuilder("mobilenetv2", seed)
    x = graph.conv_relu6("features.0", _image(graph), Conv2d(3, 32, kernel=3, stride=2))
    channels, index = 32, 1
    for stage in MOBILENETV2_STAGES:
        for repeat in range(stage.repeats):
            stride = stage.stride if repeat == 0 else 1
            x = _bottleneck(graph, f"features.{index}", x, channels, stage._replace(stride=stride))
            channels, index = stage.channels, index + 1
    x = graph.conv_relu6(f"features.{index}", x, Conv2d(channels, 1280))
    return _classified(graph, x)


def build_efficientnet_b0(seed: int = 0) -> ModelProto:
    """Build EfficientNet-B0 at 224x224, 1000 classes: squeeze-and-excitation in each block, and swish.

    Tan and Le 2019, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks" (arXiv 1905.11946).
    Published: 5,288,548 parameters (torchvision; the paper says 5.3 M), 0.39 G multiply-adds.
    """
    graph = GraphBuilder("efficientnet_b0", seed)
    x = graph.conv_swish("features.0", _image(graph), Conv2d(3, 32, kernel=3, stride=2))
    channels = 32
    for number, stage in enumerate(EFFICIENTNET_B0_STAGES, start=1):
        for repeat in range(stage.repeats):
            stride = stage.stride if repeat == 0 else 1
            x = _mbconv(graph, f"features.{number}.{repeat}", x, channels, stage._replace(stride=stride))
            channels = stage.channels
    x = graph.conv_swish("features.8", x, Conv2d(channels, 1280))
    return _classified(graph, x)


def _image(graph: GraphBuilder) -> str:
    return graph.input("input", (1, 3, 224, 224))


def _classified(graph: GraphBuilder, x: str) -> ModelProto:
    x = graph.gemm("classifier", graph.global_pool_flatten(x), (1280, 1000))
    graph.output("logits", x, (1, 1000))
    return graph.model()


def _depthwise(hidden: int, block: Stage) -> Conv2d:
    return Conv2d(hidden, hidden, kernel=block.kernel, stride=block.stride, groups=hidden)


def _bottleneck(graph: GraphBuilder, name: str, x: str, inside: int, block: Stage) -> str:
    hidden = inside * block.expansion
    y = x
    if block.expansion != 1:
        y = graph.conv_relu6(f"{name}.expand", y, Conv2d(inside, hidden))
    y = graph.conv_relu6(f"{name}.depthwise", y, _depthwise(hidden, block))
    y = graph.conv_bn(f"{name}.project", y, Conv2d(hidden, block.channels))
    return graph.node("Add", f"{name}.add", x, y) if _is_residual(inside, block) else y


def _mbconv(graph: GraphBuilder, name: str, x: str, inside: int, block: Stage) -> str:
    hidden = inside * block.expansion
    y = x
    if block.expansion != 1:
        y = graph.conv_swish(f"{name}.expand", y, Conv2d(inside, hidden))
    y = graph.conv_swish(f"{name}.depthwise", y, _depthwise(hidden, block))
    y = _squeeze_excite(graph, f"{name}.se", y, hidden, inside // SQUEEZE_RATIO)
    y = graph.conv_bn(f"{name}.project", y, Conv2d(hidden, block.channels))
    return graph.node("Add", f"{name}.add", y, x) if _is_residual(inside, block) else y


def _is_residual(inside: int, block: Stage) -> bool:
    return block.stride == 1 and inside == block.channels


def _squeeze_excite(graph: GraphBuilder, name: str, x: str, channels: int, squeezed: int) -> str:
    y = graph.node("GlobalAveragePool", f"{name}.avgpool", x)
    y = graph.conv(f"{name}.reduce", y, Conv2d(channels, squeezed, bias=True))
    y = graph.conv(f"{name}.expand", graph.swish(f"{name}.swish", y), Conv2d(squeezed, channels, bias=True))
    return graph.node("Mul", f"{name}.mul", graph.node("Sigmoid", f"{name}.sigmoid", y), x)
