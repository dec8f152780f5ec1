"""ResNet: residual blocks of plain convolutions."""

from __future__ import annotations

from onnx import ModelProto

from harness.network.zoo.graph_builder import Conv2d, GraphBuilder

STAGE_CHANNELS = (64, 128, 256, 512)
BLOCKS_PER_STAGE = 2


def build_resnet18(seed: int = 0) -> ModelProto:
    """Build ResNet-18 at 224x224, 1000 classes.

    He et al. 2015, "Deep Residual Learning for Image Recognition" (arXiv 1512.03385).
    Published: 11,689,512 parameters (torchvision), 1.8 G multiply-adds.
    """
    graph = GraphBuilder("resnet18", seed)
    x = graph.input("input", (1, 3, 224, 224))
    x = graph.conv_relu("conv1", x, Conv2d(3, 64, kernel=7, stride=2))
    x = graph.node(
        "MaxPool", "maxpool", x, ceil_mode=0, dilations=[1, 1], kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2]
    )
    inside = 64
    for stage, outside in enumerate(STAGE_CHANNELS, start=1):
        for block in range(BLOCKS_PER_STAGE):
            stride = 2 if stage > 1 and block == 0 else 1
            x = _basic_block(graph, f"layer{stage}.{block}", x, (inside, outside), stride)
            inside = outside
    x = graph.gemm("fc", graph.global_pool_flatten(x), (512, 1000))
    graph.output("logits", x, (1, 1000))
    return graph.model()


def _basic_block(graph: GraphBuilder, name: str, x: str, channels: tuple[int, int], stride: int) -> str:
    inside, outside = channels
    y = graph.conv_relu(f"{name}.conv1", x, Conv2d(inside, outside, kernel=3, stride=stride))
    y = graph.conv_bn(f"{name}.conv2", y, Conv2d(outside, outside, kernel=3))
    if stride != 1 or inside != outside:
        x = graph.conv_bn(f"{name}.downsample", x, Conv2d(inside, outside, stride=stride))
    return graph.node("Relu", f"{name}.relu", graph.node("Add", f"{name}.add", y, x))
