"""The rows of the CSV files of a table, each checked as a value of its class."""

import csv
import io
import itertools
from collections.abc import Iterator, Sequence
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

_Row = TypeVar("_Row")


def checked_rows(
    content: bytes, kind: type[_Row], columns: tuple[str, ...], numbers: Sequence[str], most: int
) -> Iterator[tuple[int, _Row]]:
    """Yield the rows of a CSV file of at most `most`, with their lines; `columns` are the fields of their class.

    Raises ValueError, which says what is wrong with the file; `numbers` are columns that may hold no underscore.
    """
    try:
        table = list(itertools.islice(csv.reader(io.StringIO(content.decode(), newline=""), strict=True), most + 2))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"is not a CSV file: {error}") from error
    if not table or tuple(table[0]) != columns:
        raise ValueError(f"does not have the columns {', '.join(columns)}")
    if len(table) > most + 1:
        raise ValueError(f"has more than {most:,} rows")
    adapter = TypeAdapter(kind)
    for number, values in enumerate(table[1:], start=2):
        try:
            cells = dict(zip(columns, values, strict=True))
            if any("_" in cells[name] for name in numbers):
                raise ValueError("a number has an underscore")
            row = adapter.validate_python(cells)
        except ValueError as error:
            problem = error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else str(error)
            raise ValueError(f"line {number}: {problem}"[:280]) from error
        yield number, row
