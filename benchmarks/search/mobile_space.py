"""A search space of inverted residual blocks: kernel 3 or 5, expansion 3 or 6, or no block at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from harness.architecture_search.super_network import Choices, super_network

OPSET = 17
IR_VERSION = 8
CLASSES = 100
KERNELS = (3, 5)
EXPANSIONS = (3, 6)


@dataclass
class _Block:
    """A block under construction, and the multiply-adds of its convolutions."""

    nodes: list[NodeProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)

    def convolution(self, name: str, read: str, shape: tuple[int, int, int], stride: int = 1, groups: int = 1) -> str:
        """Add a convolution with a weight of (outputs, inputs, kernel)."""
        outputs, inputs, kernel = shape
        value = np.full((outputs, inputs // groups, kernel, kernel), 0.01, np.float32)
        self.weights.append(numpy_helper.from_array(value, f"{name}.weight"))
        attributes: dict[str, Any] = {
            "kernel_shape": [kernel] * 2,
            "pads": [kernel // 2] * 4,
            "strides": [stride] * 2,
            "group": groups,
        }
        self.nodes.append(helper.make_node("Conv", [read, f"{name}.weight"], [name], name, **attributes))
        return name

    def node(self, operator: str, name: str, *read: str) -> str:
        """Add an operator without weights."""
        self.nodes.append(helper.make_node(operator, list(read), [name], name))
        return name

    def model(self, read: Sequence[int], written: Sequence[int]) -> ModelProto:
        """Return the model, whose input is `x` and whose output is that of the last node."""
        result = self.nodes[-1].output[0]
        ends = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in (("x", read), (result, written))
        ]
        graph = helper.make_graph(self.nodes, "block", ends[:1], ends[1:], self.weights)
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)


def stem(channels: int, edge: int) -> ModelProto:
    """Return a convolution of an image, at stride 2, with Relu."""
    block = _Block()
    block.node("Relu", "relu", block.convolution("conv", "x", (channels, 3, 3), stride=2))
    return block.model((1, 3, edge, edge), (1, channels, edge // 2, edge // 2))


def inverted_residual(inputs: int, outputs: int, edge: int, kernel: int, expansion: int, stride: int) -> ModelProto:
    """Return an inverted residual block of MobileNetV2, without its batch norms, which runtimes fold."""
    block, inner = _Block(), inputs * expansion
    wide = block.node("Relu", "expand.relu", block.convolution("expand", "x", (inner, inputs, 1)))
    deep = block.convolution("depthwise", wide, (inner, inner, kernel), stride, groups=inner)
    narrow = block.convolution("project", block.node("Relu", "depthwise.relu", deep), (outputs, inner, 1))
    if stride == 1 and inputs == outputs:
        block.node("Add", "add", narrow, "x")
    return block.model((1, inputs, edge, edge), (1, outputs, edge // stride, edge // stride))


def head(channels: int, edge: int) -> ModelProto:
    """Return a mean over the map and a classifier."""
    block = _Block()
    block.weights.append(numpy_helper.from_array(np.full((channels, CLASSES), 0.01, np.float32), "fc.weight"))
    flat = block.node("Flatten", "flatten", block.node("GlobalAveragePool", "pool", "x"))
    block.node("Gemm", "fc", flat, "fc.weight")
    return block.model((1, channels, edge, edge), (1, CLASSES))


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
