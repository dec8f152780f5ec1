"""The product of matrices that an Einsum computes."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

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


def einsum_product(equation: str, operands: Sequence[Sequence[int]]) -> MatrixProducts | None:
    """Return the product of an equation, for operands of these shapes; None for diagonals, and if they do not fit.

    Labels of both factors count as batch if the result or a later operand has them, else as depth. Those of one factor
    are rows or columns. More than two operands are multiplied in their order. This is one product of all their
    multiply-adds, with the sizes of the largest one.
    """
    read, arrow, written = equation.replace(" ", "").partition("->")
    terms = read.split(",")
    if len(operands) < 2 or len(terms) != len(operands):
        return None
    sizes: dict[str, int] = {}
    factors: list[set[str]] = []
    for term, shape in zip(terms, operands, strict=True):
        labels = _labels(term, len(shape))
        if len(labels) != len(shape) or len(set(labels)) != len(shape):
            return None
        for label, size in zip(labels, shape, strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
        factors.append(set(labels))
    written = written if arrow else "".join(label for label in sizes if read.count(label) == 1)
    products = []
    left, *rest = factors
    while rest:
        right, *rest = rest
        kept = {label for label in left | right if not label.isalpha()} | set(written).union(*rest)
        both = left & right
        parts = (both & kept, left - both, both - kept, right - both)
        products.append(MatrixProducts(*(_elements(sizes, part) for part in parts)))
        left = (left | right) & kept
    largest = max(products, key=lambda product: product.macs)
    others = sum(product.macs for product in products) - largest.macs
    return replace(largest, depth=largest.depth + others * largest.depth // max(1, largest.macs))


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
