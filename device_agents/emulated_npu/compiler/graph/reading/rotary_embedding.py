"""Rotary embeddings: pairs of elements of each row are turned by the angle of the row's position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from device_agents.emulated_npu.compiler.graph.reading.decomposition import Decomposition


@dataclass(frozen=True)
class Rotation:
    """Cosines and sines (batch or 1, 1, rows, pairs), and whether a pair has neighbours or elements half apart."""

    cosines: str
    sines: str
    pairs: int
    interleaved: bool

    @classmethod
    def of(cls, found: Decomposition, places: tuple[int, int, int], rows: int, first: int = 0) -> Rotation:
        """Read the inputs of a node: `places` are those of the tables and of the positions, of which there are `rows`.

        Without positions, they count from `first`.
        """
        cosines, sines, positions = places
        given, pairs = found.attributes(), found.shape(cosines, 2)[1]
        tables, batch = [found.required(cosines), found.required(sines)], 1
        if not found.input(positions):
            rows_of = [found.sliced(table, 0, first, first + rows) for table in tables]
        else:
            shape, numbers = found.shape(positions, 0, 1, 2), found.required(positions)
            if len(shape) == 2:
                batch = shape[0]
            else:  # of the first row
                numbers = found.compute("Add", [found.reshaped(numbers, (1,)), found.integers(np.arange(rows))])
            rows_of = [found.compute("Gather", [table, numbers], {"axis": 0}) for table in tables]
        turned = [found.reshaped(part, (batch, 1, rows, pairs)) for part in rows_of]
        is_interleaved = given.get("interleaved", 0) or given.get("rotary_interleaved", 0)
        return cls(turned[0], turned[1], pairs, bool(is_interleaved))

    def turned(self, found: Decomposition, tensor: str, shape: Sequence[int]) -> str:
        """Return a tensor (batch, heads, rows, size) with the first elements of each row turned."""
        size, width = shape[3], 2 * self.pairs
        if width > size:
            raise found.invalid(f"It turns {width} elements of {size}")
        part = found.sliced(tensor, 3, 0, width) if width < size else tensor
        first, second = self._halves(found, part, shape)
        products = {
            (half, angle): found.compute("Mul", [half, angle])
            for half in (first, second)
            for angle in (self.cosines, self.sines)
        }
        real = found.compute("Sub", [products[first, self.cosines], products[second, self.sines]])
        imaginary = found.compute("Add", [products[first, self.sines], products[second, self.cosines]])
        halves = [real, imaginary]
        if self.interleaved:
            columns = [found.reshaped(half, (*shape[:3], self.pairs, 1)) for half in halves]
            halves = [found.reshaped(found.joined(columns, 4), (*shape[:3], width))]
        rest = [found.sliced(tensor, 3, width, size)] if width < size else []
        return found.joined([*halves, *rest], 3)

    def _halves(self, found: Decomposition, part: str, shape: Sequence[int]) -> tuple[str, str]:
        """Return the first and the second elements of the pairs."""
        if not self.interleaved:
            return found.sliced(part, 3, 0, self.pairs), found.sliced(part, 3, self.pairs, 2 * self.pairs)
        pairs = found.reshaped(part, (*shape[:3], self.pairs, 2))
        first, second = (
            found.reshaped(found.sliced(pairs, 4, place, place + 1), (*shape[:3], self.pairs)) for place in (0, 1)
        )
        return first, second


def embedding(found: Decomposition) -> None:
    """Decompose RotaryEmbedding of a tensor by rows, or by heads."""
    shape, pairs = found.shape(0, 3, 4), found.shape(2, 2)[1]
    count, tensor = found.attributes().get("num_heads", 0), found.required(0)
    rows = shape[-2]
    rotation = Rotation.of(found, (2, 3, 1), rows)
    if len(shape) == 4:
        found.bound(rotation.turned(found, tensor, shape))
        return
    count = count or shape[2] // (2 * pairs)
    if not count or shape[2] % count:
        raise found.invalid(f"Its {count} heads do not divide {shape[2]} elements")
    size = shape[2] // count
    heads = found.transposed(found.reshaped(tensor, (*shape[:2], count, size)), (0, 2, 1, 3))
    turned = rotation.turned(found, heads, (shape[0], count, rows, size))
    found.bound(found.reshaped(found.transposed(turned, (0, 2, 1, 3)), shape))
