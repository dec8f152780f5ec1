"""The mapping file: what the columns of a file of latencies mean. docs/import.md describes every key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from harness.samples import Clock
from harness.settings import Keys, check_settings, invalid_key, read_toml
from harness.strict_model import StrictModel
from harness.table_import.cells import MAX_AXES, Column, PackedShape, Row, Scalar, Value, Values, columns_in, number
from harness.text import safe_name

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
Unit = Literal["s", "ms", "us", "ns"]
DTYPES = ("float32", "float16", "float64")
MAX_TEXT = 500

_Amount = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False, strict=False)]
_Share = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]


def _fact(value: str) -> str:
    if not value.isprintable():
        raise ValueError("must be printable text on one line")
    return value


def _date(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else value


Fact = Annotated[str, Field(max_length=MAX_TEXT), AfterValidator(_fact)]


class Provenance(StrictModel):
    """Where the latencies come from; the table keeps all of it."""

    tool: Annotated[Fact, Field(min_length=1)]
    hardware: Fact = ""
    date: Annotated[Fact, BeforeValidator(_date)] = ""
    licence: Fact = ""
    source: Fact = ""
    notes: Fact = ""


class Uncertainty(StrictModel):
    """The standard error of a latency: from columns in its unit, or `relative`, which adds to them."""

    relative: _Share | None = None
    stderr: PackedShape | None = None
    std: PackedShape | None = None
    low: PackedShape | None = None
    high: PackedShape | None = None
    level: _Share = 0.8
    n: Value | None = None

    @model_validator(mode="after")
    def _states_one_spread(self) -> Uncertainty:
        spreads = [self.stderr is not None, self.std is not None, self.low is not None]
        if (self.low is None) != (self.high is None):
            raise ValueError("must have both low and high, or neither")
        if sum(spreads) > 1:
            raise ValueError("must have one of stderr, std, and low with high")
        if not any(spreads) and self.relative is None:
            raise ValueError("must state relative, or the columns of stderr, std, or low and high")
        if (self.std is not None or self.low is not None) and self.n is None:
            raise ValueError("must have n, the number of runs, with a spread between runs")
        return self


class StatedOverhead(StrictModel):
    """The overhead of a run; with `included`, it is subtracted from every layer's latency."""

    a_s_per_byte: _Amount = 0.0
    b_s_per_byte: _Amount = 0.0
    c_s: _Amount = 0.0
    included: bool = False


class Selection(StrictModel):
    """The rows that a section is for: those whose cells have these values."""

    where: dict[str, Scalar | list[Scalar]] = Field(default_factory=dict)

    def selects(self, row: Row) -> bool:
        """Return whether each named cell has one of its values."""
        return all(
            any(_equal(row.cells[column].strip(), one) for one in (wanted if isinstance(wanted, list) else [wanted]))
            for column, wanted in self.where.items()
        )


def _equal(cell: str, value: Scalar) -> bool:
    if isinstance(value, (bool, str)):
        return cell.lower() == str(value).lower() if isinstance(value, bool) else cell == value
    try:
        return number(cell) == value
    except ValueError:
        return False


class OperatorRows(Selection):
    """Rows of which each is one layer; docs/import.md lists which operator needs which keys."""

    op: Value
    input: Values | None = None
    inputs: list[Values] | None = None
    weights: list[Values] = Field(default_factory=list)
    integers: list[Values] = Field(default_factory=list)
    channels_out: Value | None = None
    columns: Value | None = None
    kernel: Value | Values = 1
    stride: Value | Values = 1
    dilation: Value | Values = 1
    padding: Value | Values = 0
    groups: Value = 1
    bias: Value | None = None
    batch_norm: Value = False
    residual: Value = False
    activation: Value = "none"
    attributes: dict[str, Value | list[Value]] = Field(default_factory=dict)
    dtype: Value = "float32"
    layout: Literal["NCHW", "NHWC"] = "NCHW"

    @model_validator(mode="after")
    def _has_inputs(self) -> OperatorRows:
        if (self.input is None) == (self.inputs is None):
            raise ValueError("must have input, or inputs for several tensors")
        lists = [self.input, *(self.inputs or []), *self.weights, *self.integers]
        if any(isinstance(one, list) and len(one) > MAX_AXES for one in lists):
            raise ValueError(f"must have shapes of at most {MAX_AXES} sizes")
        return self


class NodeRows(Selection):
    """Rows of which each is one kernel of a network, with the names of the network's nodes that it executes."""

    model: Value
    nodes: Value
    separator: str | None = None
    remove: list[str] = Field(default_factory=list)
    dims: dict[str, int] = Field(default_factory=dict)


class NetworkRows(Selection):
    """Rows of which each is a whole network, or one network with its latency in the mapping itself."""

    model: Value
    latency: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=False)] | None = None
    dims: dict[str, int] = Field(default_factory=dict)


class ImportMapping(StrictModel):
    """A whole mapping file."""

    device: Annotated[str, AfterValidator(safe_name)]
    unit: Unit
    latency: PackedShape
    statistic: Annotated[Fact, Field(min_length=1, max_length=40)]
    clock: Clock = "wall"
    columns: list[str] | None = None
    delimiter: Literal[",", ";", "\t", "|", " "] = ","
    not_measured: list[Scalar] = Field(default_factory=list)
    fusion: Literal["default", "rows"] = "default"
    opset: Annotated[int, Field(ge=13, le=21)] = 17
    provenance: Provenance
    uncertainty: Uncertainty
    overhead: StatedOverhead = StatedOverhead()
    operator: list[OperatorRows] = Field(default_factory=list)
    layers: list[NodeRows] = Field(default_factory=list)
    network: list[NetworkRows] = Field(default_factory=list)

    @model_validator(mode="after")
    def _has_layers(self) -> ImportMapping:
        if not self.operator and not self.layers:
            raise ValueError("must have a section [[operator]] or [[layers]]: a table holds latencies of layers")
        return self

    @property
    def sections(self) -> Sequence[OperatorRows | NodeRows | NetworkRows]:
        """The sections that read rows, in the order in which they are tried."""
        return [*self.operator, *self.layers, *(one for one in self.network if one.latency is None)]

    @property
    def columns_read(self) -> set[str]:
        """The columns that the mapping names."""
        return columns_in(self) | {name for section in self.sections for name in section.where}

    def is_unmeasured(self, cell: str) -> bool:
        """Return whether a cell of the latency column marks a layer that was not measured."""
        return any(_equal(cell.strip(), one) for one in self.not_measured)


_SECTIONS: Mapping[str, type[StrictModel]] = {
    "provenance": Provenance,
    "uncertainty": Uncertainty,
    "overhead": StatedOverhead,
    "operator": OperatorRows,
    "layers": NodeRows,
    "network": NetworkRows,
}


def read_mapping(path: Path) -> ImportMapping:
    """Read and check a mapping file; raises ConfigurationError, which names the key."""
    content = read_toml(path)
    mapping = check_settings(ImportMapping.model_validate, content, path, known=_known)
    for name in ("stderr", "std", "low", "high"):
        _check_plain(path, f"uncertainty.{name}", getattr(mapping.uncertainty, name))
    _check_plain(path, "latency", mapping.latency)
    return mapping


def _known(keys: Keys) -> Sequence[str]:
    model = _SECTIONS.get(str(keys[0]), Column) if keys else ImportMapping
    return sorted(model.model_fields)


def _check_plain(path: Path, key: str, column: Column | None) -> None:
    if column is not None and column.values is not None:
        raise invalid_key(path, key, "translates values, but it is a number", 'Write only the column: "$name"')
