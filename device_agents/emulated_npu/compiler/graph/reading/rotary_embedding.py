"""RotaryEmbedding of ONNX Runtime: pairs of elements of each row are turned by the angle of the row's position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from device_agents.emulated_npu.compiler.graph.reading.decomposition import Decomposition


def rotary_embedding(found: Decomposition) -> None:
    """Decompose RotaryEmbedding of a tensor by rows, or by heads."""
    shape, tensor, pairs = found.shape(0, 3, 4), found.required(0), found.shape(2, 2)[1]
    angles = _angles(found, shape[-2], pairs)
    if len(shape) == 4:
        found.bound(_turned(found, tensor, shape, angles, pairs))
        return
    count = found.attributes().get("num_heads", 0) or shape[2] // (2 * pairs)
    if not count or shape[2] % count:
        raise found.invalid(f"Its {count} heads do not divide {shape[2]} elements")
    size = shape[2] // count
    heads = found.transposed(found.reshaped(tensor, (*shape[:2], count, size)), (0, 2, 1, 3))
    turned = _turned(found, heads, (shape[0], count, shape[1], size), angles, pairs)
    found.bound(found.reshaped(found.transposed(turned, (0, 2, 1, 3)), shape))


def _angles(found: Decomposition, rows: int, pairs: int) -> list[str]:
    """Return the cosines and the sines (batch or 1, 1, rows, pairs) of each row."""
    shape, places, batch = found.shape(1, 0, 1, 2), found.required(1), 1
    if len(shape) == 2:
        batch = shape[0]
    else:  # that of the first row
        places = found.compute("Add", [found.reshaped(places, (1,)), found.integers(np.arange(rows))])
    tables = [found.required(2), found.required(3)]
    rows_of = [found.compute("Gather", [table, places], {"axis": 0}) for table in tables]
    return [found.reshaped(part, (batch, 1, rows, pairs)) for part in rows_of]


def _turned(found: Decomposition, tensor: str, shape: Sequence[int], angles: Sequence[str], pairs: int) -> str:
    """Return a tensor (batch, heads, rows, size) with the first elements of each row turned."""
    size, width, is_interleaved = shape[3], 2 * pairs, found.attributes().get("interleaved", 0)
    if width > size:
        raise found.invalid(f"It turns {width} elements of {size}")
    part = found.sliced(tensor, 3, 0, width) if width < size else tensor
    if is_interleaved:
        divided = found.reshaped(part, (*shape[:3], pairs, 2))
        halves = [found.reshaped(found.sliced(divided, 4, at, at + 1), (*shape[:3], pairs)) for at in range(2)]
    else:
        halves = [found.sliced(part, 3, at * pairs, (at + 1) * pairs) for at in range(2)]
    (cosine, sine), (crossed, direct) = (
        [found.compute("Mul", [half, angle]) for angle in order]
        for half, order in zip(halves, (angles, angles[::-1]), strict=True)
    )
    parts = [found.compute("Sub", [cosine, crossed]), found.compute("Add", [sine, direct])]
    if is_interleaved:
        columns = [found.reshaped(half, (*shape[:3], pairs, 1)) for half in parts]
        parts = [found.reshaped(found.joined(columns, 4), (*shape[:3], width))]
    rest = [found.sliced(tensor, 3, width, size)] if width < size else []
    return found.joined([*parts, *rest], 3)
