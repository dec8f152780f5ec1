"""Convolutional networks: ResNet-18, MobileNetV2, EfficientNet-B0 and DS-CNN."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from onnx import ModelProto

from harness.network.zoo.graph_builder import Activation, Convolution, GraphBuilder

RESNET_CHANNELS = (64, 128, 256, 512)
DSCNN_CHANNELS, DSCNN_BLOCKS, DSCNN_CLASSES = 64, 4, 12
SQUEEZE_RATIO = 4  # of the channels that enter the block


class Stage(NamedTuple):
    """A row of the table of inverted residuals in the paper: `repeats` blocks, the first of them with `stride`."""

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


def build_resnet18(seed: int) -> ModelProto:
    """Build ResNet-18 at 224x224, 1000 classes.

    He et al. 2015, "Deep Residual Learning for Image Recognition" (arXiv 1512.03385).
    Published: 11,689,512 parameters (torchvision), 1.8 G multiply-adds.
    """
    graph = GraphBuilder("resnet18", seed)
    x = graph.conv_bn("conv1", _image(graph), Convolution(3, 64, kernel=7, stride=2), "relu")
    x = graph.node(
        "MaxPool", "maxpool", x, ceil_mode=0, dilations=[1, 1], kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2]
    )
    inside = 64
    for stage, outside in enumerate(RESNET_CHANNELS, start=1):
        for block in range(2):
            stride = 2 if stage > 1 and block == 0 else 1
            x = _residual(graph, f"layer{stage}.{block}", x, Convolution(inside, outside, kernel=3, stride=stride))
            inside = outside
    return _classified(graph, "fc", x, 512)


def _residual(graph: GraphBuilder, name: str, x: str, first: Convolution) -> str:
    y = graph.conv_bn(f"{name}.conv1", x, first, "relu")
    y = graph.conv_bn(f"{name}.conv2", y, Convolution(first.outputs, first.outputs, kernel=3))
    if first.stride != 1 or first.inputs != first.outputs:
        x = graph.conv_bn(f"{name}.downsample", x, Convolution(first.inputs, first.outputs, stride=first.stride))
    return graph.node("Relu", f"{name}.relu", graph.node("Add", f"{name}.add", y, x))


def build_mobilenetv2(seed: int) -> ModelProto:
    """Build MobileNetV2 1.0 at 224x224, 1000 classes.

    Sandler et al. 2018, "MobileNetV2: Inverted Residuals and Linear Bottlenecks" (arXiv 1801.04381).
    Published: 3,504,872 parameters (torchvision; the paper says 3.4 M), 300 M multiply-adds.
    """
    graph = GraphBuilder("mobilenetv2", seed)
    x = graph.conv_bn("features.0", _image(graph), Convolution(3, 32, kernel=3, stride=2), "relu6")
    for index, (_, inside, block) in enumerate(_blocks(MOBILENETV2_STAGES), start=1):
        name = f"features.{index}"
        y = _bottleneck(graph, name, x, inside, block, "relu6")
        x = graph.node("Add", f"{name}.add", x, y) if _is_residual(inside, block) else y
    x = graph.conv_bn("features.18", x, Convolution(320, 1280), "relu6")
    return _classified(graph, "classifier", x, 1280)


def build_efficientnet_b0(seed: int) -> ModelProto:
    """Build EfficientNet-B0 at 224x224, 1000 classes: squeeze-and-excitation in each block, and swish.

    Tan and Le 2019, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks" (arXiv 1905.11946).
    Published: 5,288,548 parameters (torchvision; the paper says 5.3 M), 0.39 G multiply-adds.
    """
    graph = GraphBuilder("efficientnet_b0", seed)
    x = graph.conv_bn("features.0", _image(graph), Convolution(3, 32, kernel=3, stride=2), "swish")
    for place, inside, block in _blocks(EFFICIENTNET_B0_STAGES):
        name = f"features.{place}"
        y = _bottleneck(graph, name, x, inside, block, "swish")
        x = graph.node("Add", f"{name}.add", y, x) if _is_residual(inside, block) else y
    x = graph.conv_bn("features.8", x, Convolution(320, 1280), "swish")
    return _classified(graph, "classifier", x, 1280)


def _blocks(stages: Sequence[Stage]) -> Iterator[tuple[str, int, Stage]]:
    """Yield each block as STAGE.REPEAT, the channels that enter it, and its stage with the block's own stride."""
    inside = 32
    for number, stage in enumerate(stages, start=1):
        for repeat in range(stage.repeats):
            yield f"{number}.{repeat}", inside, stage._replace(stride=stage.stride if repeat == 0 else 1)
            inside = stage.channels


def _is_residual(inside: int, block: Stage) -> bool:
    return block.stride == 1 and inside == block.channels


def _bottleneck(graph: GraphBuilder, name: str, x: str, inside: int, block: Stage, activation: Activation) -> str:
    hidden = inside * block.expansion
    if block.expansion != 1:
        x = graph.conv_bn(f"{name}.expand", x, Convolution(inside, hidden), activation)
    depthwise = Convolution(hidden, hidden, kernel=block.kernel, stride=block.stride, groups=hidden)
    x = graph.conv_bn(f"{name}.depthwise", x, depthwise, activation)
    if activation == "swish":
        x = _squeeze_excite(graph, f"{name}.se", x, hidden, inside // SQUEEZE_RATIO)
    return graph.conv_bn(f"{name}.project", x, Convolution(hidden, block.channels))


def _squeeze_excite(graph: GraphBuilder, name: str, x: str, channels: int, squeezed: int) -> str:
    y = graph.node("GlobalAveragePool", f"{name}.avgpool", x)
    y = graph.conv(f"{name}.reduce", y, Convolution(channels, squeezed, bias=True))
    y = graph.conv(f"{name}.expand", graph.swish(f"{name}.swish", y), Convolution(squeezed, channels, bias=True))
    return graph.node("Mul", f"{name}.mul", graph.node("Sigmoid", f"{name}.sigmoid", y), x)


def _image(graph: GraphBuilder) -> str:
    return graph.input("input", (1, 3, 224, 224))


def _classified(graph: GraphBuilder, name: str, x: str, channels: int) -> ModelProto:
    x = graph.node("Flatten", "flatten", graph.node("GlobalAveragePool", "avgpool", x), axis=1)
    graph.output("logits", graph.gemm(name, x, (channels, 1000)), (1, 1000))
    return graph.model()


def build_dscnn(seed: int) -> ModelProto:
    """Build DS-CNN for 49x10 spectral features and 12 classes, in the variant of the MLPerf Tiny benchmark.

    Zhang et al. 2017, "Hello Edge: Keyword Spotting on Microcontrollers" (arXiv 1711.07128), size S: 64 channels,
    one 10x4 convolution and four separable blocks. As in MLPerf Tiny (Banbury et al. 2021, arXiv 2106.07597) every
    convolution has a bias besides its batch norm, and a softmax ends the network; the time axis comes first.
    23,756 parameters by the published layer sizes, 2.7 M multiply-adds (the paper says 5.4 M operations).
    """
    graph = GraphBuilder("dscnn", seed)
    x = graph.input("input", (1, 1, 49, 10))
    # Padded to "same" with stride 2: 9 rows and 2 columns in all, the odd row at the end.
    stem = Convolution(1, DSCNN_CHANNELS, kernel=(10, 4), stride=2, pads=(4, 1, 5, 1), bias=True)
    depthwise = Convolution(DSCNN_CHANNELS, DSCNN_CHANNELS, kernel=3, groups=DSCNN_CHANNELS, bias=True)
    pointwise = Convolution(DSCNN_CHANNELS, DSCNN_CHANNELS, bias=True)
    x = graph.conv_bn("conv", x, stem, "relu")
    for block in range(1, DSCNN_BLOCKS + 1):
        x = graph.conv_bn(f"block.{block}.depthwise", x, depthwise, "relu")
        x = graph.conv_bn(f"block.{block}.pointwise", x, pointwise, "relu")
    x = graph.node("AveragePool", "avgpool", x, kernel_shape=[25, 5], strides=[25, 5])
    x = graph.gemm("fc", graph.node("Flatten", "flatten", x, axis=1), (DSCNN_CHANNELS, DSCNN_CLASSES))
    graph.output("probabilities", graph.node("Softmax", "softmax", x, axis=-1), (1, DSCNN_CLASSES))
    return graph.model()
