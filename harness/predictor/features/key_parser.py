"""Parse a layer's key into its inputs, operators and outputs, and infer the shapes between operators."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from harness.network.key import KEY_VERSION
from harness.network.network import ITEM_BYTES

Shape = tuple[int, ...]

_TYPE = re.compile(r"(\w+)\[([\d,]*)\]")
_OPERATOR = re.compile(r"([\w.-]+)\((.*)\)\{(.*)\}", re.DOTALL)
_BETWEEN_ARGUMENTS = re.compile(r",(?=x\d|t\d|c:|_)")
CONVOLUTIONS = frozenset({"Conv", "ConvInteger", "QLinearConv", "ConvTranspose"})
WEIGHT_SLOT = {"QLinearConv": 3, "QLinearMatMul": 3, "QGemm": 3}
WINDOWS = frozenset({"MaxPool", "AveragePool", "LpPool"})
VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"})
_RESHAPING = frozenset({"Expand", "Resize", "Upsample", "Tile", "DepthToSpace", "SpaceToDepth"})
COPIES = frozenset({"Concat", "Split", "Transpose", "Slice", "Gather", "Pad", "Cast"}) | _RESHAPING


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
        return (math.prod(self.shape) if self.shape is not None else 0) * ITEM_BYTES.get(self.dtype, 4)


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
        """Return an attribute of integers, or the default."""
        text = self.attributes.get(name, "")
        return tuple(int(part) for part in text.split(",")) if re.fullmatch(r"-?\d+(,-?\d+)*", text) else default


@dataclass(frozen=True)
class ParsedKey:
    """A parsed key: inputs, operators in order, outputs."""

    inputs: tuple[Tensor, ...]
    operators: tuple[KeyOperator, ...]
    outputs: tuple[Tensor, ...]


def parse_key(text: str) -> ParsedKey | None:
    """Parse a key's text; None if it is not a key of this version."""
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
            if tensor is None:
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
    given = text[found.end() + 1 :] if text[found.end() :].startswith("=") else ""
    values = tuple(int(float(part)) for part in given.split(",")) if given and found[1].startswith("int") else ()
    shape = tuple(int(size) for size in found[2].split(",") if size)
    return Tensor(found[1], shape, constant, values)


def _operator(text: str, place: int, known: dict[str, Tensor]) -> KeyOperator | None:
    found = _OPERATOR.fullmatch(text)
    if found is None:
        return None
    op, arguments, attributes = found.groups()
    reads = tuple(_BETWEEN_ARGUMENTS.split(arguments)) if arguments else ()
    tensors = []
    for read in reads:
        tensor = _tensor(read[2:], constant=True) if read.startswith("c:") else known.get(read)
        # The tensor may be a second result of an operator, or an absent input.
        tensors.append(tensor or Tensor("float32", None, constant=read == "_"))
    values = dict(part.split("=", 1) for part in attributes.split(";") if "=" in part)
    return KeyOperator(op, f"t{place}", reads, tuple(tensors), values)


def _result(operator: KeyOperator) -> Tensor:
    """Return an operator's first result, with its shape where it follows from the inputs."""
    first = next(iter(operator.activations), Tensor("float32", None))
    return Tensor(first.dtype, _result_shape(operator, first.shape))


def _result_shape(operator: KeyOperator, read: Shape | None) -> Shape | None:
    if operator.op in CONVOLUTIONS or operator.op in WINDOWS:
        return windowed(operator, read)
    if operator.op in ("MatMul", "Gemm"):
        left, right = operator.tensors[0].shape, operator.tensors[1].shape
        return (*left[:-1], right[-2 if operator.attributes.get("transB") == "1" else -1]) if left and right else None
    if read is None:
        return None
    axis = operator.numbers("axis", (0,))[0]
    if operator.op == "Reshape":
        return _reshaped(read, operator.tensors[1].values) if len(operator.tensors) > 1 else None
    if operator.op == "Flatten":
        return (math.prod(read[:axis]), math.prod(read[axis:]))
    if operator.op == "Transpose":
        return tuple(read[axis] for axis in operator.numbers("perm", tuple(range(len(read)))[::-1]))
    if operator.op == "Concat" and all(tensor.shape for tensor in operator.tensors):
        return (*read[:axis], sum((tensor.shape or read)[axis] for tensor in operator.tensors), *read[axis + 1 :])
    if operator.op == "Gather" and len(operator.tensors) > 1:
        return (*read[:axis], *(operator.tensors[1].shape or ()), *read[axis + 1 :])
    if operator.op == "Squeeze":
        return tuple(size for place, size in enumerate(read) if place not in operator.numbers("axes", ()))
    if operator.op.startswith("Global"):
        return (*read[:2], *(1 for _ in read[2:]))
    if operator.op in VIEWS | COPIES or operator.op.startswith("Reduce"):
        return None
    return max((tensor.shape for tensor in operator.tensors if tensor.shape is not None), key=math.prod)


def windowed(operator: KeyOperator, read: Shape | None) -> Shape | None:
    """Return the output shape of a convolution or pooling; None where it does not follow from the attributes."""
    if read is None or len(read) < 3 or operator.op == "ConvTranspose":
        return None
    spatial = len(read) - 2
    kernel, stride = operator.numbers("kernel_shape", (1,) * spatial), operator.numbers("strides", (1,) * spatial)
    dilation, pads = operator.numbers("dilations", (1,) * spatial), operator.numbers("pads", (0,) * 2 * spatial)
    extra = [
        read[2 + axis] + pads[axis] + pads[axis + spatial] - (kernel[axis] - 1) * dilation[axis] - 1
        for axis in range(spatial)
    ]
    up = operator.attributes.get("ceil_mode") == "1"
    sizes = [
        -(-room // stride_) + 1 if up else room // stride_ + 1 for room, stride_ in zip(extra, stride, strict=True)
    ]
    weight = operator.tensors[WEIGHT_SLOT.get(operator.op, 1)].shape if operator.op in CONVOLUTIONS else None
    return (read[0], weight[0] if weight else read[1], *(max(1, size) for size in sizes))


def _reshaped(read: Shape | None, values: Shape) -> Shape | None:
    if min(values) > 0:
        return values
    if read is None:
        return None
    sizes = [read[axis] if size == 0 and axis < len(read) else size for axis, size in enumerate(values)]
    rest = math.prod(size for size in sizes if size > 0)
    return tuple(size if size > 0 else max(1, math.prod(read) // rest) for size in sizes)
