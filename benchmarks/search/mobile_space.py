"""A search space of inverted residual blocks: kernel 3 or 5, expansion 3 or 6, or no block at all."""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import ModelProto

from benchmarks.topologies.layers import Topology
from harness.architecture_search.super_network import Choices, super_network

CLASSES = 100
KERNELS = (3, 5)
EXPANSIONS = (3, 6)


def stem(channels: int, edge: int) -> ModelProto:
    """Return a convolution of an image, at stride 2, with Relu."""
    net = Topology("stem", 0)
    x = net.activate(net.convolve(net.image(3, edge, edge), channels, 3, 2, bias=False), "relu")
    return net.finished(x, channels, edge // 2, edge // 2)


def inverted_residual(inputs: int, outputs: int, edge: int, kernel: int, expansion: int, stride: int) -> ModelProto:
    """Return an inverted residual block of MobileNetV2, without its batch norms, which runtimes fold."""
    net, inner = Topology("block", 0), inputs * expansion
    x = net.image(inputs, edge, edge)
    wide = net.activate(net.convolve(x, inner, bias=False), "relu")
    deep = net.activate(net.convolve(wide, inner, kernel, stride, groups=inner, bias=False), "relu")
    narrow = net.convolve(deep, outputs, bias=False)
    if stride == 1 and inputs == outputs:
        narrow = net.add(narrow, x)
    return net.finished(narrow, outputs, edge // stride, edge // stride)


def head(channels: int, edge: int) -> ModelProto:
    """Return a mean over the map and a classifier."""
    net = Topology("head", 0)
    weights = net.he_normal("fc.weight", (channels, CLASSES), channels)
    return net.finished(net.op("Gemm", net.pooled(net.image(channels, edge, edge)), weights), CLASSES)


def mobile_space(widths: Sequence[int] = (16, 24, 40, 80), edge: int = 96, blocks: int = 3) -> ModelProto:
    """Return the super-network of stages with these numbers of channels, and this many blocks in each stage."""
    positions: dict[str, Choices] = {"stem": {"conv": stem(widths[0], edge)}}
    channels, edge = widths[0], edge // 2
    for stage, width in enumerate(widths):
        for number in range(blocks):
            stride = 2 if stage and not number else 1
            choices: dict[str, ModelProto | None] = {
                f"k{kernel}e{expansion}": inverted_residual(channels, width, edge, kernel, expansion, stride)
                for kernel in KERNELS
                for expansion in EXPANSIONS
            }
            if stride == 1 and channels == width:
                choices["skip"] = None
            positions[f"stage{stage}.{number}"] = choices
            channels, edge = width, edge // stride
    positions["head"] = {"fc": head(channels, edge)}
    return super_network("mobile", positions)


def multiply_adds(model: ModelProto) -> int:
    """Return the multiply-adds of the convolutions of a network."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    weights = {one.name: one.dims for one in inferred.initializer}
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*inferred.value_info, *inferred.output)
    }
    convolutions = [node for node in inferred.node if node.op_type == "Conv"]
    return sum(int(np.prod(shapes[node.output[0]])) * int(np.prod(weights[node.input[1]][1:])) for node in convolutions)
