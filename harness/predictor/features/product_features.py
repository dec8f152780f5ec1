"""Features of convolutions, matrix products and recurrent layers: loop nests with what is fused into them."""

import math
from dataclasses import replace

from harness.network.network import BYTES, ITEM_BYTES
from harness.network.operator_kinds import CONVOLUTIONS, GATES, RESCALING_PRODUCTS, weight_slot
from harness.predictor.features.data_movement_classes import CONVERSIONS, between_conversions, type_suffix
from harness.predictor.features.key_parser import (
    ATTENTION,
    COPIES,
    VIEWS,
    KeyOperator,
    MalformedKey,
    ParsedKey,
    Tensor,
    product_of,
    windowed,
)
from harness.predictor.features.layer_features import (
    DEQUANTISED,
    FLOAT_WEIGHTS,
    INTEGER,
    MULTIPLIED,
    NARROW,
    PACKED,
    RECURRENT,
    UNSIGNED,
    LayerFeatures,
    axes_suffix,
    plane_of,
    reads_blocks,
    recurrent,
    unfolding,
)
from harness.predictor.features.operator_names import names_of

_PACKED_PRODUCT = "MatMulNBits"
_COMPOSITE = ATTENTION | {"Einsum"}
"""Products that runtimes compute along with transpositions or a Softmax, which their classes name."""
_ON_INTEGERS = frozenset({"MatMulInteger", "MatMulIntegerToFloat", "QLinearMatMul", "QGemm"})
_MATRIX_OPERATORS = _COMPOSITE | _ON_INTEGERS | {"Gemm", "MatMul", _PACKED_PRODUCT}
_ABSORBED = CONVERSIONS | {"BatchNormalization", "Affine"}
_ON_BYTES = 4
"""The accuracy level at which packed products are computed on bytes."""


def loop_nest(layer: ParsedKey) -> LayerFeatures | None:
    """Return the features of the first operator of a layer that multiplies by weights or activations; None without one.

    Raises MalformedKey and UsageError for a layer that contradicts itself.
    """
    for place, operator in enumerate(layer.operators):
        weight = weight_slot(operator.op)
        if operator.op in CONVOLUTIONS and len(operator.tensors) > weight:
            found = _convolution(layer, place, operator.tensors[weight])
        elif operator.op in _MATRIX_OPERATORS and len(operator.tensors) > weight:
            found = _product(layer, place, operator.tensors[weight])
        else:
            found = _recurrent(operator) if operator.op in GATES else None
        if found is not None:
            return found
    return None


def _convolution(layer: ParsedKey, place: int, weight: Tensor) -> LayerFeatures | None:
    operator = layer.operators[place]
    data, result = operator.tensors[0], layer.outputs[0]
    transposed = operator.op == "ConvTranspose"
    if data.shape is None or weight.shape is None or min(len(data.shape), len(weight.shape)) < 3:
        return None
    out = windowed(operator, data.shape) or result.shape
    groups = operator.number("group", 1)
    if groups < 1:
        raise MalformedKey(f"{operator.op} has {groups} groups")
    if out is None or len(out) != len(data.shape) or data.shape[1] % groups:
        return None
    in_channels, out_channels = data.shape[1], weight.shape[1] * groups if transposed else weight.shape[0]
    kind = "transposed" if transposed else "dense" if groups == 1 else "grouped"
    kind = "depthwise" if 1 < groups == in_channels and not transposed else kind
    spatial = len(data.shape) - 2
    typed = _typed(layer, operator, kind, spatial)
    if kind == "depthwise" and (typed == NARROW or (out_channels > groups and not typed)):
        kind, typed = MULTIPLIED, ""
    in_size, out_size = plane_of(data.shape[2:]), plane_of(out[2:])
    kernel, stride = plane_of(weight.shape[2:]), plane_of(operator.per_axis("strides", spatial, 1, least=1))
    dilation = plane_of(operator.per_axis("dilations", spatial, 1, least=1))
    result_elements = 0
    if transposed:
        # A product of matrices gives all taps of each input pixel, as if they were channels; then taps are added up.
        result_elements = math.prod(out)
        out_channels, out_size = out_channels * math.prod(kernel), in_size
        kernel = stride = dilation = (1, 1)
    return LayerFeatures(
        operator="/".join(("mac", "conv", kind + typed, _suffix(layer, place))),
        batch=data.shape[0],
        in_channels=in_channels,
        out_channels=out_channels,
        in_size=in_size,
        out_size=out_size,
        kernel=kernel,
        stride=stride,
        groups=groups,
        weight_elements=math.prod(weight.shape),
        extra_operands=_extra_operands(layer, place, math.prod(out)),
        element_bytes=ITEM_BYTES.get(data.dtype, 4),
        dilation=dilation,
        result_elements=result_elements,
    )


def _product(layer: ParsedKey, place: int, right: Tensor) -> LayerFeatures | None:
    operator = layer.operators[place]
    left = operator.tensors[0]
    suffix = _weights_suffix(layer, operator, right)
    if operator.op == _PACKED_PRODUCT:
        right = replace(right, shape=(operator.number("K", 1), operator.number("N", 1)))
    if not left.shape or not right.shape:
        return None
    found = product_of(operator, left.shape, right.shape)
    if found is None:
        return None
    if not found.macs:
        raise MalformedKey(f"{operator.op} multiplies nothing")
    results = found.batch * found.rows * found.columns
    # A right-hand side from another layer is in the memory of activations, and is read like them.
    factors = [right, *(operator.tensors[2:] if operator.op == "Einsum" else ())]
    weights = sum(math.prod(one.shape or ()) for one in factors if one.constant)
    computed = sum(math.prod(one.shape or ()) for one in factors if not one.constant)
    kind = "weights" if weights else "activations"
    return LayerFeatures(
        operator="/".join(("mac", "product", kind + suffix + _signed(operator, left), _suffix(layer, place))),
        batch=1,
        in_channels=found.batch * found.depth,
        out_channels=found.batch * found.columns,
        in_size=(found.rows, 1),
        out_size=(found.rows, 1),
        groups=found.batch,
        weight_elements=weights,
        extra_operands=-(-computed // results) + _extra_operands(layer, place, results),
        element_bytes=ITEM_BYTES.get(left.dtype, 4),
    )


def _recurrent(operator: KeyOperator) -> LayerFeatures | None:
    """Return the features of a recurrent layer."""
    shapes = [operator.tensor(slot).shape or () for slot in range(3)]
    if any(len(shape) != 3 for shape in shapes):
        return None
    (steps, batch, _), (directions, columns, inputs), (_, _, state) = shapes
    if operator.number("layout", 0):  # the batch is the first axis
        steps, batch = batch, steps
    sizes = {"inputs": inputs, "state": state, "columns": columns, "directions": directions}
    found = recurrent(operator.op, steps=steps, batch=batch, **sizes)
    data = operator.tensors[0].dtype
    path = f"{RECURRENT}{type_suffix(data)}/{operator.op}"
    return replace(found, operator=path, element_bytes=ITEM_BYTES.get(data, 4))


def _typed(layer: ParsedKey, convolution: KeyOperator, kind: str, axes: int) -> str:
    """Return what sets the code for other axes or types apart; sums that stay integers also use different code.

    Kernels on bytes read windows by their places, which takes as long with any number of axes.
    """
    data, weight = convolution.tensors[0], convolution.tensors[weight_slot(convolution.op)]
    if convolution.op == "ConvInteger":
        return INTEGER if weight.dtype == "int8" else INTEGER + UNSIGNED
    if data.dtype not in BYTES or not data.shape or not weight.shape:
        # No runtime arranges the weights of transposed ones beforehand: to make them floats takes little more.
        suffix = "" if kind == "transposed" else _weights_suffix(layer, convolution, weight)
        found = suffix + axes_suffix(axes) + type_suffix(data.dtype)
        outputs, inputs, *_ = weight.shape or (1, 1)
        in_blocks = reads_blocks(kind, inputs, outputs, convolution.number("group", 1))
        return found if found or in_blocks else NARROW
    rounded = FLOAT_WEIGHTS if weight.dtype == "float32" else ""
    unfolded = unfolding(kind, data.shape[1], weight.shape[0], unsigned=weight.dtype == "uint8")
    return unfolded + rounded + _signed(convolution, data)


def _weights_suffix(layer: ParsedKey, operator: KeyOperator, weight: Tensor) -> str:
    """Return the suffix of a product for the type of its weights.

    Where data are floats, runtimes make weights of integers floats at each run, or unpack blocks of them as they
    multiply. Unsigned weights have other kernels.
    """
    if not operator.tensors[0].dtype.startswith("float"):
        kinds = {"uint8": UNSIGNED, "float32": FLOAT_WEIGHTS}
        return kinds.get(weight.dtype, "") if weight.constant else ""
    if not weight.dtype.startswith(("int", "uint")):
        return ""
    if operator.op == _PACKED_PRODUCT:
        on = "-int8" if operator.number("accuracy_level", 0) == _ON_BYTES else ""
        return f"-packed{operator.number('bits', 4)}{on}"
    blocks = any(one.op == "DequantizeLinear" and one.number("block_size", 0) for one in layer.operators)
    return PACKED if blocks and weight.dtype in ("int4", "uint4") else DEQUANTISED


def _signed(operator: KeyOperator, data: Tensor) -> str:
    """Return the suffix of a type; runtimes shift signed bytes to unsigned ones, but not in operators on integers."""
    return "-signed" if operator.op in RESCALING_PRODUCTS and data.dtype == "int8" else type_suffix(data.dtype)


def _suffix(layer: ParsedKey, place: int) -> str:
    """Return the finest levels of a class: operators around the product that no weights absorb, then copies."""
    named = [one for at, one in enumerate(layer.operators) if at != place or one.op in _COMPOSITE]
    beside = between_conversions(named)
    others = [operator for operator in beside if operator.op not in VIEWS]
    computed = [operator for operator in others if operator.op not in COPIES and not _is_sum(operator)]
    copied = sorted({operator.op for operator in others if operator.op in COPIES})
    names = [name for name in names_of(computed) if name not in _ABSORBED]
    return "/".join(["+".join(names) or "plain", *(["+".join(copied)] if copied else [])])


def _is_sum(operator: KeyOperator) -> bool:
    return operator.op in ("Add", "Sum") and not any(tensor.constant for tensor in operator.tensors)


def _extra_operands(layer: ParsedKey, place: int, elements: int) -> int:
    """Count the further tensors of the result's size that operators after the product read from outside."""
    behind = layer.operators[place + 1 :]
    reads = {read for operator in behind for read in operator.reads if read.startswith("x")}
    return sum(math.prod(layer.inputs[int(read[1:])].shape or ()) >= elements for read in sorted(reads))
