"""Decompose operators that ONNX Runtime's optimizers make of others into the operators of ONNX that they fuse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from device_agents.emulated_npu.compiler.graph.reading.decomposition import PARAMETERS, Decompose, Decomposition

_ACTIVATIONS: Mapping[bytes, tuple[str, ...]] = {
    b"": (),
    **dict.fromkeys((b"Relu", b"Sigmoid", b"Tanh"), ()),
    b"LeakyRelu": ("alpha",),
    b"HardSigmoid": ("alpha", "beta"),
    b"Clip": ("min", "max"),
}
"""The activations after a convolution or product, with the names of their parameters."""
EPSILON = 1e-12
"""What ONNX Runtime adds to the variance of a sum whose node has no epsilon; LayerNormalization adds more."""
_BOUNDS_ARE_INPUTS = 11
"""The opset from which the bounds of Clip are inputs."""


def _gelu(found: Decomposition, attributes: Mapping[str, Any], op: str = "Gelu") -> None:
    read = found.required(0)
    if found.input(1):
        read = found.compute("Add", [read, found.input(1)], {})
    found.bound(found.compute(op, [read], attributes))


def _product(found: Decomposition) -> None:
    """Decompose FusedMatMul: axes of its factors may be transposed, and the product scaled."""
    given, factors = found.attributes(), []
    ranks = [len(found.types[found.required(place)].shape) for place in range(2)]
    batches = given.get("transBatchA") or given.get("transBatchB")
    if min(ranks) < 1 or (batches and (ranks[0] != ranks[1] or ranks[0] < 3)):
        raise found.invalid(f"Its factors have {ranks[0]} and {ranks[1]} axes")
    for place, side in enumerate("AB"):
        factor, order = found.required(place), list(range(ranks[place]))
        if given.get(f"transBatch{side}"):  # the first axis is that of the rows, then those of batches
            order = [*order[1:-1], order[0], order[-1]]
        if given.get(f"trans{side}"):
            order[-2:] = order[:-3:-1]
        if order != sorted(order):
            factor = found.compute("Transpose", [factor], {"perm": order})
        factors.append(factor)
    product, alpha = found.compute("MatMul", factors, {}), given.get("alpha", 1.0)
    if alpha != 1.0:
        product = found.compute("Mul", [product, found.number(alpha)], {})
    found.bound(product)


def _activated(found: Decomposition, numbers: str, parameters: Sequence[float]) -> None:
    activation = found.attributes().get("activation", b"")
    if activation not in _ACTIVATIONS:
        raise found.unsupported(
            f"The compiler does not support its activation {activation[:40].decode(errors='replace')!r}"
        )
    names = _ACTIVATIONS[activation]
    if len(parameters) < len(names):
        raise found.invalid(f"Its activation {activation.decode()} has {len(parameters)} of {len(names)} parameters")
    if activation == b"Clip" and found.opset >= _BOUNDS_ARE_INPUTS:
        numbers = found.compute("Clip", [numbers, *map(found.number, parameters[:2])], {})
    elif activation:
        numbers = found.compute(activation.decode(), [numbers], dict(zip(names, parameters, strict=False)))
    found.bound(numbers)


def _convolution(found: Decomposition) -> None:
    """Decompose FusedConv: a convolution, a sum, and an activation."""
    attributes = found.attributes("activation", "activation_params")
    numbers = found.compute("Conv", [name for name in map(found.input, range(3)) if name], attributes)
    if found.input(3):
        numbers = found.compute("Add", [numbers, found.input(3)], {})
    _activated(found, numbers, found.attributes().get("activation_params", ()))


def _gemm(found: Decomposition) -> None:
    """Decompose FusedGemm; a Gemm has a third input in all opsets, which counts nothing with beta 0."""
    given, attributes = found.attributes(), found.attributes("activation", *PARAMETERS)
    if not found.input(2):
        attributes["beta"] = 0.0
    inputs = [found.required(0), found.required(1), found.input(2) or found.number(0.0)]
    numbers = found.compute("Gemm", inputs, attributes)
    _activated(found, numbers, [given[name] for name in PARAMETERS[:2] if name in given])


def _normalised_sum(op: str, biases: tuple[int, ...]) -> Decompose:
    """Return the nodes of a normalised sum; the last of `biases` is added to the sum, the others afterwards."""

    def decompose(found: Decomposition) -> None:
        if any(found.node.output[1:3]):
            raise found.unsupported("The compiler does not compute its outputs of mean and variance")
        *shifts, bias = biases
        total = found.compute("Add", [found.required(0), found.required(1)], {})
        if found.input(bias):
            total = found.compute("Add", [total, found.input(bias)], {})
        factors = [found.required(2), *(found.input(place) for place in shifts if found.input(place))]
        normal = found.compute(
            op, [total, *factors], {"axis": -1, "epsilon": found.attributes().get("epsilon", EPSILON)}
        )
        found.bound(normal)
        found.bound(total, 3)

    return decompose


DECOMPOSITIONS: Mapping[str, Decompose] = {
    "Gelu": lambda found: _gelu(found, {}),
    "BiasGelu": lambda found: _gelu(found, {}),
    "FastGelu": lambda found: _gelu(found, {"approximate": "tanh"}),
    "QuickGelu": lambda found: _gelu(found, {"alpha": found.attributes().get("alpha", 1.702)}, "Swish"),
    **dict.fromkeys(("FusedMatMul", "TransposeMatMul"), _product),
    "FusedConv": _convolution,
    "FusedGemm": _gemm,
    "SkipLayerNormalization": _normalised_sum("LayerNormalization", (3, 4)),
    "SkipSimplifiedLayerNormalization": _normalised_sum("SimplifiedLayerNormalization", (3,)),
}
