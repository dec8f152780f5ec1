"""Values of a mapping: constants, or columns of the file; each is checked when it is read."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field

from harness.strict_model import StrictModel
from harness.text import printable

Scalar = bool | int | float | str
Shape = tuple[int, ...]
Read = TypeVar("Read")

MAX_SIZE = 1 << 31
MAX_AXES = 8
_SHOWN = 40
_SIZE = re.compile(r"([0-9]{1,10})(?:\.0{0,9})?")
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,3})?")
_SHAPE = re.compile(r"[0-9]{1,10}(?:[x×*,; ]{1,3}[0-9]{1,10}){0,7}")
_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class BadRow(ValueError):
    """A row of the file that cannot become an entry; the text is the reason."""


@dataclass(frozen=True)
class Row:
    """One row: the line where it starts, and its cells by column."""

    line: int
    cells: Mapping[str, str]


class Column(StrictModel):
    """A column of the file; `values` translates its cells, `empty` is the value of an empty cell."""

    column: Annotated[str, Field(min_length=1, max_length=200)]
    values: dict[str, Scalar] | None = None
    empty: Scalar | None = None

    def read(self, row: Row) -> Scalar:
        """Return the cell, translated; raises BadRow for one that `values` does not list."""
        cell = row.cells[self.column].strip()
        if not cell and self.empty is not None:
            return self.empty
        if self.values is None:
            return cell
        if cell not in self.values:
            raise BadRow(f"{self.column} is {shown(cell)}, which its values do not list")
        return self.values[cell]


def _column(value: Any) -> Any:
    """Take the short form of a column: its name after a dollar sign."""
    return {"column": value[1:]} if isinstance(value, str) and value.startswith("$") else value


def _named_column(value: Any) -> Any:
    if isinstance(value, str) and not value.startswith("$"):
        raise ValueError('must be the name of a column after a dollar sign, such as "$p50"')
    return _column(value)


Value = Annotated[Column | Scalar, BeforeValidator(_column)]
"""A constant, or a column as `"$name"` or `{column = "name"}`."""
PackedShape = Annotated[Column, BeforeValidator(_named_column)]
Values = list[Value] | PackedShape
"""A list of values, or a column that holds a whole shape, such as `1x64x56x56`."""


def read_as(parse: Callable[[Scalar], Read], name: str, value: Column | Scalar, row: Row) -> Read:
    """Return a value of a row, parsed; raises BadRow, which names the column."""
    if isinstance(value, Column):
        name, value = value.column, value.read(row)
    try:
        return parse(value)
    except BadRow as error:
        raise BadRow(f"{printable(name, _SHOWN)} is {error}") from None


def size(value: Scalar) -> int:
    """Return a whole number from 0 to 2^31; raises BadRow."""
    found = _SIZE.fullmatch(str(value)) if not isinstance(value, bool) else None
    if found is None or int(found[1]) > MAX_SIZE:
        raise BadRow(f"{shown(value)}, which is not a whole number from 0 to 2147483648")
    return int(found[1])


def number(value: Scalar) -> float:
    """Return a finite number; raises BadRow."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    if isinstance(value, (bool, str)) or not math.isfinite(value):
        raise BadRow(f"{shown(value)}, which is not a number")
    return float(value)


def flag(value: Scalar) -> bool:
    """Return true or false; raises BadRow."""
    found = _FLAGS.get(str(value).lower())
    if found is None:
        raise BadRow(f"{shown(value)}, which is neither true nor false")
    return found


def word(value: Scalar) -> str:
    """Return a text of at most 200 printable characters; raises BadRow."""
    if not isinstance(value, str) or len(value) > 200 or not value.isprintable():
        raise BadRow(f"{shown(value)}, which is not a short plain text")
    return value


def shape(value: Scalar) -> Shape:
    """Return the sizes in a text such as `1x64x56x56` or `[1, 64, 56, 56]`; raises BadRow."""
    text = str(value).strip()
    inner = text[1:-1].strip() if text[:1] + text[-1:] in ("[]", "()") else text
    if not _SHAPE.fullmatch(inner):
        raise BadRow(f"{shown(value)}, which is not a shape such as 1x64x56x56")
    return tuple(size(part) for part in re.findall("[0-9]+", inner))


def sizes(name: str, values: list[Column | Scalar] | Column, row: Row) -> Shape:
    """Return a list of sizes of a row, or those that one cell holds; raises BadRow."""
    if isinstance(values, Column):
        return read_as(shape, name, values, row)
    return tuple(read_as(size, name, value, row) for value in values)


def shown(value: Scalar) -> str:
    """Return a value for a message: short, on one line, without control characters."""
    return repr(printable(str(value), _SHOWN))


def columns_in(value: Any) -> set[str]:
    """Return the columns that a part of a mapping reads."""
    if isinstance(value, Column):
        return {value.column}
    if isinstance(value, StrictModel):
        value = [getattr(value, name) for name in type(value).model_fields]
    if isinstance(value, Mapping):
        value = list(value.values())
    return set().union(*(columns_in(part) for part in value)) if isinstance(value, (list, tuple)) else set()
