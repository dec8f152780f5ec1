"""Operators into which ONNX Runtime's optimizers fuse others: each stands for the operators of ONNX that it fuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import NodeProto, helper

from device_agents.emulated_npu.compiler.graph.reading.parsed_model import ValueType
from device_agents.emulated_npu.compiler.graph.reading.quantised import Body
from device_agents.emulated_npu.numpy_types import NUMPY_TYPES

_RUNTIME = "com.microsoft"
_ACTIVATIONS: Mapping[bytes, tuple[str, ...]] = {
    b"": (),
    **dict.fromkeys((b"Relu", b"Sigmoid", b"Tanh"), ()),
    b"LeakyRelu": ("alpha",),
    b"HardSigmoid": ("alpha", "beta"),
    b"Clip": (),
}
"""The activations behind a convolution or product, with the names of their parameters."""


def defines(node: NodeProto) -> bool:
    """Return whether `body` has nodes that stand for this one."""
    given = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    has_statistics = node.op_type.startswith("Skip") and any(node.output[1:3])
    is_known = node.domain == _RUNTIME and node.op_type in _BODIES
    return is_known and not has_statistics and given.get("activation", b"") in _ACTIVATIONS


def body(node: NodeProto, name: str, types: Mapping[str, ValueType]) -> list[NodeProto]:
    """Return the nodes that stand for a node; names of their own tensors begin with `name`.

    Requires: the types of all inputs of the node.
    """
    found = Body(node, name)
    _BODIES[node.op_type](found, types)
    return found.nodes


def _gelu(found: Body, attributes: Mapping[str, Any], op: str = "Gelu") -> None:
    read = found.required(0)
    if found.input(1):
        read = found.compute("Add", [read, found.input(1)], {})
    found.bound(found.compute(op, [read], attributes))


def _product(found: Body, types: Mapping[str, ValueType]) -> None:
    """Stand for FusedMatMul: axes of its factors may be transposed, and the product scaled."""
    given, factors = found.attributes(), []
    for place, side in enumerate("AB"):
        factor = found.required(place)
        order = list(range(len(types[factor].shape)))
        if given.get(f"transBatch{side}"):  # the first axis is that of the rows, behind it are those of batches
            order = [*order[1:-1], order[0], order[-1]]
        if given.get(f"trans{side}"):
            order[-2:] = order[:-3:-1]
        if order != sorted(order):
            factor = found.compute("Transpose", [factor], {"perm": order})
        factors.append(factor)
    product, alpha = found.compute("MatMul", factors, {}), given.get("alpha", 1.0)
    if alpha != 1.0:
        number = np.array(alpha, NUMPY_TYPES[types[found.required(0)].dtype])
        product = found.compute("Mul", [product, found.constant(number)], {})
    found.bound(product)


def _activated(found: Body, numbers: str, parameters: list[float]) -> None:
    activation = found.attributes().get("activation", b"")
    if activation == b"Clip":
        bounds = [found.constant(np.array(value, np.float32)) for value in parameters]
        numbers = found.compute("Clip", [numbers, *bounds], {})
    elif activation:
        named = zip(_ACTIVATIONS[activation], parameters, strict=False)
        numbers = found.compute(activation.decode(), [numbers], dict(named))
    found.bound(numbers)


def _convolution(found: Body, _: Mapping[str, ValueType]) -> None:
    """Stand for FusedConv: a convolution, a sum, and an activation."""
    attributes = found.attributes("activation", "activation_params")
    numbers = found.compute("Conv", [name for name in map(found.input, range(3)) if name], attributes)
    if found.input(3):
        numbers = found.compute("Add", [numbers, found.input(3)], {})
    _activated(found, numbers, list(found.attributes().get("activation_params", ())))


def _gemm(found: Body, _: Mapping[str, ValueType]) -> None:
    names = "activation", "activation_alpha", "activation_beta", "activation_gamma"
    given = found.attributes()
    numbers = found.compute("Gemm", list(found.node.input), found.attributes(*names))
    _activated(found, numbers, [given[name] for name in names[1:3] if name in given])


def _normalised_sum(op: str, biases: tuple[int, ...]) -> Callable[[Body, Mapping[str, ValueType]], None]:
    """Return what stands for a sum that is normalised; the last of `biases` is added to the sum, the others behind."""

    def stand(found: Body, _: Mapping[str, ValueType]) -> None:
        *shifts, bias = biases
        total = found.compute("Add", [found.required(0), found.required(1)], {})
        if found.input(bias):
            total = found.compute("Add", [total, found.input(bias)], {})
        factors = [found.required(2), *(found.input(place) for place in shifts if found.input(place))]
        normal = found.compute(op, [total, *factors], {"axis": -1, "epsilon": found.attributes().get("epsilon", 1e-5)})
        found.bound(normal)
        if len(found.node.output) > 3 and found.node.output[3]:
            found.nodes.append(helper.make_node("Identity", [total], [found.node.output[3]]))

    return stand


_BODIES: Mapping[str, Callable[[Body, Mapping[str, ValueType]], None]] = {
    "Gelu": lambda found, _: _gelu(found, {}),
    "BiasGelu": lambda found, _: _gelu(found, {}),
    "FastGelu": lambda found, _: _gelu(found, {"approximate": "tanh"}),
    "QuickGelu": lambda found, _: _gelu(found, {"alpha": found.attributes().get("alpha", 1.702)}, "Swish"),
    "FusedMatMul": _product,
    "FusedConv": _convolution,
    "FusedGemm": _gemm,
    "SkipLayerNormalization": _normalised_sum("LayerNormalization", (3, 4)),
    "SkipSimplifiedLayerNormalization": _normalised_sum("SimplifiedLayerNormalization", (3,)),
}
