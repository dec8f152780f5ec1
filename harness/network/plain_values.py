"""Values of a JSON document from another process, each of the type that it must have."""

from __future__ import annotations

from typing import Any


def list_of(value: Any) -> list[Any]:
    """Return a list; raises ValueError for anything else."""
    if not isinstance(value, list):
        raise ValueError("not a list")
    return value


def text_of(value: Any) -> str:
    """Return a text; raises ValueError for anything else."""
    if not isinstance(value, str):
        raise ValueError("not a text")
    return value


def texts_of(value: Any, count: int | None = None) -> tuple[str, ...]:
    """Return a list of texts, of this length if one is given; raises ValueError for anything else."""
    found = tuple(text_of(each) for each in list_of(value))
    if count is not None and len(found) != count:
        raise ValueError("another number of texts")
    return found


def count_of(value: Any) -> int:
    """Return an integer from 0; raises ValueError for anything else."""
    if type(value) is not int or value < 0:
        raise ValueError("not a count")
    return value
