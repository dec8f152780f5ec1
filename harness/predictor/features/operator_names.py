"""The names of operators in classes: chains that devices run as one operator have one, as has code of its own."""

import math
from collections.abc import Sequence

from harness.network.operator_kinds import SCALING
from harness.predictor.features.contiguous_lengths import is_general, moves_rows
from harness.predictor.features.data_movement_classes import COMBINE, INTERPOLATE, ROWS, SELECT
from harness.predictor.features.key_parser import SCATTERS, KeyOperator

# Chains of operators that exporters write and devices run as one operator, longest first.
_IDIOMS = (
    (("ReduceMean", "Sub", "Pow", "ReduceMean", "Add", "Sqrt", "Div", "Mul", "Add"), "LayerNormalization"),
    (("Div", "Erf", "Add", "Mul", "Mul"), "Gelu"),
    (("Mul", "Erf", "Add", "Mul", "Mul"), "Gelu"),
    (("Pow", "Mul", "Add", "Mul", "Tanh", "Add", "Mul", "Mul"), "Gelu"),
    (("Sigmoid", "Mul"), "Swish"),
    (("HardSigmoid", "Mul"), "HardSwish"),
    (("Clip",), "Relu"),
)
_POWERS = {"2": "Mul", "0.5": "Sqrt"}
"""What runtimes compute for constant exponents."""


def names_of(operators: Sequence[KeyOperator]) -> list[str]:
    """Return the names of operators, with known chains of them replaced by the operator that they compute."""
    ops = [operator.op for operator in operators]
    names = [_name(operator) for operator in operators]
    for chain, name in _IDIOMS:
        for place in range(len(ops) - len(chain) + 1):
            if tuple(ops[place : place + len(chain)]) == chain:
                ops[place : place + len(chain)] = names[place : place + len(chain)] = [name]
    return names


def _name(operator: KeyOperator) -> str:
    """Return the name of an operator, another one where its attributes select other code."""
    mode = operator.attributes.get("mode", "nearest") if operator.op in SCALING else "nearest"
    if mode != "nearest":  # a cubic pixel takes about fifty times as long as a linear one on cpu01
        return "Cubic" if mode == "cubic" else INTERPOLATE
    if is_general(operator) or operator.op in ("DepthToSpace", "SpaceToDepth"):  # these are such transpositions
        return "Permute"
    if moves_rows(operator):
        return ROWS
    if operator.op in SCATTERS and operator.attributes.get("reduction", "none") != "none":
        return COMBINE
    index = operator.tensor(1) if operator.op == "Gather" else None
    if index is not None and index.constant and index.shape is not None and math.prod(index.shape) == 1:
        return SELECT
    if operator.op == "Pow" and operator.tensor(1).constant:
        return _POWERS.get(operator.reads[1].partition("=")[2], operator.op)
    return "Affine" if _is_affine(operator) else operator.op


def _is_affine(operator: KeyOperator) -> bool:
    """Whether an operator only applies a constant factor or summand, or one divisor for all elements."""
    if operator.op == "Div":
        divisor = operator.tensor(1)
        return divisor.constant and math.prod(divisor.shape or ()) == 1
    return operator.op in ("Add", "Mul", "Sub") and any(tensor.constant for tensor in operator.tensors)
