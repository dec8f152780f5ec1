"""Classes of layers without a product of matrices: what they do with memory, the kind of their arithmetic, their names.

A path such as `move/map/simple/Add+Relu`. Layers of one kind run similar loops and are learnt together. An operator
without entries is predicted from others of its kind, and an operator of no known kind only from entries of its own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from harness.network.operator_kinds import SCALING, WINDOWED_POOLS
from harness.predictor.features.key_parser import COPIES, PICKING, SCATTERS, VIEWS, KeyOperator
from harness.predictor.features.layer_features import axes_suffix

COPY = "move/copy/"
"""The beginning of the paths of layers that only copy."""
MAP = "move/map/"
"""That of layers that compute each element from one of each operand."""
NORM = "move/norm/"
"""The beginning of the paths of layers that normalise, along the last axis as a rule."""
AVERAGE = "move/window/average"
"""That of pools that average bytes."""
_REDUCED, _COLUMNS = "move/reduce/axes/", "move/reduce/columns/"
_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Affine", "Sum", "Mean", "Min", "Max", "Neg", "Abs", "Sign"})
_ROUNDING = frozenset({"Floor", "Ceil", "Round", "Clip", "BatchNormalization"})
_RECTIFIERS = frozenset({"Relu", "LeakyRelu", "ThresholdedRelu", "HardSigmoid", "HardSwish"})
_COMPARISONS = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "IsNaN", "IsInf"})
_LOGIC = frozenset({"Not", "And", "Or", "Xor", "Where"})
_SIMPLE = _ARITHMETIC | _ROUNDING | _RECTIFIERS | _COMPARISONS | _LOGIC
_DIVISIONS = frozenset({"Div", "Reciprocal", "Sqrt"})
"""What takes several times as long as a product: a vector unit computes the digits of a result in turn."""
_CURVES = frozenset({"Sigmoid", "Tanh", "Erf", "Gelu", "Swish", "Softsign", "Exp", "Pow"})
_EXPONENTIALS = frozenset({"Softplus", "Mish", "Elu", "Selu", "Celu", "Log", "Sinh", "Cosh"})
_SCALAR = _EXPONENTIALS | {"Atan", "Asin", "Acos"}
"""Curves that runtimes compute an element at a time: each takes many times as long as those of `_CURVES`."""
_PERIODIC = frozenset({"Sin", "Cos", "Tan"})
"""Curves of which runtimes first find the period: on cpu01 an element takes 10 times as long as an Exp of one, and a
sixth of a Softplus."""
_SOFTMAX = frozenset({"Softmax", "Softmax-12", "LogSoftmax", "LogSoftmax-12"})
_MOMENTS = frozenset(
    {"LayerNormalization", "InstanceNormalization", "GroupNormalization", "RMSNormalization", "LpNormalization"}
)
INTERPOLATE = "Interpolate"
"""The name of an operator of `SCALING` that computes pixels instead of repeating them."""
ROWS = "Rows"
"""The name of a Transpose that moves rows of several elements, which are copied one after another."""
SELECT = "Slice"
"""The name of a Gather with one constant index, which copies a part of its input, too."""
COMBINE = "Combine"
"""The name of a scattering that combines its updates with what lies at their places."""
PICKED, SCATTERED = f"{COPY}picked/", f"{COPY}scattered/"
"""The beginnings of the paths of layers that read rows or elements of a table, and of those that write them."""
_COPYING = {
    "interpolate": frozenset({INTERPOLATE}),
    "scale": SCALING,
    "picked": PICKING - SCATTERS,
    "scattered": SCATTERS | {COMBINE},
    "order": frozenset({"Transpose", ROWS, "Permute", "DepthToSpace", "SpaceToDepth"}),
}
CONVERSIONS = frozenset({"QuantizeLinear", "DequantizeLinear"})
"""What devices compute as part of an operator on integers that is between them."""
_ON_INTEGERS = "QLinear"
"""What the names of a runtime's operators on integers begin with."""
_DATA = {"QLinearConcat": slice(2, None, 3), "QLinearWhere": slice(1, -2, 3)}
"""Where data is among scales and zero points; other operators have the result's two at the end."""
_ORDINARY = ("float32", "int64", "int32", "bool")


def between_conversions(operators: Iterable[KeyOperator]) -> tuple[KeyOperator, ...]:
    """Return each operator on integers as that on floats, without scales and zero points, and a conversion."""
    found = []
    for operator in operators:
        if not operator.op.startswith(_ON_INTEGERS):
            found.append(operator)
            continue
        data = _DATA.get(operator.op, slice(0, -2, 3))
        name, reads, tensors = operator.op.removeprefix(_ON_INTEGERS), operator.reads[data], operator.tensors[data]
        found.append(replace(operator, op=name, reads=reads, tensors=tensors))
        found.append(KeyOperator("QuantizeLinear", operator.label, (), (), {}))
    return tuple(found)


def class_of_mover(names: Sequence[str], dtype: str = "float32", axes: int = 2) -> str:
    """Return the path of a layer of these operators; `dtype` is the element type that it reads.

    `axes` counts the spatial axes of the map of a pool. Chains of operators that a device runs as one have one name,
    such as Gelu; see `describe`.
    """
    own = [name for name in names if name not in CONVERSIONS] or list(names)
    if CONVERSIONS.issuperset(own) and dtype.endswith("int16"):
        dtype = "int8"  # to make floats of 16 bits takes as long
    group, kind = _group_and_kind(frozenset(own))
    if group == "view":
        return f"move/view/any/{'+'.join(own)}"
    copies = group == "copy" and len(own) == len(names)
    typed = "" if dtype in _ORDINARY or group == "copy" else type_suffix(dtype)
    suffix = "" if copies else type_suffix(dtype)
    if group == "window":  # averages of bytes are computed an element at a time, maxima in vectors
        kind = ("average" if typed == "-int8" and "AveragePool" in own else kind) + axes_suffix(axes)
    return f"move/{group}/{kind}{typed}/{'+'.join(name + suffix for name in own)}"


def along_columns(path: str) -> str:
    """Return the path of a layer that keeps its last axis: a reduction of others adds up rows, not their elements."""
    return path.replace(_REDUCED, _COLUMNS, 1)


def type_suffix(dtype: str) -> str:
    """Return what sets the class of code for another element type apart; signed and unsigned bytes are alike."""
    return "" if dtype == "float32" else f"-{dtype.removeprefix('u')}"


def _group_and_kind(names: frozenset[str]) -> tuple[str, str]:
    """Return what a layer does with memory, and its kind; the operator that takes longest decides."""
    computing = names - VIEWS
    if not computing:
        return "view", ""
    if computing <= COPIES | {"Permute", ROWS, INTERPOLATE, COMBINE}:
        return "copy", next((kind for kind, operators in _COPYING.items() if computing & operators), "rows")
    computing -= COPIES
    if computing & (_SOFTMAX | _MOMENTS | {"LRN"}):
        moments = "sums" if "Add" in computing else "moments"
        return "norm", "softmax" if computing & _SOFTMAX else moments if computing & _MOMENTS else "LRN"
    if computing & WINDOWED_POOLS:
        return "window", "pool"
    if found := sorted(name for name in computing if name.startswith(("Reduce", "Global", "Arg"))):
        return "reduce", "places" if found[0].startswith("Arg") else "axes"
    return "map", _arithmetic(computing)


def _arithmetic(names: Iterable[str]) -> str:
    own = sorted(names)
    if any(name.endswith("Linear") for name in own):
        return "quantised"
    strange = [name for name in own if name not in _SIMPLE | _DIVISIONS | _CURVES | _SCALAR | _PERIODIC]
    kinds = {"scalar": _SCALAR, "periodic": _PERIODIC, "curve": _CURVES, "division": _DIVISIONS}
    return strange[0] if strange else next((kind for kind, ops in kinds.items() if ops.intersection(own)), "simple")
