"""Quantise parts of a network: pairs around tensors, quantised weights, operators on integers, ONNX Runtime's own."""

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from fuzz.edits.draft import Draft, Edit, Kind, Unsuited

RUNTIME = "com.microsoft"
_FEATURES = 2
"""The axes of a tensor whose channels have a scale each."""


def _scale(draft: Draft, count: int | None = None) -> str:
    shape = () if count is None else (count,)
    return draft.constant(np.full(shape, draft.draw.choice((0.05, 1.0, 1e-6)), np.float32))


def _zero(draft: Draft, dtype: Any, count: int | None = None) -> str:
    value = draft.draw.choice((0, 0, 1, 101)) if dtype != np.int32 else 0
    return draft.constant(np.full(() if count is None else (count,), value, dtype))


def _needs(draft: Draft, version: int) -> None:
    if draft.opset < version:
        raise Unsuited("no such operator")


def pair(draft: Draft) -> None:
    """Insert QuantizeLinear and DequantizeLinear, per tensor or per channel."""
    tensor, kind = draft.choose(lambda kind: kind.element == TensorProto.FLOAT)
    _needs(draft, 10)
    dtype = draft.draw.choice((np.uint8, np.int8, np.int16) if draft.opset >= 21 else (np.uint8, np.int8))
    count: int | None = None
    given: dict[str, Any] = {}
    if draft.opset >= 13 and len(kind.shape) >= _FEATURES and draft.draw.random() < 0.2:
        count, given = kind.shape[1], {"axis": 1}
    parameters = [_scale(draft, count), _zero(draft, dtype, count)]
    (found,) = draft.append("QuantizeLinear", [tensor, *parameters], **given)
    if draft.draw.random() < 0.2:
        parameters = [_scale(draft, count), parameters[1]]
    draft.attach(draft.append("DequantizeLinear", [found, *parameters], **given)[0], tensor)


def weight(draft: Draft) -> None:
    """Let a node read dequantised integers in the place of a constant."""
    _needs(draft, 10)
    kept = {one.name: one for one in draft.graph.initializer if one.data_type == TensorProto.FLOAT}
    places = [(node, at) for node in draft.graph.node for at, name in enumerate(node.input) if name in kept]
    node, at = draft.pick([place for place in places if place[0].op_type != "QuantizeLinear"])
    shape = tuple(kept[node.input[at]].dims)
    dtype = draft.draw.choice((np.int8, np.uint8, np.int32))
    values = np.random.default_rng(draft.draw.randrange(1 << 16)).integers(0, 100, shape).astype(dtype)
    count: int | None = None
    given: dict[str, Any] = {}
    if shape and draft.opset >= 13 and draft.draw.random() < 0.5:
        count, given = shape[0], {"axis": 0}
    inputs = [draft.constant(values, node=False), _scale(draft, count)]
    inputs += [_zero(draft, dtype, count)] if draft.draw.random() < 0.7 else []
    place = next(number for number, other in enumerate(draft.graph.node) if other == node)
    result = draft.append("DequantizeLinear", inputs, **given)
    shifted = [other for other in draft.graph.node[place:] if other == node]
    draft.pick(shifted).input[at] = result[0]


def dynamic(draft: Draft) -> None:
    """Insert DynamicQuantizeLinear, and an operator on integers or DequantizeLinear behind it."""
    tensor, kind = draft.choose(lambda kind: kind.element == TensorProto.FLOAT)
    _needs(draft, 11)
    found, scale, zero = draft.append("DynamicQuantizeLinear", [tensor], 3)
    if len(kind.shape) == 2 and draft.draw.random() < 0.5:
        right = draft.constant(np.ones((kind.shape[1], 4), draft.draw.choice((np.int8, np.uint8))))
        (summed,) = draft.append("MatMulInteger", [found, right, zero])
        (real,) = draft.append("Cast", [summed], to=1)
        draft.attach(draft.append("Mul", [real, scale])[0], tensor)
    elif len(kind.shape) == 4 and draft.draw.random() < 0.7:
        right = draft.constant(np.ones((4, kind.shape[1], 1, 1), np.uint8))
        (summed,) = draft.append("ConvInteger", [found, right, zero])
        draft.attach(draft.append("Cast", [summed], to=1)[0], tensor)
    else:
        draft.attach(draft.append("DequantizeLinear", [found, scale, zero])[0], tensor)


def linear(draft: Draft) -> None:
    """Insert QLinearConv or QLinearMatMul between QuantizeLinear and DequantizeLinear."""
    tensor, kind = draft.choose(lambda kind: kind.element == TensorProto.FLOAT and len(kind.shape) in (2, 4))
    _needs(draft, 10)
    dtype = draft.draw.choice((np.uint8, np.int8))
    read, written = ([_scale(draft), _zero(draft, dtype)] for _ in range(2))
    (found,) = draft.append("QuantizeLinear", [tensor, *read])
    channels, shape = kind.shape[1], (kind.shape[1], 4) if len(kind.shape) == 2 else (4, kind.shape[1], 1, 1)
    right = draft.constant(np.ones(shape, dtype))
    inputs = [found, *read, right, _scale(draft), draft.constant(np.array(0, dtype)), *written]
    if len(kind.shape) == 4 and channels and draft.draw.random() < 0.5:
        inputs.append(draft.constant(np.ones(4, np.int32)))
    (found,) = draft.append("QLinearMatMul" if len(kind.shape) == 2 else "QLinearConv", inputs)
    draft.attach(draft.append("DequantizeLinear", [found, *written])[0], tensor)


def runtime(draft: Draft) -> None:
    """Insert an operator of ONNX Runtime's own, whose type only a run of it shows."""
    tensor, kind = draft.choose(lambda kind: kind.element == TensorProto.FLOAT and len(kind.shape) > 1)
    depth = kind.shape[-1]
    weights = draft.numbers(Kind(kind.element, (depth, 4)))
    square = draft.numbers(Kind(kind.element, (depth,)))
    calls: dict[str, tuple[list[str], dict[str, Any]]] = {
        "Gelu": ([tensor], {}),
        "FastGelu": ([tensor], {}),
        "QuickGelu": ([tensor], {"alpha": 1.702}),
        "BiasGelu": ([tensor, square], {}),
        "FusedMatMul": ([tensor, weights], {"alpha": 0.5}),
        "SkipLayerNormalization": ([tensor, tensor, square], {}),
        "DynamicQuantizeMatMul": ([tensor, draft.constant(np.ones((depth, 4), np.int8)), _scale(draft)], {}),
    }
    if len(kind.shape) == 2:
        calls["FusedGemm"] = ([tensor, weights, draft.numbers(Kind(kind.element, (4,)))], {"activation": "Relu"})
    if len(kind.shape) == 4:
        kernel = draft.numbers(Kind(kind.element, (4, kind.shape[1], 1, 1)))
        calls["FusedConv"] = ([tensor, kernel], {"activation": "Relu", "kernel_shape": [1, 1]})
    operator = draft.draw.choice(sorted(calls))
    inputs, given = calls[operator]
    if RUNTIME not in {one.domain for one in draft.model.opset_import}:
        draft.model.opset_import.append(helper.make_opsetid(RUNTIME, 1))
    (result,) = draft.append(operator, inputs, domain=RUNTIME, **given)
    if operator.endswith("Gelu"):
        draft.state(result, kind)
        draft.attach(result, tensor)
    else:
        draft.output(result)


def lookup(draft: Draft) -> None:
    """Insert a gather whose indices are an input, as of an embedding."""
    tensor, kind = draft.choose(lambda kind: kind.is_float)
    table = draft.numbers(Kind(kind.element, (draft.draw.choice((1, 10, 300)), 4)))
    name = draft.fresh("x")
    element = draft.draw.choice((TensorProto.INT64, TensorProto.INT32))
    draft.graph.input.append(helper.make_tensor_value_info(name, element, [draft.draw.choice((1, 2))]))
    (found,) = draft.append("Gather", [table, name], axis=draft.draw.choice((0, 0, 1)))
    draft.attach(found, tensor)


EDITS: tuple[Edit, ...] = (pair, pair, weight, dynamic, linear, runtime, lookup)
