"""DS-CNN: depthwise separable convolutions for keyword spotting."""

from __future__ import annotations

from onnx import ModelProto

from harness.network.zoo.graph_builder import GraphBuilder

CHANNELS = 64
BLOCKS = 4
CLASSES = 12


def build_dscnn(seed: int = 0) -> ModelProto:
    """Build DS-CNN for 49x10 spectral features and 12 classes, in the variant of the MLPerf Tiny benchmark.

    Zhang et al. 2017, "Hello Edge: Keyword Spotting on Microcontrollers" (arXiv 1711.07128), size S: 64 channels,
    one 10x4 convolution and four separable blocks. As in MLPerf Tiny (Banbury et al. 2021, arXiv 2106.07597) every
    convolution has a bias besides its batch norm, and a softmax ends the network; the time axis comes first.
    23,756 parameters by the published layer sizes, 2.7 M multiply-adds (the paper says 5.4 M operations).
    """
    graph = GraphBuilder("dscnn", seed)
    x = graph.input("input", (1, 1, 49, 10))
    # Padded to "same" with stride 2: 9 rows and 2 columns in all, the odd row at the end.
    x = _conv_relu(graph, "conv", x, (1, CHANNELS), kernel=(10, 4), stride=2, pads=(4, 1, 5, 1))
    both = (CHANNELS, CHANNELS)
    for block in range(1, BLOCKS + 1):
        x = _conv_relu(graph, f"block.{block}.depthwise", x, both, kernel=(3, 3), groups=CHANNELS, pads=(1, 1, 1, 1))
        x = _conv_relu(graph, f"block.{block}.pointwise", x, both)
    x = graph.node("AveragePool", "avgpool", x, kernel_shape=[25, 5], strides=[25, 5])
    x = graph.gemm("fc", graph.node("Flatten", "flatten", x, axis=1), (CHANNELS, CLASSES))
    graph.output("probabilities", graph.node("Softmax", "softmax", x, axis=-1), (1, CLASSES))
    return graph.model()


def _conv_relu(
    graph: GraphBuilder,
    name: str,
    x: str,
    channels: tuple[int, int],
    *,
    kernel: tuple[int, int] = (1, 1),
    stride: int = 1,
    groups: int = 1,
    pads: tuple[int, int, int, int] = (0, 0, 0, 0),
) -> str:
    x = graph.conv(name, x, channels, kernel=kernel, stride=stride, groups=groups, pads=pads, bias=True)
    return graph.node("Relu", f"{name}.relu", graph.batch_norm(f"{name}.bn", x, channels[1]))
