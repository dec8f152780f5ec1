"""One layer as a row describes it, with every value of the mapping read."""

from dataclasses import dataclass

from harness.table_import.cells import (
    BadRow,
    Column,
    Row,
    Scalar,
    Shape,
    Values,
    flag,
    read_as,
    shape,
    shown,
    size,
    sizes,
    word,
)
from harness.table_import.mapping import DTYPES, OperatorRows

Padding = Shape | str
"""The padding of each axis, or `same`, `half` or `valid`."""
PADDINGS = ("same", "half", "valid")
DEPTHWISE = "depthwise"
_PLANES = ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")


@dataclass(frozen=True)
class LayerSpec:
    """One layer; shapes are in ONNX's order of axes, windows have one number or one for each axis."""

    op: str
    inputs: tuple[Shape, ...]
    weights: tuple[Shape, ...]
    integers: tuple[tuple[int, ...], ...]
    channels_out: int | None
    columns: int | None
    kernel: Shape
    stride: Shape
    dilation: Shape
    padding: Padding
    groups: int | None
    bias: bool
    batch_norm: bool
    residual: bool
    activation: str
    attributes: tuple[tuple[str, Scalar | tuple[Scalar, ...]], ...]
    dtype: str


def spec_of(section: OperatorRows, row: Row) -> LayerSpec:
    """Return the layer of a row; raises BadRow."""
    op = read_as(word, "op", section.op, row)
    given = [section.input] if section.input is not None else section.inputs or []
    dtype = read_as(word, "dtype", section.dtype, row)
    if dtype not in DTYPES:
        why = "import quantised layers by the nodes of their network" if "int8" in dtype else f"not {', '.join(DTYPES)}"
        raise BadRow(f"dtype is {shown(dtype)}: {why}")
    norm = read_as(flag, "batch_norm", section.batch_norm, row)
    attributes = {
        name: tuple(_attribute(one, row) for one in value) if isinstance(value, list) else _attribute(value, row)
        for name, value in section.attributes.items()
    }
    return LayerSpec(
        op=op,
        inputs=tuple(_in_order(op, section.layout, _positive("input", one, row)) for one in given),
        weights=tuple(_positive("weights", one, row) for one in section.weights),
        integers=tuple(_integers(one, row) for one in section.integers),
        channels_out=_optional("channels_out", section.channels_out, row),
        columns=_optional("columns", section.columns, row),
        kernel=_window("kernel", section.kernel, row),
        stride=_window("stride", section.stride, row),
        dilation=_window("dilation", section.dilation, row),
        padding=_padding(section, row),
        groups=_groups(section, row),
        bias=not norm if section.bias is None else read_as(flag, "bias", section.bias, row),
        batch_norm=norm,
        residual=read_as(flag, "residual", section.residual, row),
        activation=read_as(word, "activation", section.activation, row),
        attributes=tuple(sorted(attributes.items())),
        dtype=dtype,
    )


def _in_order(op: str, layout: str, shape: Shape) -> Shape:
    """Return a shape with the channels after the batch, as in ONNX."""
    if layout == "NCHW" or len(shape) < (3 if op in _PLANES else 4):
        return shape
    return (shape[0], shape[-1], *shape[1:-1])


def _positive(name: str, values: Values, row: Row) -> Shape:
    found = sizes(name, values, row)
    if 0 in found:
        raise BadRow(f"{name} has a size of 0")
    return found


def _optional(name: str, value: Column | Scalar | None, row: Row) -> int | None:
    return None if value is None else read_as(size, name, value, row)


def _window(name: str, value: Column | Scalar | Values, row: Row) -> Shape:
    found = _numbers(name, value, row)
    if 0 in found:
        raise BadRow(f"{name} is 0")
    return found


def _numbers(name: str, value: Column | Scalar | Values, row: Row) -> Shape:
    if isinstance(value, list):
        return sizes(name, value, row)
    return read_as(shape, name, value, row)


def _padding(section: OperatorRows, row: Row) -> Padding:
    value = section.padding
    if not isinstance(value, list):
        text = str(value.read(row) if isinstance(value, Column) else value).lower()
        if text in PADDINGS:
            return text
    return _numbers("padding", value, row)


def _groups(section: OperatorRows, row: Row) -> int | None:
    value = section.groups.read(row) if isinstance(section.groups, Column) else section.groups
    found = None if value == DEPTHWISE else read_as(size, "groups", value, row)
    if found == 0:
        raise BadRow("groups is 0")
    return found


def _integers(values: Values, row: Row) -> tuple[int, ...]:
    if isinstance(values, Column):
        return sizes("integers", values, row)
    return tuple(read_as(_integer, "integers", value, row) for value in values)


def _integer(value: Scalar) -> int:
    text = str(value)
    return -size(text[1:]) if text.startswith("-") and text != "-" else size(value)


def _attribute(value: Column | Scalar, row: Row) -> Scalar:
    """Return an attribute; whole numbers in a column are integers, as ONNX distinguishes them."""
    if not isinstance(value, Column):
        return value
    found = value.read(row)
    if isinstance(found, str):
        try:
            return _integer(found)
        except BadRow:
            return read_as(word, value.column, found, row)
    return found
