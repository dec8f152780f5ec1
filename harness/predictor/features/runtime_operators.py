"""Operators that no space has, ONNX Runtime's own among them, as usual operators that compute the same."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from harness.predictor.features.key_parser import SAMPLING, KeyOperator, ParsedKey, Tensor

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
_LOG_SUM = "ReduceLogSumExp"
_USUAL_SAMPLES = 2
"""Samples along each axis of a pixel of RoiAlign if the sizes of the regions determine them."""


def in_usual_operators(layer: ParsedKey) -> ParsedKey:
    """Return a layer of usual operators; an activation that one applies is another operator.

    A RoiAlign reads several samples of the map for each pixel of the result, as a GridSample of a larger one. A
    ReduceLogSumExp computes as much as a LogSoftmax of what it reads.
    """
    outputs = layer.outputs
    for operator in layer.operators:
        if operator.op == _LOG_SUM:
            outputs = (replace(outputs[0], shape=operator.tensor(0).shape), *outputs[1:])
        if operator.op == "RoiAlign" and outputs[0].shape:
            (ratio,) = operator.per_axis("sampling_ratio", 1, 0, least=0)
            samples = ratio or _USUAL_SAMPLES
            *first, width = outputs[0].shape
            outputs = (replace(outputs[0], shape=(*first, width * samples**2)), *outputs[1:])
    operators = tuple(usual for operator in layer.operators for usual in _as_usual(operator))
    return replace(layer, operators=operators, outputs=outputs)


def _as_usual(operator: KeyOperator) -> Iterator[KeyOperator]:
    if operator.op == _LOG_SUM:
        axis = operator.numbers("axes", (-1,))[-1]
        yield replace(operator, op="LogSoftmax", attributes={"axis": str(axis)})
    elif operator.op == "RoiAlign":
        yield replace(operator, op=SAMPLING)
    elif operator.op == "ReverseSequence":  # picks rows by the places of a step and of a sequence
        table, lengths = (operator.tensor(slot) for slot in (0, 1))
        places = replace(lengths, shape=(2,))
        yield replace(operator, op="GatherND", reads=operator.reads[:2], tensors=(table, places))
    elif operator.op.endswith("ArrayFeatureExtractor"):  # picks columns
        yield replace(operator, op="Gather", attributes={"axis": str(len(operator.tensor(0).shape or (1,)) - 1)})
    elif operator.op == "RotaryEmbedding":
        rows = _rotated(operator)
        reads = (operator.reads[0], "c:")
        yield from (replace(operator, op=name, reads=reads, tensors=rows) for name in ("Mul", "Add"))
    elif operator.op == "Einsum" and len(operator.tensors) == 1:
        yield _of_one_operand(operator)
    elif operator.op in _STANDARD:
        *before, last = _STANDARD[operator.op]
        for name in before:
            yield replace(operator, op=name, reads=operator.reads[:2], tensors=operator.tensors[:2])
        yield replace(operator, op=last)
        if operator.op in ("FusedConv", "FusedGemm") and "activation" in operator.attributes:
            yield KeyOperator(operator.attributes["activation"], operator.label, (), (), {})
    else:
        yield operator


def _rotated(rotary: KeyOperator) -> tuple[Tensor, ...]:
    """Return the rows of all heads that a RotaryEmbedding turns, and a tensor that changes with each."""
    data = rotary.tensor(0)
    tables = [one.shape[-1] for one in rotary.tensors[1:] if one.shape and one.dtype == data.dtype]
    size = 2 * min(tables, default=1)
    rows = max(1, math.prod(data.shape or ()) // size)
    return replace(data, shape=(rows, size)), replace(data, shape=(rows, 1), constant=True)


def _of_one_operand(einsum: KeyOperator) -> KeyOperator:
    """Return an Einsum of one operand, without an ellipsis or a diagonal, as a transposition or a sum."""
    read, arrow, written = einsum.attributes.get("equation", "").replace(" ", "").partition("->")
    written = written if arrow else "".join(sorted(read))
    if not read.isalpha() or len(set(read)) < len(read) or not set(written) <= set(read):
        return einsum
    if len(written) == len(read):
        return replace(einsum, op="Transpose", attributes={"perm": ",".join(str(read.index(one)) for one in written)})
    axes = ",".join(str(axis) for axis, label in enumerate(read) if label not in written)
    return replace(einsum, op="ReduceSum", attributes={"axes": axes})
