"""The features of a layer from its key.

A key holds everything that affects latency, so the entries of a table are enough to train on, and any layer of a
network can be predicted. Classes of operators are paths, `mac/conv/dense/Relu`: layers of one path run the same code,
layers that share only its beginning run similar code.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import replace

from harness.errors import UsageError
from harness.network.layers import FEATURE_MAP
from harness.network.network import BYTES, ITEM_BYTES, PARTIAL_READS
from harness.network.operator_kinds import CONVOLUTIONS, GATES, RESCALING_PRODUCTS, SCALING, WINDOWED_POOLS, weight_slot
from harness.predictor.features.contiguous_lengths import (
    copied_shapes,
    is_general,
    is_paged,
    moves_rows,
    normalised_rows,
    parts_of,
    reduced,
    run_of,
)
from harness.predictor.features.data_movement_classes import (
    COMBINE,
    CONVERSIONS,
    COPY,
    INTERPOLATE,
    NORM,
    PICKED,
    ROWS,
    SCATTERED,
    SELECT,
    along_columns,
    between_conversions,
    class_of_mover,
    type_suffix,
)
from harness.predictor.features.key_parser import (
    ATTENTION,
    COPIES,
    SCATTERS,
    VIEWS,
    KeyOperator,
    MalformedKey,
    ParsedKey,
    Shape,
    Tensor,
    parse_key,
    product_of,
    windowed,
)
from harness.predictor.features.layer_features import (
    DEQUANTISED,
    FLOAT_WEIGHTS,
    INTEGER,
    NARROW,
    PACKED,
    RECURRENT,
    LayerFeatures,
    Pair,
    axes_suffix,
    channelwise,
    plane_of,
    recurrent,
    unfolding,
)
from harness.predictor.features.offset_names import WIDEST
from harness.predictor.features.runtime_operators import as_standard

_PACKED_PRODUCT = "MatMulNBits"
_COMPOSITE = ATTENTION | {"Einsum"}
"""Products that runtimes compute along with transpositions or a Softmax, which their classes name."""
_ON_INTEGERS = frozenset({"MatMulInteger", "MatMulIntegerToFloat", "QLinearMatMul", "QGemm"})
_MATRIX_OPERATORS = _COMPOSITE | _ON_INTEGERS | {"Gemm", "MatMul", _PACKED_PRODUCT}
_ABSORBED = CONVERSIONS | {"BatchNormalization", "Affine"}
_ON_BYTES = 4
"""The accuracy level at which packed products are computed on bytes."""
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
_MOST_KEPT, _LONGEST_KEPT = 1 << 13, 1 << 12
"""Descriptions that stay in memory, since networks have many layers in common, and the longest text of one."""


def describe(signature: str, context: str = "", *, warm: bool = False) -> LayerFeatures | None:
    """Return the features of the layer with this key (`LayerKey.text`); None if it is not a key of this version.

    `context` is that of a table's entry, see `context_of`; `warm` is that of `LayerFeatures`.

    Every operator has features: convolutions and matrix products are loop nests, with a fused activation in the class
    and further inputs as extra operands; anything else moves bytes. A text that contradicts itself, as a forged table
    may hold, is no key; neither is that of a layer with an empty tensor.
    """
    found = _described if len(signature) + len(context) <= _LONGEST_KEPT else _described.__wrapped__
    return found(signature, context, warm)


@functools.lru_cache(_MOST_KEPT)
def _described(signature: str, context: str, warm: bool) -> LayerFeatures | None:
    try:
        parsed = parse_key(signature)
        if parsed is None:
            return None
        maps = context.partition("@")[0].split(",").count(FEATURE_MAP)
        return replace(features_of(parsed, plain=bool(context) and not maps), maps=maps, warm=warm)
    except (MalformedKey, UsageError):  # the latter from LayerFeatures, for sizes below 1 and groups that do not divide
        return None


def features_of(parsed: ParsedKey, *, plain: bool = False) -> LayerFeatures:
    """Return the features of a parsed key; raises MalformedKey and UsageError for one that contradicts itself.

    `plain` states that no input is a feature map: then the last axis of any tensor holds what lies together.
    """
    parsed = replace(parsed, operators=as_standard(parsed.operators))
    for place, operator in enumerate(parsed.operators):
        weight = weight_slot(operator.op)
        if operator.op in CONVOLUTIONS and len(operator.tensors) > weight:
            found = _convolution(parsed, place, operator.tensors[weight])
        elif operator.op in _MATRIX_OPERATORS and len(operator.tensors) > weight:
            found = _product(parsed, place, operator.tensors[weight])
        elif operator.op in GATES:
            found = _recurrent(operator)
        else:
            continue
        if found is not None:
            return found
    return _mover(replace(parsed, operators=between_conversions(parsed.operators)), plain)


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
        operator="/".join(("mac", "conv", kind + _typed(layer, operator, kind, spatial), _suffix(layer, place))),
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
    elements, results = math.prod(right.shape), found.batch * found.rows * found.columns
    # A right-hand side from another layer is in the memory of activations, and is read like them.
    operands = 0 if right.constant else -(-elements // results)
    kind = "weights" if right.constant else "activations"
    return LayerFeatures(
        operator="/".join(("mac", "product", kind + suffix + _signed(operator, left), _suffix(layer, place))),
        batch=1,
        in_channels=found.batch * found.depth,
        out_channels=found.batch * found.columns,
        in_size=(found.rows, 1),
        out_size=(found.rows, 1),
        groups=found.batch,
        weight_elements=elements if right.constant else 0,
        extra_operands=operands + _extra_operands(layer, place, results),
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
        return INTEGER if weight.dtype == "int8" else f"{INTEGER}-unsigned"
    if data.dtype not in BYTES or not data.shape or not weight.shape:
        found = _weights_suffix(layer, convolution, weight) + axes_suffix(axes) + type_suffix(data.dtype)
        return NARROW if kind == "grouped" and not found and not _fills_vectors(weight, convolution) else found
    channels = (0, 0) if weight.dtype == "uint8" else (data.shape[1], weight.shape[0])
    rounded = FLOAT_WEIGHTS if weight.dtype == "float32" else ""
    return unfolding(kind, *channels) + rounded + _signed(convolution, data)


def _fills_vectors(weight: Tensor, convolution: KeyOperator) -> bool:
    """Return whether the channels of each group, in and out, are whole vectors."""
    outputs, inputs, *_ = weight.shape or (1, 1)
    return inputs % WIDEST == outputs // convolution.number("group", 1) % WIDEST == 0


def _weights_suffix(layer: ParsedKey, operator: KeyOperator, weight: Tensor) -> str:
    """Return the suffix of a product for the type of its weights.

    Where data are floats, runtimes make weights of integers floats at each run, or unpack blocks of them as they
    multiply. Unsigned weights have other kernels.
    """
    if not operator.tensors[0].dtype.startswith("float"):
        kinds = {"uint8": "-unsigned", "float32": FLOAT_WEIGHTS}
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
    names = [name for name in _names(computed) if name not in _ABSORBED]
    return "/".join(["+".join(names) or "plain", *(["+".join(copied)] if copied else [])])


def _is_affine(operator: KeyOperator) -> bool:
    """Whether an operator only applies a constant factor, summand or divisor."""
    return operator.op in ("Add", "Mul", "Sub", "Div") and any(tensor.constant for tensor in operator.tensors)


def _is_sum(operator: KeyOperator) -> bool:
    return operator.op in ("Add", "Sum") and not any(tensor.constant for tensor in operator.tensors)


def _extra_operands(layer: ParsedKey, place: int, elements: int) -> int:
    """Count the further tensors of the result's size that operators after the product read from outside."""
    behind = layer.operators[place + 1 :]
    reads = {read for operator in behind for read in operator.reads if read.startswith("x")}
    return sum(math.prod(layer.inputs[int(read[1:])].shape or ()) >= elements for read in sorted(reads))


def _mover(layer: ParsedKey, plain: bool) -> LayerFeatures:
    """Return the features of a layer without products: the bytes it reads and writes, and its window."""
    read = max(layer.inputs, key=lambda tensor: tensor.bytes, default=layer.outputs[0])
    written = max(layer.outputs, key=lambda tensor: tensor.bytes)
    item = ITEM_BYTES.get(written.dtype, 4)
    out_shape = written.shape or (1,)
    window = next((operator for operator in layer.operators if operator.op in WINDOWED_POOLS), None)
    kernel = stride = (1, 1)
    in_shape = read.shape or (1,)
    axes = len(in_shape) - 2 if window is not None else 2
    path = class_of_mover(_names(layer.operators), read.dtype, axes)
    extra = 0
    if window is not None:
        spatial = len(in_shape) - 2
        kernel = _inside(plane_of(window.numbers("kernel_shape", (1,) * spatial)), plane_of(in_shape[2:]))
        stride = plane_of(window.numbers("strides", (1,) * spatial))
    elif path.startswith(COPY) or any(operator.op in PARTIAL_READS for operator in layer.operators):
        in_shape, out_shape = copied_shapes(layer, out_shape, tables=path.startswith((PICKED, SCATTERED)))
    elif math.prod(in_shape) > math.prod(out_shape):
        combined, plane = math.prod(in_shape) // max(1, math.prod(out_shape)), _image(in_shape)[2]
        kernel = plane if math.prod(plane) == combined else (combined, 1)
        whole, sums = reduced(layer)
        out_shape = whole if math.prod(whole) == math.prod(out_shape) else out_shape
        path = along_columns(path) if sums else path
    else:
        out_shape = next(filter(None, map(normalised_rows, layer.operators)), out_shape)
        in_shape = out_shape
        reads = [read for operator in layer.operators for read in zip(operator.reads, operator.tensors, strict=True)]
        constants = [tensor for name, tensor in reads if name.startswith("c:")]
        operands = [math.prod(tensor.shape or ()) for tensor in [*layer.inputs, *constants]]
        extra = sum(elements >= math.prod(out_shape) for elements in operands) - 1
    image = _map if window is not None else _rows if plain or path.startswith(NORM) else _image
    (*read_maps, in_size), (batch, channels, out_size) = image(in_shape), image(out_shape)
    if read_maps != [batch, channels]:  # what a reduction combines is counted in its window
        in_size = (max(1, math.prod(in_shape) // (batch * channels)), 1)
    planes = {"in_size": in_size, "out_size": out_size, "kernel": kernel, "stride": stride}
    found = channelwise(path, batch=batch, channels=channels, **planes)
    paged = any(map(is_paged, layer.operators))
    found = replace(found, extra_operands=max(0, extra), element_bytes=item)
    return replace(found, run=run_of(layer), parts=parts_of(layer), paged=paged)


def _inside(kernel: Pair, size: Pair) -> Pair:
    """Return the part of a window that a map holds: the rest of a larger one is padding, which no device reads."""
    return (max(1, min(kernel[0], size[0])), max(1, min(kernel[1], size[1])))


def _names(operators: Sequence[KeyOperator]) -> list[str]:
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
    return "Affine" if _is_affine(operator) else operator.op


def _image(shape: Shape) -> tuple[int, int, Pair]:
    """Return batch, channels and plane of a tensor; without spatial axes, the last axis is the channels."""
    return _rows(shape) if len(shape) < 4 else _map(shape)


def _map(shape: Shape) -> tuple[int, int, Pair]:
    """Return a tensor as a map of any number of axes."""
    return shape[0], shape[1], plane_of(shape[2:])


def _rows(shape: Shape) -> tuple[int, int, Pair]:
    """Return a tensor as rows of its last axis."""
    *rest, channels = shape or (1,)
    return 1, channels, (math.prod(rest), 1)
