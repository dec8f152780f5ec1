"""DS-CNN: depthwise separable convolutions for keyword spotting."""

from __future__ import annotations

from onnx import ModelProto

from harness.network.zoo.graph_builder import Conv2d, GraphBuilder

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
    stem = Conv2d(1, CHANNELS, kernel=(10, 4), stride=2, pads=(4, 1, 5, 1), bias=True)
    depthwise = Conv2d(CHANNELS, CHANNELS, kernel=3, groups=CHANNELS, bias=True)
    pointwise = Conv2d(CHANNELS, CHANNELS, bias=True)
    x = graph.conv_relu("conv", x, stem)
    for block in range(1, BLOCKS + 1):
        x = graph.conv_relu(f"block.{block}.depthwise", x, depthwise)
        x = graph.conv_relu(f"block.{block}.pointwise", x, pointwise)
    x = graph.node("AveragePool", "avgpool", x, kernel_shape=[25, 5], strides=[25, 5])
    x = graph.gemm("fc", graph.node("Flatten", "flatten", x, axis=1), (CHANNELS, CLASSES))
    graph.output("probabilities", graph.node("Softmax", "softmax", x, axis=-1), (1, CLASSES))
    return graph.model()
