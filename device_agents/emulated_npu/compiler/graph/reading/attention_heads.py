"""Attention by heads: a softmax of masked products of queries and keys, times values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from device_agents.emulated_npu.compiler.graph.reading.decomposition import Decomposition
from device_agents.emulated_npu.numpy_types import Array

_MASKED = -10000.0
"""What the runtime adds to the products of masked keys, where the node does not say it."""


@dataclass(frozen=True)
class Heads:
    """A tensor (batch, count, rows, size) of all heads."""

    tensor: str
    batch: int
    count: int
    rows: int
    size: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Its shape."""
        return self.batch, self.count, self.rows, self.size


def divided(found: Decomposition, tensor: str, shape: Sequence[int], count: int) -> Heads:
    """Divide the last axis of a tensor (batch, rows, count * size) into heads."""
    batch, rows, width = shape
    if count < 1 or width % count:
        raise found.invalid(f"Its {count} heads do not divide {width} elements")
    size = width // count
    divided = found.reshaped(tensor, (batch, rows, count, size))
    return Heads(found.transposed(divided, (0, 2, 1, 3)), batch, count, rows, size)


def behind(found: Decomposition, past: str, heads: Heads, rows: int) -> Heads:
    """Prepend the rows of the past to the new ones."""
    if not rows:
        return heads
    joined = found.joined([past, heads.tensor], 2)
    return Heads(joined, heads.batch, heads.count, rows + heads.rows, heads.size)


def attended(
    found: Decomposition, queries: Heads, keys: Heads, values: Heads, biases: Sequence[str], sink: str = ""
) -> None:
    """Bind the result (batch, rows, heads * size); `sink` has another product for the softmax of each head."""
    given, repeats = found.attributes(), queries.count // keys.count
    if repeats * keys.count != queries.count or keys.shape[:3] != values.shape[:3]:
        raise found.invalid(f"Its {queries.count} heads of queries read keys {keys.shape} and values {values.shape}")
    first, others = queries.tensor, [found.transposed(keys.tensor, (0, 1, 3, 2)), values.tensor]
    scores_shape = (*queries.shape[:3], keys.rows)
    grouped = (queries.batch, keys.count, repeats, queries.rows)
    if repeats > 1:
        first = found.reshaped(first, (*grouped, queries.size))
        shapes = ((keys.size, keys.rows), (values.rows, values.size))
        others = [
            found.reshaped(tensor, (keys.batch, keys.count, 1, *shape))
            for tensor, shape in zip(others, shapes, strict=True)
        ]
    scores = found.compute("MatMul", [first, others[0]])
    if repeats > 1:
        scores = found.reshaped(scores, scores_shape)
    scale = given.get("scale") or 1 / math.sqrt(queries.size)
    softcap = given.get("softcap") or 0.0
    scores = found.compute("Mul", [scores, found.number(scale / softcap if softcap else scale)])
    if softcap:
        bounded = found.compute("Tanh", [scores])
        scores = found.compute("Mul", [bounded, found.number(softcap)])
    for bias in biases:
        scores = found.compute("Add", [scores, bias])
    weights = _softmax(found, scores, scores_shape, sink)
    if repeats > 1:
        weights = found.reshaped(weights, (*grouped, keys.rows))
    result = found.compute("MatMul", [weights, others[1]])
    if repeats > 1:
        result = found.reshaped(result, (*queries.shape[:3], values.size))
    rows = found.transposed(result, (0, 2, 1, 3))
    found.bound(found.reshaped(rows, (queries.batch, queries.rows, queries.count * values.size)))


def _softmax(found: Decomposition, scores: str, shape: Sequence[int], sink: str) -> str:
    if not sink:
        return found.compute("Softmax", [scores], {"axis": -1})
    spread = found.compute("Expand", [sink, found.integers((*shape[:3], 1))])
    weights = found.compute("Softmax", [found.joined([scores, spread], 3)], {"axis": -1})
    return found.sliced(weights, 3, 0, shape[3])


def causal(queries: Heads, keys: Heads, past: int, window: int = -1) -> Array:
    """Return which keys each query reads: those up to its place after the past, within a window of this length."""
    place = np.arange(past, past + queries.rows).reshape(-1, 1)
    key = np.arange(keys.rows)
    read: Array = (key <= place) & ((place - key < window) | (window < 0))
    return read


def mask_of(found: Decomposition, place: int, queries: Heads, keys: Heads, past: int) -> list[str]:
    """Return what is added to the products, (batch or 1, 1, rows or 1, keys): none, or one tensor."""
    given, mask = found.attributes(), ""
    if found.input(place):
        mask = _of_padding(found, place, queries, keys)
    if given.get("unidirectional", 0):
        dtype = found.number_type
        lowest = float(np.finfo(dtype).min)
        read = causal(queries, keys, past)[None, None]
        read[..., -1, :] = True  # the runtime masks nothing for the last query, however many keys there are
        if mask:
            mask = found.compute("Where", [found.constant(read), mask, found.number(lowest)])
        else:
            mask = found.constant(np.where(read, 0.0, lowest).astype(dtype))
    return [mask] if mask else []


def _of_padding(found: Decomposition, place: int, queries: Heads, keys: Heads) -> str:
    """Return the mask of padded keys: ones and zeros for keys, or ends of sequences, and then their starts."""
    shape, filled = found.shape(place, 1, 2, 3), found.attributes().get("mask_filter_value", _MASKED)
    batch, places = queries.batch, found.constant(np.arange(keys.rows, dtype=np.int32))
    if shape in ((batch, keys.rows), (batch, queries.rows, keys.rows)):
        rows = shape[1] if len(shape) > 2 else 1
        given = found.reshaped(found.required(place), (batch, 1, rows, keys.rows))
        read = found.compute("Greater", [given, found.constant(np.array(0, np.int32))])
    elif shape in ((batch,), (2 * batch,)):
        ends = found.reshaped(found.required(place), (shape[0] // batch, batch, 1, 1, 1))
        read = found.compute("Less", [places, found.reshaped(found.sliced(ends, 0, 0, 1), (batch, 1, 1, 1))])
        if len(shape) and shape[0] > batch:
            start = found.reshaped(found.sliced(ends, 0, 1, 2), (batch, 1, 1, 1))
            before = found.compute("Less", [places, start])
            read = found.compute("And", [read, found.compute("Not", [before])])
    else:
        raise found.unsupported(f"The compiler does not support a mask of shape {list(shape)}")
    lowest = float(np.finfo(found.number_type).min)
    return found.compute("Where", [read, found.number(0.0), found.number(max(filled, lowest))])
