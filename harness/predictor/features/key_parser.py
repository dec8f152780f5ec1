"""A layer's key taken apart: its inputs, operators and outputs with their types, shapes in between worked out."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from harness.network.key import KEY_VERSION
from harness.network.network import ITEM_BYTES

Shape = tuple[int, ...]

_TYPE = re.compile(r"(\w+)\[([\d,]*)\]")
_STEP = re.compile(r"([\w.-]+)\((.*)\)\{(.*)\}", re.DOTALL)
_BETWEEN_ARGUMENTS = re.compile(r",(?=x\d|t\d|c:|_)")
CONVOLUTIONS = frozenset({"Conv", "ConvInteger", "QLinearConv", "ConvTranspose"})
WEIGHT_SLOT = {"QLinearConv": 3, "QLinearMatMul": 3, "QGemm": 3}
WINDOWS = frozenset({"MaxPool", "AveragePool", "LpPool"})
VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"})
COPIES = frozenset(
    {"Concat", "Split", "Transpose", "Slice", "Gather", "Pad", "Cast", "Expand", "Resize", "Upsample", "Tile",
     "DepthToSpace", "SpaceToDepth"}
)  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """Element type and shape; `shape` is None where it is not known without running the operators."""

    dtype: str
    shape: Shape | None
    constant: bool = False
    values: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        """Size, 0 where the shape is not known."""
        return (math.prod(self.shape) if self.shape is not None else 0) * ITEM_BYTES.get(self.dtype, 4)


@dataclass(frozen=True)
class Step:
    """One operator of a layer with what it reads."""

    op: str
    label: str
    reads: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    attributes: dict[str, str]

    @property
    def activations(self) -> tuple[Tensor, ...]:
        """What it reads that is no constant."""
        return tuple(tensor for tensor in self.tensors if not tensor.constant)

    def numbers(self, name: str, default: Shape) -> Shape:
        """An attribute of integers, or its default."""
        text = self.attributes.get(name, "")
        return tuple(int(part) for part in text.split(",")) if re.fullmatch(r"-?\d+(,-?\d+)*", text) else default


@dataclass(frozen=True)
class Signature:
    """A key taken apart: what comes in, the operators in order, what goes out."""

    inputs: tuple[Tensor, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Tensor, ...]


def parse_signature(text: str) -> Signature | None:
    """Takes a key's text apart; None where it is not one of this version."""
    version, *parts = text.split("|")
    if version != KEY_VERSION or not parts or not parts[-1].startswith("->"):
        return None
    known: dict[str, Tensor] = {}
    inputs: list[Tensor] = []
    steps: list[Step] = []
    for part in parts[:-1]:
        name, colon, kind = part.partition(":")
        if colon and re.fullmatch(r"x\d+", name):
            tensor = _tensor(kind)
            if tensor is None:
                return None
            known[name] = tensor
            inputs.append(tensor)
            continue
        step = _step(part, len(steps), known)
        if step is None:
            return None
        known[step.label] = _result(step)
        steps.append(step)
    outputs = [_tensor(kind.split(":", 1)[-1]) for kind in re.split(r",(?=t\d|x\d)", parts[-1][2:])]
    written = tuple(tensor for tensor in outputs if tensor is not None)
    return Signature(tuple(inputs), tuple(steps), written) if steps and written else None


def _tensor(text: str, constant: bool = False) -> Tensor | None:
    found = _TYPE.match(text)
    if found is None:
        return None
    given = text[found.end() + 1 :] if text[found.end() :].startswith("=") else ""
    values = tuple(int(float(part)) for part in given.split(",")) if given and found[1].startswith("int") else ()
    shape = tuple(int(size) for size in found[2].split(",") if size)
    return Tensor(found[1], shape, constant, values)


def _step(text: str, place: int, known: dict[str, Tensor]) -> Step | None:
    found = _STEP.fullmatch(text)
    if found is None:
        return None
    op, arguments, attributes = found.groups()
    reads = tuple(_BETWEEN_ARGUMENTS.split(arguments)) if arguments else ()
    tensors = []
    for read in reads:
        tensor = _tensor(read[2:], constant=True) if read.startswith("c:") else known.get(read)
        # A second result of an inner operator, or an absent input.
        tensors.append(tensor or Tensor("float32", None, constant=read == "_"))
    values = dict(part.split("=", 1) for part in attributes.split(";") if "=" in part)
    return Step(op, f"t{place}", reads, tuple(tensors), values)


def _result(step: Step) -> Tensor:
    """What an operator hands on within a layer, as far as that follows from its inputs."""
    first = next(iter(step.activations), Tensor("float32", None))
    return Tensor(first.dtype, _result_shape(step, first.shape))


def _result_shape(step: Step, read: Shape | None) -> Shape | None:
    if step.op in CONVOLUTIONS or step.op in WINDOWS:
        return windowed(step, read)
    if step.op in ("MatMul", "Gemm"):
        left, right = step.tensors[0].shape, step.tensors[1].shape
        return (*left[:-1], right[-2 if step.attributes.get("transB") == "1" else -1]) if left and right else None
    if read is None:
        return None
    axis = step.numbers("axis", (0,))[0]
    if step.op == "Reshape":
        return _reshaped(read, step.tensors[1].values) if len(step.tensors) > 1 else None
    if step.op == "Flatten":
        return (math.prod(read[:axis]), math.prod(read[axis:]))
    if step.op == "Transpose":
        return tuple(read[axis] for axis in step.numbers("perm", tuple(range(len(read)))[::-1]))
    if step.op == "Concat" and all(tensor.shape for tensor in step.tensors):
        return (*read[:axis], sum((tensor.shape or read)[axis] for tensor in step.tensors), *read[axis + 1 :])
    if step.op == "Gather" and len(step.tensors) > 1:
        return (*read[:axis], *(step.tensors[1].shape or ()), *read[axis + 1 :])
    if step.op == "Squeeze":
        return tuple(size for place, size in enumerate(read) if place not in step.numbers("axes", ()))
    if step.op.startswith("Global"):
        return (*read[:2], *(1 for _ in read[2:]))
    if step.op in VIEWS | COPIES or step.op.startswith("Reduce"):
        return None
    return max((tensor.shape for tensor in step.tensors if tensor.shape is not None), key=math.prod)


def windowed(step: Step, read: Shape | None) -> Shape | None:
    """The shape of what a convolution or pooling writes; None where it does not follow from its attributes."""
    if read is None or len(read) < 3 or step.op == "ConvTranspose":
        return None
    spatial = len(read) - 2
    kernel, stride = step.numbers("kernel_shape", (1,) * spatial), step.numbers("strides", (1,) * spatial)
    dilation, pads = step.numbers("dilations", (1,) * spatial), step.numbers("pads", (0,) * 2 * spatial)
    extra = [
        read[2 + axis] + pads[axis] + pads[axis + spatial] - (kernel[axis] - 1) * dilation[axis] - 1
        for axis in range(spatial)
    ]
    up = step.attributes.get("ceil_mode") == "1"
    sizes = [-(-room // step) + 1 if up else room // step + 1 for room, step in zip(extra, stride, strict=True)]
    weight = step.tensors[WEIGHT_SLOT.get(step.op, 1)].shape if step.op in CONVOLUTIONS else None
    return (read[0], weight[0] if weight else read[1], *(max(1, size) for size in sizes))


def _reshaped(read: Shape | None, values: Shape) -> Shape | None:
    if min(values) > 0:
        return values
    if read is None:
        return None
    sizes = [read[axis] if size == 0 and axis < len(read) else size for axis, size in enumerate(values)]
    rest = math.prod(size for size in sizes if size > 0)
    return tuple(size if size > 0 else max(1, math.prod(read) // rest) for size in sizes)
