"""Examples of operators around matrix products, and of attention, for the network of examples of fusion."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TensorProto, helper

from harness.network.zoo.network_parts import EVERY_GELU, GELUS, NetworkParts

_RESULT_COLUMNS = 4
_ROWS, _DEPTH, _HEADS = 8, 16, 2
_AROUND_PRODUCTS = (
    ("MatMul", "bias"),
    *(("MatMul", "bias", one) for one in ("Relu", "LeakyRelu", "Sigmoid", "Tanh", "Swish", "Elu", "Sin", *EVERY_GELU)),
    *((one, "MatMul") for one in GELUS),
    ("Transpose", "MatMul"),
    ("MatMul", "Transpose"),
    ("scale", "MatMul"),
    ("MatMul", "Reshape", "Squeeze"),
    ("MatMul", "Reshape", "Unsqueeze"),
    ("MatMul", "Unsqueeze", "Squeeze"),
    ("MatMul", "bias", "Reshape"),
    *(("Gemm", one) for one in ("Relu", "LeakyRelu", "Sigmoid", "Tanh", "Swish", "Elu", "Sin", "scale", *EVERY_GELU)),
    ("Gemm", "scale", "Sin"),
    ("product", "Div"),
    ("decomposed",),
    ("residual", "decomposed"),
    ("residual", "LayerNormalization"),
)
"""Operators one after the other; `product` is one of two activations, `decomposed` a LayerNormalization of older
exporters."""


def add_products(parts: NetworkParts) -> None:
    """Add all examples; the nodes of one share the part of their names before a colon."""
    for at, around in enumerate(_AROUND_PRODUCTS):
        if all(map(parts.can, around)):
            _product(parts, f"product{at}", around)
    _attention(parts, "attention")
    _packed_attention(parts, "packed")


def _product(parts: NetworkParts, name: str, around: Sequence[str]) -> None:
    """Add operators around a matrix product, between an element-wise operator and another product."""
    rows, depth = _ROWS, _DEPTH
    shape: tuple[int, ...] = {"Transpose": (1, depth, rows), "Gemm": (rows, depth)}.get(around[0], (1, rows, depth))
    tensor = _absolute(parts, f"{name}.source", shape)
    for at, kind in enumerate(around):
        label = f"{name}:{at}"
        if kind == "Transpose":
            tensor = parts.node(kind, label, [tensor], perm=[0, 2, 1])
            shape = (shape[0], shape[2], shape[1])
        elif kind == "Reshape":
            shape = (1, 1, *shape[1:])
            tensor = parts.node(kind, label, [tensor, parts.numbers(f"{label}.shape", shape)])
        elif kind in ("Squeeze", "Unsqueeze"):
            shape = shape[1:] if kind == "Squeeze" else (1, *shape)
            tensor = parts.node(kind, label, [tensor, parts.numbers(f"{label}.axes", (0,))])
        else:
            tensor = _on_rows(parts, label, tensor, kind)
    _product_of(parts, name, tensor, shape)


def _attention(parts: NetworkParts, name: str) -> None:
    """Add attention whose query, key and value are separate products."""
    source = _absolute(parts, f"{name}.source", (1, _ROWS, _DEPTH))
    heads = []
    for kind, perm in (("query", (0, 2, 1, 3)), ("key", (0, 2, 3, 1)), ("value", (0, 2, 1, 3))):
        label = f"{name}:{kind}"
        product = _on_rows(parts, f"{label}.bias", _on_rows(parts, label, source, "MatMul"), "bias")
        shape = parts.numbers(f"{label}.shape", (1, _ROWS, _HEADS, _DEPTH // _HEADS))
        product = parts.node("Reshape", f"{label}.reshape", [product, shape])
        heads.append(parts.node("Transpose", f"{label}.transpose", [product], perm=perm))
    query, key, value = heads
    _attended(
        parts,
        name,
        _on_rows(parts, f"{name}:scale", parts.node("MatMul", f"{name}:scores", [query, key]), "Div"),
        value,
    )


def _packed_attention(parts: NetworkParts, name: str) -> None:
    """Add attention whose query, key and value are one product, as vision transformers have it."""
    source = _absolute(parts, f"{name}.source", (1, _ROWS, _DEPTH))
    product = parts.node("MatMul", f"{name}:qkv", [source, parts.weight(f"{name}.qkv.weight", (_DEPTH, 3 * _DEPTH))])
    product = parts.node("Add", f"{name}:bias", [product, parts.weight(f"{name}.bias", (3 * _DEPTH,))])
    shape = parts.numbers(f"{name}.qkv.shape", (1, _ROWS, 3, _HEADS, _DEPTH // _HEADS))
    product = parts.node("Reshape", f"{name}:reshape", [product, shape])
    product = parts.node("Transpose", f"{name}:transpose", [product], perm=(2, 0, 3, 1, 4))
    divided = parts.nodes_of("Split", f"{name}:split", [product, parts.numbers(f"{name}.sizes", (1, 1, 1))], 3, axis=0)
    axes = parts.numbers(f"{name}.axes", (0,))
    query, key, value = (parts.node("Squeeze", f"{name}:{at}", [one, axes]) for at, one in enumerate(divided))
    query = _on_rows(parts, f"{name}:scale", query, "scale")
    key = parts.node("Transpose", f"{name}:key", [key], perm=(0, 1, 3, 2))
    _attended(parts, name, parts.node("MatMul", f"{name}:scores", [query, key]), value)


def _attended(parts: NetworkParts, name: str, scores: str, value: str) -> None:
    """Add what follows the scores of attention, and the product that reads its result."""
    weights = parts.node("Softmax", f"{name}:softmax", [scores], axis=-1)
    result = parts.node("MatMul", f"{name}:context", [weights, value])
    result = parts.node("Transpose", f"{name}:merge", [result], perm=(0, 2, 1, 3))
    result = parts.node("Reshape", f"{name}:merged", [result, parts.numbers(f"{name}.merged", (1, _ROWS, _DEPTH))])
    _product_of(parts, name, result, (1, _ROWS, _DEPTH))


def _product_of(parts: NetworkParts, name: str, tensor: str, shape: tuple[int, ...]) -> None:
    """Add a product that reads a tensor, and whose own is a result of the network."""
    weight = parts.weight(f"{name}.reader.weight", (shape[-1], _RESULT_COLUMNS))
    result = parts.node("MatMul", f"{name}.reader", [tensor, weight])
    parts.outputs.append(helper.make_tensor_value_info(result, TensorProto.FLOAT, (*shape[:-1], _RESULT_COLUMNS)))


def _on_rows(parts: NetworkParts, label: str, tensor: str, kind: str) -> str:
    """Add an operator on rows of a matrix, which keeps its shape, and return its result."""
    depth, other = _DEPTH, label.replace(":", ".other")
    if kind in ("MatMul", "Gemm"):
        return parts.node(kind, label, [tensor, parts.weight(f"{label}.weight", (depth, depth))])
    if kind == "product":
        return parts.node("MatMul", label, [tensor, _absolute(parts, other, (1, depth, depth))])
    if kind == "residual":
        return parts.node("Add", label, [tensor, _absolute(parts, other, (1, _ROWS, depth))])
    if kind == "decomposed":
        return parts.layer_normalisation(label, tensor, depth)
    if kind == "LayerNormalization":
        weights = [parts.weight(f"{label}.{one}", (depth,)) for one in ("weight", "bias")]
        return parts.node(kind, label, [tensor, *weights], axis=-1)
    if kind in ("scale", "Div"):
        return parts.node("Mul" if kind == "scale" else kind, label, [tensor, parts.scalar(f"{label}.value", 0.125)])
    if kind == "bias":
        return parts.node("Add", label, [tensor, parts.weight(f"{label}.value", (depth,))])
    return parts.activation(kind, label, [tensor])


def _absolute(parts: NetworkParts, name: str, shape: Sequence[int]) -> str:
    """Add an element-wise operator on an input, which nothing is fused with."""
    return parts.node("Abs", name, [parts.input(f"{name}.input", shape)])
