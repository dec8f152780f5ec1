"""Parse a layer's key into its inputs, operators and outputs, and infer the shapes between operators.

The key may come from a table that somebody else wrote: whatever `layer_key` cannot have written is a MalformedKey.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass

from harness.network.effort import GROUPED, HEADS, products_of_read
from harness.network.einsum import MatrixProducts, einsum_product
from harness.network.key import KEY_VERSION
from harness.network.network import ITEM_BYTES, PACKED
from harness.network.operator_kinds import CONVOLUTIONS, SCALING, WINDOWED, weight_slot

Shape = tuple[int, ...]

MOST_ELEMENTS = 1 << 50
"""Elements of the largest tensor of a key: products of a few of them are exact enough as floating-point numbers."""
_MOST_DIGITS = 18
_MOST_AXES = 64
_TYPE = re.compile(r"(\w+)\[([\d,]*)\]")
_OPERATOR = re.compile(r"([\w.-]+)\((.*)\)\{(.*)\}", re.DOTALL)
_WITHOUT_SHAPE = re.compile(r"_|t\d+\.\d+|c:.*", re.DOTALL)
"""What an operator may read besides inputs and first results: an absent input, a further result, another constant."""
_NUMBERS = re.compile(r"-?\d+(,-?\d+)*")
_BETWEEN_ARGUMENTS = re.compile(r",(?=x\d|t\d|c:|_)")
_RUNTIME_DOMAIN = "com.microsoft."
"""The prefix of the names of ONNX Runtime's own operators."""
_QUANTISING = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})
VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"})
_RESHAPING = frozenset({"Expand", "Tile", "DepthToSpace", "SpaceToDepth"}) | SCALING
SCATTERS = frozenset({"Scatter", "ScatterND", "ScatterElements"})
PICKING = frozenset({"Gather", "GatherND", "GatherElements"}) | SCATTERS
"""Operators that copy elements or rows from or to places given by another tensor; `SCATTERS` write to them."""
SAMPLING = "GridSample"
"""The operator that reads pixels of a map, as many as its result has, at places given by another tensor."""
ATTENTION = frozenset({"Attention", "MultiHeadAttention", GROUPED})
COPIES = frozenset({"Concat", "Split", "Transpose", "Slice", "Pad", "Cast"}) | PICKING | _RESHAPING


class MalformedKey(ValueError):
    """The text is not a key: its parts contradict each other, or a size is out of range."""


@dataclass(frozen=True)
class Tensor:
    """Element type and shape; `shape` is None where it cannot be inferred."""

    dtype: str
    shape: Shape | None
    constant: bool = False
    values: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        """Size in bytes, 0 where the shape is unknown."""
        elements = 0 if self.shape is None else math.prod(self.shape)
        return -(-elements * ITEM_BYTES.get(self.dtype, 4) // PACKED.get(self.dtype, 1))


@dataclass(frozen=True)
class KeyOperator:
    """One operator of a layer with the tensors it reads."""

    op: str
    label: str
    reads: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    attributes: dict[str, str]

    @property
    def activations(self) -> tuple[Tensor, ...]:
        """The tensors that are not constant."""
        return tuple(tensor for tensor in self.tensors if not tensor.constant)

    def numbers(self, name: str, default: Shape) -> Shape:
        """Return an attribute of integers, or the default; raises MalformedKey for integers of very many digits."""
        text = self.attributes.get(name, "")
        return _whole_numbers(text) if _NUMBERS.fullmatch(text) else default

    def number(self, name: str, default: int) -> int:
        """Return an attribute of one integer, or the default; raises MalformedKey for several."""
        (number,) = self.per_axis(name, 1, default)
        return number

    def per_axis(self, name: str, axes: int, default: int, least: int | None = None) -> Shape:
        """Return an attribute with one integer per axis; raises MalformedKey for another number, or one below `least`.

        `default` is used for each axis if the operator does not have the attribute.
        """
        found = self.numbers(name, (default,) * axes)
        if len(found) != axes or (least is not None and found and min(found) < least):
            raise MalformedKey(f"{name} of {self.op} does not fit its input")
        return found

    def tensor(self, slot: int) -> Tensor:
        """Return the tensor that the operator reads in this place; raises MalformedKey if it reads fewer."""
        if slot >= len(self.tensors):
            raise MalformedKey(f"{self.op} lacks an input")
        return self.tensors[slot]


@dataclass(frozen=True)
class ParsedKey:
    """A parsed key: inputs, operators in order, outputs."""

    inputs: tuple[Tensor, ...]
    operators: tuple[KeyOperator, ...]
    outputs: tuple[Tensor, ...]


def parse_key(text: str) -> ParsedKey | None:
    """Parse a key's text; None if it is not a key of this version. Raises MalformedKey if its parts contradict."""
    version, *parts = text.split("|")
    if version != KEY_VERSION or not parts or not parts[-1].startswith("->"):
        return None
    known: dict[str, Tensor] = {}
    inputs: list[Tensor] = []
    operators: list[KeyOperator] = []
    for part in parts[:-1]:
        name, colon, kind = part.partition(":")
        if colon and re.fullmatch(r"x\d+", name):
            tensor = _tensor(kind)
            if tensor is None or name != f"x{len(inputs)}":
                return None
            known[name] = tensor
            inputs.append(tensor)
            continue
        operator = _operator(part, len(operators), known)
        if operator is None:
            return None
        known[operator.label] = _result(operator)
        operators.append(operator)
    outputs = [_tensor(kind.split(":", 1)[-1]) for kind in re.split(r",(?=t\d|x\d)", parts[-1][2:])]
    written = tuple(tensor for tensor in outputs if tensor is not None)
    return ParsedKey(tuple(inputs), tuple(operators), written) if operators and written else None


def _tensor(text: str, constant: bool = False) -> Tensor | None:
    found = _TYPE.match(text)
    if found is None:
        return None
    given = text[found.end() :].removeprefix("?").partition("=")[2]
    values = tuple(_rounded(part) for part in given.split(",")) if given and found[1].startswith("int") else ()
    shape = _whole_numbers(found[2]) if found[2] else ()
    _check_shape(shape)
    return Tensor(found[1], shape, constant, values)


def _check_shape(shape: Shape) -> None:
    """Raise MalformedKey for a size below 1 or huge: operators that read their results twice would double them."""
    if len(shape) > _MOST_AXES or min(shape, default=1) < 1 or math.prod(shape) > MOST_ELEMENTS:
        raise MalformedKey("a tensor has a size out of range")


def _whole_numbers(text: str) -> Shape:
    parts = text.split(",")
    if not all(0 < len(part) <= _MOST_DIGITS for part in parts):
        raise MalformedKey("a number has no digits, or too many")
    return tuple(int(part) for part in parts)


def _rounded(text: str) -> int:
    """Return a constant's value; keys hold six digits of it, as in 9.22337e+18."""
    try:
        return int(float(text))
    except (ValueError, OverflowError) as error:
        raise MalformedKey(f"a constant's value is {text[:40]!r}") from error


def _operator(text: str, place: int, known: dict[str, Tensor]) -> KeyOperator | None:
    # Without the brace at the end, the pattern would try every pair of brackets before it fails.
    found = _OPERATOR.fullmatch(text) if text.endswith("}") else None
    if found is None:
        return None
    op, arguments, attributes = found.groups()
    op = op.removeprefix(_RUNTIME_DOMAIN)
    reads = tuple(_BETWEEN_ARGUMENTS.split(arguments)) if arguments else ()
    tensors = []
    for read in reads:
        tensor = _tensor(read[2:], constant=True) if read.startswith("c:") else known.get(read)
        if tensor is None and not _WITHOUT_SHAPE.fullmatch(read):
            raise MalformedKey(f"{op} reads {read[:40]!r}, which nothing writes")
        tensors.append(tensor or Tensor("float32", None, constant=read == "_"))
    values = dict(part.split("=", 1) for part in attributes.split(";") if "=" in part)
    return KeyOperator(op, f"t{place}", reads, tuple(tensors), values)


def _result(operator: KeyOperator) -> Tensor:
    """Return an operator's first result, with its shape where it follows from the inputs.

    What a DequantizeLinear returns keeps the type of its integers: devices multiply these. A result of constants is a
    constant too: weights that a caller may replace are transposed at each inference.
    """
    given = [tensor for tensor in operator.tensors if tensor.shape is not None]
    table = operator.tensors[:1] if operator.op == "Gather" else ()
    first = next(iter((*table, *operator.activations, *given)), Tensor("float32", None))
    if operator.op == "DequantizeLinear" and operator.tensors and operator.tensors[0].constant:
        return operator.tensors[0]  # a weight, which the operator that reads it may read as integers
    shape = _result_shape(operator, first.shape)
    if shape is not None:
        _check_shape(shape)
    dtype = first.dtype
    if operator.op in _QUANTISING:
        dtype = next((tensor.dtype for tensor in operator.tensors[2:] if tensor.shape is not None), "uint8")
    return Tensor(dtype, shape, constant=first.constant and not operator.activations)


def _result_shape(operator: KeyOperator, read: Shape | None) -> Shape | None:
    if operator.op in WINDOWED:
        return windowed(operator, read)
    if operator.op in ("MatMul", "MatMulInteger", "Gemm"):
        left, right = operator.tensor(0).shape, operator.tensor(1).shape
        return (*left[:-1], columns_of(operator, right)) if left and right else None
    if read is None:
        return None
    if operator.op == "Reshape":
        return _reshaped(read, operator.tensors[1].values) if len(operator.tensors) > 1 else None
    if operator.op == "Pad":
        return _padded(read, operator.tensors[1].values) if len(operator.tensors) in (2, 3) else None
    if operator.op == "Transpose":
        order = operator.numbers("perm", tuple(range(len(read)))[::-1])
        if sorted(order) != list(range(len(read))):
            raise MalformedKey("perm of Transpose does not fit its input")
        return tuple(read[axis] for axis in order)
    if operator.op in ("Flatten", "Concat", "Gather"):
        return _along_axis(operator, read)
    if operator.op == "Squeeze":
        return tuple(size for place, size in enumerate(read) if place not in operator.numbers("axes", ()))
    if operator.op.startswith("Global"):
        return (*read[:2], *(1 for _ in read[2:]))
    if operator.op in VIEWS | COPIES or operator.op.startswith("Reduce"):
        return None
    return max((tensor.shape for tensor in operator.tensors if tensor.shape is not None), key=math.prod)


def _along_axis(operator: KeyOperator, read: Shape) -> Shape | None:
    """Return the result's shape of an operator with the attribute `axis`; None where it does not follow."""
    axis, last = operator.number("axis", 0), len(read) - (operator.op != "Flatten")
    if not 0 <= axis <= last:
        raise MalformedKey(f"axis of {operator.op} does not fit its input")
    if operator.op == "Flatten":
        return (math.prod(read[:axis]), math.prod(read[axis:]))
    if operator.op == "Gather":
        index = operator.tensors[1].shape if len(operator.tensors) > 1 else None
        return None if index is None else (*read[:axis], *index, *read[axis + 1 :])
    shapes = [tensor.shape for tensor in operator.tensors if tensor.shape]
    if len(shapes) < len(operator.tensors):
        return None
    if {len(shape) for shape in shapes} != {len(read)}:
        raise MalformedKey("inputs of Concat have different numbers of axes")
    return (*read[:axis], sum(shape[axis] for shape in shapes), *read[axis + 1 :])


def macs_of(operator: KeyOperator) -> int | None:
    """Return the multiply-adds of an Einsum, of attention, or of a recurrent layer; None if a size is not known."""
    attributes = operator.attributes | {name: operator.number(name, 0) for name in HEADS}
    return products_of_read(operator.op, attributes, [tensor.shape for tensor in operator.tensors])


def product_of(operator: KeyOperator, left: Shape, right: Shape) -> MatrixProducts | None:
    """Return the products that an operator computes; None if it has none.

    Raises MalformedKey for shapes that contradict each other.
    """
    if operator.op == "Einsum":
        operands = [tensor.shape for tensor in operator.tensors if tensor.shape is not None]
        return einsum_product(operator.attributes.get("equation", ""), operands)
    if operator.op in ATTENTION:  # as one product of its multiply-adds, each row with a query
        rows, columns = math.prod(left[:-1]), left[-1]
        macs = macs_of(operator) or 0
        return MatrixProducts(1, rows, macs // (rows * columns), columns)
    if len(right) < 2:
        return None
    columns = columns_of(operator, right)
    depth = right[-2] * right[-1] // columns
    batch, read = _products_of(left, right)
    return MatrixProducts(batch, math.prod(read) // depth, depth, columns)


def _products_of(left: Shape, right: Shape) -> tuple[int, Shape]:
    """Return how many products of matrices a MatMul computes, and the shape of the left matrix of each.

    Left matrices that are all multiplied by the same right one count as one matrix.
    """
    if math.prod(right[:-2]) == 1:
        return 1, left
    sizes = itertools.zip_longest(reversed(left[:-2]), reversed(right[:-2]), fillvalue=1)
    return math.prod(map(max, sizes)), left[-2:]


def columns_of(operator: KeyOperator, right: Shape) -> int:
    """Return the columns of a matrix product, from the shape of its right-hand side."""
    if operator.attributes.get("transB") != "1":
        return right[-1]
    if len(right) < 2:
        raise MalformedKey(f"the right-hand side of {operator.op} is not a matrix")
    return right[-2]


def windowed(operator: KeyOperator, read: Shape | None) -> Shape | None:
    """Return the output shape of a convolution or pooling; None where it does not follow from the attributes.

    Raises MalformedKey for attributes that do not fit the input.
    """
    if read is None or len(read) < 3 or operator.op == "ConvTranspose":
        return None
    spatial = len(read) - 2
    kernel = operator.per_axis("kernel_shape", spatial, 1, least=1)
    stride = operator.per_axis("strides", spatial, 1, least=1)
    dilation, pads = operator.per_axis("dilations", spatial, 1, least=1), operator.per_axis("pads", 2 * spatial, 0)
    extra = [
        read[2 + axis] + pads[axis] + pads[axis + spatial] - (kernel[axis] - 1) * dilation[axis] - 1
        for axis in range(spatial)
    ]
    up = operator.attributes.get("ceil_mode") == "1"
    sizes = [
        -(-room // stride_) + 1 if up else room // stride_ + 1 for room, stride_ in zip(extra, stride, strict=True)
    ]
    weight = operator.tensor(weight_slot(operator.op)).shape if operator.op in CONVOLUTIONS else None
    return (read[0], weight[0] if weight else read[1], *(max(1, size) for size in sizes))


def _padded(read: Shape, values: Shape) -> Shape | None:
    """Return the shape with padding, given before all axes and then after them; None without its values."""
    if len(values) != 2 * len(read):
        return None
    return tuple(size + values[axis] + values[axis + len(read)] for axis, size in enumerate(read))


def _reshaped(read: Shape, values: Shape) -> Shape | None:
    """Return the shape that a constant asks for; None if its values are not in the key."""
    if not values or len(values) > _MOST_AXES:
        return None
    sizes = [read[axis] if size == 0 and axis < len(read) else size for axis, size in enumerate(values)]
    rest = math.prod(size for size in sizes if size > 0)
    if rest > MOST_ELEMENTS:
        raise MalformedKey("a Reshape has a size out of range")
    return tuple(size if size > 0 else max(1, math.prod(read) // rest) for size in sizes)
