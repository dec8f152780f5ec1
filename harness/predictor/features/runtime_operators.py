"""Operators of ONNX Runtime's own, which its optimiser writes to files, as the standard operators that they compute."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from harness.predictor.features.key_parser import KeyOperator

_STANDARD: Mapping[str, tuple[str, ...]] = {
    "BiasGelu": ("Gelu",),
    "FastGelu": ("Gelu",),
    "FusedConv": ("Conv",),
    "FusedGemm": ("Gemm",),
    "FusedMatMul": ("MatMul",),
    "QuickGelu": ("Swish",),
    "SimplifiedLayerNormalization": ("RMSNormalization",),
    "SkipLayerNormalization": ("Add", "LayerNormalization"),
    "SkipSimplifiedLayerNormalization": ("Add", "RMSNormalization"),
    "TransposeMatMul": ("MatMul",),
}


def as_standard(operators: Iterable[KeyOperator]) -> tuple[KeyOperator, ...]:
    """Return operators of the runtime's own as standard ones, an activation that one applies as another operator."""
    found = []
    for operator in operators:
        if operator.op not in _STANDARD:
            found.append(operator)
            continue
        *before, last = _STANDARD[operator.op]
        found += [replace(operator, op=name, reads=operator.reads[:2], tensors=operator.tensors[:2]) for name in before]
        found.append(replace(operator, op=last))
        if operator.op in ("FusedConv", "FusedGemm") and "activation" in operator.attributes:
            found.append(KeyOperator(operator.attributes["activation"], operator.label, (), (), {}))
    return tuple(found)
