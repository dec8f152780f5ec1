"""Insert any operator of the standard, as its schema describes it: operands of the types that it accepts."""

import functools
from typing import Any

import numpy as np
from onnx import AttributeProto, TensorProto, defs, helper

from fuzz.edits.draft import Draft, Edit, Kind, Unsuited

_ELEMENTS = {
    "tensor(float)": TensorProto.FLOAT,
    "tensor(float16)": TensorProto.FLOAT16,
    "tensor(double)": TensorProto.DOUBLE,
    "tensor(int64)": TensorProto.INT64,
    "tensor(int32)": TensorProto.INT32,
    "tensor(int8)": TensorProto.INT8,
    "tensor(uint8)": TensorProto.UINT8,
    "tensor(bool)": TensorProto.BOOL,
}
_SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (2,), (4,), (2, 2), (1, 4), (4, 4), (1, 4, 4, 4), (4, 4, 1, 1))
_SUBGRAPHS = ("If", "Loop", "Scan", "SequenceMap")
_TEXTS = ("", "linear", "nearest", "constant", "RCD", "ij->ji", "NOTSET", "float", "none", "mean", "RTL", "zeros")


@functools.cache
def _names(version: int) -> tuple[str, ...]:
    names = {schema.name for schema in defs.get_all_schemas_with_history() if schema.domain == ""}
    return tuple(sorted(name for name in names - {*_SUBGRAPHS} if defs.has(name, version, "")))


def any_operator(draft: Draft) -> None:
    """Insert an operator with required attributes; its results are outputs, or take a tensor's place."""
    name = draft.pick(_names(draft.opset))
    schema = defs.get_schema(name, draft.opset, "")
    tensor, kind = draft.choose()
    chosen: dict[str, int] = {}
    inputs = [_operand(draft, schema, at, tensor if at == 0 else "", chosen) for at in range(_count(draft, schema))]
    given = {item.name: _value(draft, item) for item in schema.attributes.values() if _is_given(draft, item)}
    outputs = max(1, min(schema.min_output, 4))
    results = draft.append(name, inputs, outputs, **given)
    if draft.draw.random() < 0.5 or kind.element != TensorProto.FLOAT:
        draft.output(results[0])
    else:
        draft.attach(results[0], tensor)


def _count(draft: Draft, schema: Any) -> int:
    least = int(schema.min_input)
    return draft.draw.choice((least, min(int(schema.max_input), least + 1, 8)))


def _operand(draft: Draft, schema: Any, at: int, first: str, chosen: dict[str, int]) -> str:
    """Return a tensor for an input: of the same type as others of the same type variable."""
    stated = schema.inputs[min(at, len(schema.inputs) - 1)]
    accepted = sorted(_ELEMENTS[name] for name in stated.types if name in _ELEMENTS)
    if not accepted:
        raise Unsuited("it accepts no tensor")
    if first and draft.types[first].element in accepted:
        chosen.setdefault(stated.type_str, draft.types[first].element)
        return first
    element = chosen.setdefault(stated.type_str, draft.draw.choice(accepted))
    shapes = list(_SHAPES) + [kind.shape for kind in draft.types.values() if kind.element == element][:4]
    known = draft.tensors(lambda kind: kind.element == element)
    if known and draft.draw.random() < 0.4:
        return str(draft.draw.choice(known))
    if element in (TensorProto.INT64, TensorProto.INT32):
        values = [draft.draw.choice((0, 1, 1, 2)) for _ in range(draft.draw.choice((1, 1, 2, 4)))]
        array = np.array(values if draft.draw.random() < 0.8 else values[0])
        return draft.constant(array.astype(np.int64 if element == TensorProto.INT64 else np.int32))
    return draft.numbers(Kind(element, draft.draw.choice(shapes)))


def _is_given(draft: Draft, item: Any) -> bool:
    if item.name in ("seed", "consumed_inputs"):
        return False
    return bool(item.required) or draft.draw.random() < 0.25


def _value(draft: Draft, item: Any) -> Any:
    draw = draft.draw
    kind = int(item.type)
    if kind == AttributeProto.INT:
        return draw.choice((0, 1, 1, 2, -1))
    if kind == AttributeProto.FLOAT:
        return draw.choice((0.0, 0.5, 1.0))
    if kind == AttributeProto.STRING:
        return draw.choice(_TEXTS)
    if kind == AttributeProto.INTS:
        return [draw.choice((1, 1, 2, 0)) for _ in range(draw.choice((1, 2, 4)))]
    if kind == AttributeProto.FLOATS:
        return [1.0] * draw.choice((1, 2, 4))
    if kind == AttributeProto.STRINGS:
        return ["forward"]
    if kind == AttributeProto.TENSOR:
        return helper.make_tensor("", TensorProto.FLOAT, [1], [0.5])
    raise Unsuited("such an attribute is not made here")


EDITS: tuple[Edit, ...] = (any_operator,)
