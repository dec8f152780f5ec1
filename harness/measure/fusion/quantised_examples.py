"""Examples of operators between DequantizeLinear and QuantizeLinear, as quantisers write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from harness.network.zoo.network_parts import NetworkParts

_SCALE = 1 / 16
_SHAPE = (1, 32, 6, 6)
_HALVED: Mapping[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
_ON_ONE: tuple[tuple[str, Mapping[str, Any], Mapping[int, Sequence[float]], Sequence[int]], ...] = (
    ("MaxPool", _HALVED, {}, (1, 32, 3, 3)),
    ("AveragePool", _HALVED, {}, (1, 32, 3, 3)),
    ("GlobalAveragePool", {}, {}, (1, 32, 1, 1)),
    ("Sigmoid", {}, {}, _SHAPE),
    ("LeakyRelu", {}, {}, _SHAPE),
    ("Softmax", {"axis": -1}, {}, _SHAPE),
    ("Transpose", {"perm": [0, 2, 3, 1]}, {}, (1, 6, 6, 32)),
    ("Flatten", {}, {}, (1, 1152)),
    ("Reshape", {}, {1: (1, 32, 36)}, (1, 32, 36)),
    ("Unsqueeze", {}, {1: (0,)}, (1, *_SHAPE)),
    ("Squeeze", {}, {1: (0,)}, _SHAPE[1:]),
    ("Slice", {}, {1: (0,), 2: (16,), 3: (1,)}, (1, 16, 6, 6)),
    ("Pad", {}, {1: (0, 0, 0, 0, 0, 0, 1, 1)}, (1, 32, 7, 7)),
    ("Resize", {"mode": "nearest"}, {2: (1.0, 1.0, 2.0, 2.0)}, (1, 32, 12, 12)),
)
"""Operators that read a map: their attributes, the constants that they read by place, and their results' shapes."""
_ON_TWO: tuple[tuple[str, Mapping[str, Any], Sequence[int]], ...] = (
    ("Add", {}, _SHAPE),
    ("Mul", {}, _SHAPE),
    ("MatMul", {}, _SHAPE),
    ("Concat", {"axis": 1}, (1, 64, 6, 6)),
)

_WITH_WEIGHTS: tuple[tuple[str, Sequence[int], str, Sequence[int]], ...] = (
    ("Gemm", (4, 32), "int8", (32, 8)),
    ("MatMul", (1, 4, 32), "int8", (32, 8)),
    ("Add", _SHAPE, "uint8", (32, 1, 1)),
    ("Mul", _SHAPE, "uint8", (32, 1, 1)),
)
"""Operators that read weights, the shapes of what they read, and the types of their weights."""


def add_quantised(parts: NetworkParts, convolutions: Sequence[tuple[int, int]]) -> None:
    """Add convolutions of these channels and groups with and without a Relu, and other operators, on unsigned bytes."""
    for channels, groups in convolutions:
        for last in ("", "Relu"):
            name = f"quantised.{channels}.{groups}{last}"
            weight = _weight(parts, f"{name}:weight", (channels, channels // groups, 3, 3))
            source = _source(parts, name, (1, channels, 6, 6))
            result = parts.node("Conv", f"{name}:conv", [source, weight], group=groups, pads=[1] * 4)
            _end(parts, name, parts.node(last, f"{name}:last", [result]) if last else result, (1, channels, 6, 6))
    for op, attributes, constants, shape in _ON_ONE:
        name = f"quantised.{op}"
        others = [""] * max(constants, default=0)
        for place, values in constants.items():
            kind = np.float32 if op == "Resize" else np.int64
            others[place - 1] = parts.numbers(f"{name}.{place}", values, kind)
        _end(parts, name, parts.node(op, f"{name}:op", [_source(parts, name), *others], **attributes), shape)
    mean = "quantised.ReduceMean"
    _end(parts, mean, parts.mean(f"{mean}:op", _source(parts, mean), (2, 3)), (1, 32, 1, 1))
    for op, attributes, shape in _ON_TWO:
        name = f"quantised.{op}"
        sources = [_source(parts, name), _source(parts, f"{name}:other")]
        _end(parts, name, parts.node(op, f"{name}:op", sources, **attributes), shape)
    for op, read, element, learnt in _WITH_WEIGHTS:
        name = f"quantised.weights.{op}"
        sources = [_source(parts, name, read), _weight(parts, f"{name}:weight", learnt, element)]
        _end(parts, name, parts.node(op, f"{name}:op", sources), (*read[:-1], learnt[-1]) if len(learnt) == 2 else read)


def _source(parts: NetworkParts, name: str, shape: Sequence[int] = _SHAPE) -> str:
    """Add a tensor of bytes and the DequantizeLinear that belongs to the example."""
    before = name.replace(":", ".")
    written = parts.node("Abs", f"{before}.abs", [parts.input(f"{before}.input", shape)])
    separate = name if ":" in name else f"{name}:source"
    return _converted(parts, "DequantizeLinear", separate, _converted(parts, "QuantizeLinear", before, written))


def _end(parts: NetworkParts, name: str, tensor: str, shape: Sequence[int]) -> None:
    """Add the QuantizeLinear that belongs to the example, and what reads its result."""
    tensor = _converted(parts, "QuantizeLinear", f"{name}:end", tensor)
    result = parts.node("Abs", f"{name}.read", [_converted(parts, "DequantizeLinear", f"{name}.end", tensor)])
    parts.outputs.append(helper.make_tensor_value_info(result, TensorProto.FLOAT, shape))


def _weight(parts: NetworkParts, name: str, shape: Sequence[int], kind: str = "int8") -> str:
    values = parts.numbers(f"{name}.value", np.ones(shape).tolist(), np.dtype(kind).type)
    zero = parts.numbers(f"{name}.zero", 0, np.dtype(kind).type)
    return parts.node("DequantizeLinear", name, [values, parts.scalar(f"{name}.scale", _SCALE), zero])


def _converted(parts: NetworkParts, op: str, name: str, tensor: str) -> str:
    zero = parts.numbers(f"{name}.{op}.zero", 0, np.uint8)
    return parts.node(op, f"{name}.{op}", [tensor, parts.scalar(f"{name}.{op}.scale", _SCALE), zero])
