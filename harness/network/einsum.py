"""The product of matrices that an Einsum of two operands computes."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

_ELLIPSIS = "..."


@dataclass(frozen=True)
class MatrixProducts:
    """`batch` products of matrices of (rows, depth) and (depth, columns) elements."""

    batch: int
    rows: int
    depth: int
    columns: int

    @property
    def macs(self) -> int:
        """The multiply-adds of all products."""
        return self.batch * self.rows * self.depth * self.columns


def einsum_product(equation: str, left: Sequence[int], right: Sequence[int]) -> MatrixProducts | None:
    """Return the product of an equation, for operands of these shapes; None for diagonals, and if they do not fit.

    Labels of both operands count as batch if the result has them, else as depth. Those of one operand are rows or
    columns.
    """
    read, arrow, written = equation.replace(" ", "").partition("->")
    terms = read.split(",")
    if len(terms) != 2:
        return None
    sizes: dict[str, int] = {}
    operands: list[set[str]] = []
    for term, shape in zip(terms, (left, right), strict=True):
        labels = _labels(term, len(shape))
        if len(labels) != len(shape) or len(set(labels)) != len(shape):
            return None
        for label, size in zip(labels, shape, strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
        operands.append(set(labels))
    both = operands[0] & operands[1]
    kept = set(written) if arrow else set()
    batch = {label for label in both if label in kept or not label.isalpha()}
    return MatrixProducts(
        _elements(sizes, batch),
        _elements(sizes, operands[0] - both),
        _elements(sizes, both - batch),
        _elements(sizes, operands[1] - both),
    )


def has_late_sizes(equation: str, shapes: Sequence[Sequence[int]]) -> bool:
    """Return whether a letter stands for an axis of 1 element, and for a longer one in a later operand."""
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    first: dict[str, int] = {}
    return any(
        label.isalpha() and first.setdefault(label, size) == 1 < size
        for term, shape in zip(terms, shapes, strict=False)
        for label, size in zip(_labels(term, len(shape)), shape, strict=False)
    )


def _labels(term: str, axes: int) -> list[str]:
    """Return a label for each axis: a letter, or its place from the last one if it belongs to an ellipsis."""
    before, dots, after = term.partition(_ELLIPSIS)
    hidden = range(axes - len(before) - len(after), 0, -1) if dots else ()
    return [*before, *map(str, hidden), *after]


def _elements(sizes: dict[str, int], labels: Collection[str]) -> int:
    return math.prod(sizes[label] for label in labels)
