"""The attention operators of ONNX Runtime: where their queries, keys and values are, and what they store of the past.

Attention computes queries, keys and values from one input, MultiHeadAttention takes them, and in GroupQueryAttention
several heads of queries share one of keys. Every sequence of a batch of GroupQueryAttention has the total length that
the node states.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from device_agents.emulated_npu.compiler.graph.reading.attention_heads import (
    Heads,
    attended,
    behind,
    causal,
    divided,
    mask_of,
)
from device_agents.emulated_npu.compiler.graph.reading.decomposition import Decompose, Decomposition
from device_agents.emulated_npu.compiler.graph.reading.packed_weights import scaled_product
from device_agents.emulated_npu.compiler.graph.reading.rotary_embedding import Rotation, embedding


def _of_one_input(found: Decomposition, product: str, places: tuple[int, int]) -> None:
    """Decompose Attention after the product of its input and weights; `places` are those of mask and past."""
    batch, rows, _ = found.shape(0, 3)
    given, width = found.attributes(), found.shape(1, 2)[1]
    count, sizes = given.get("num_heads", 0), list(given.get("qkv_hidden_sizes") or [width // 3] * 3)
    if len(sizes) != 3 or sum(sizes) != width or sizes[0] != sizes[1] or min(sizes) < 1:
        raise found.invalid(f"Its weights have {width} columns for {sizes}")
    if given.get("do_rotary", 0) or found.input(6 if places[0] == 3 else 9):
        raise found.unsupported("The compiler does not support its rotation or its shared past")
    starts = (0, sizes[0], 2 * sizes[0])
    queries, keys, values = (
        divided(found, found.sliced(product, 2, start, start + size), (batch, rows, size), count)
        for start, size in zip(starts, sizes, strict=True)
    )
    (mask_place, past_place), past = places, 0
    if found.input(past_place):
        shape = found.shape(past_place, 5)
        past = shape[3]
        parts = [
            found.reshaped(found.sliced(found.required(past_place), 0, part, part + 1), shape[1:]) for part in (0, 1)
        ]
        keys, values = (behind(found, *pair, past) for pair in zip(parts, (keys, values), strict=True))
    if found.output(1):
        kept = [found.reshaped(heads.tensor, (1, *heads.shape)) for heads in (keys, values)]
        found.bound(found.joined(kept, 0), 1)
    biases = mask_of(found, mask_place, queries, keys, past)
    if places[0] == 3 and found.input(5):
        biases.append(found.input(5))
    attended(found, queries, keys, values, biases)


def _attention(found: Decomposition) -> None:
    product = found.compute("MatMul", [found.required(0), found.required(1)])
    if found.input(2):
        product = found.compute("Add", [product, found.input(2)])
    _of_one_input(found, product, (3, 4))


def _given_heads(found: Decomposition, place: int, shape: tuple[int, ...], offset: int) -> Heads:
    """Return queries, keys or values (batch, rows, heads * size), plus their part of the bias, or by heads."""
    tensor, count = found.required(place), found.attributes().get("num_heads", 0)
    if len(shape) == 4:
        return Heads(tensor, *shape)
    if found.input(3):
        tensor = found.compute("Add", [tensor, found.sliced(found.input(3), 0, offset, offset + shape[2])])
    return divided(found, tensor, shape, count)


def _several_inputs(found: Decomposition) -> None:
    """Decompose MultiHeadAttention, whose queries, keys and values are inputs."""
    if any(map(found.input, (8, 9))) or found.output(3):
        raise found.unsupported("The compiler does not support its shared past, its beams, or its output of products")
    if found.required(0) and not (found.input(1) and found.input(2)):
        raise found.unsupported("The compiler does not support packed heads; nor does ONNX Runtime on a CPU")
    first, second = found.shape(0, 3), found.shape(1, 3, 4)
    queries, keys = _given_heads(found, 0, first, 0), _given_heads(found, 1, second, first[2])
    values = _given_heads(found, 2, found.shape(2, len(second)), 2 * first[2])
    past = found.shape(6, 4)[2] if found.input(6) else 0
    if past:
        keys, values = (behind(found, found.required(place), heads, past) for place, heads in ((6, keys), (7, values)))
    found.bound(keys.tensor, 1)
    found.bound(values.tensor, 2)
    biases = mask_of(found, 4, queries, keys, past)
    if found.input(5):
        biases.append(found.input(5))
    attended(found, queries, keys, values, biases)


def _grouped(found: Decomposition) -> None:
    """Decompose GroupQueryAttention: keys and values go after the past, or to their place in a buffer."""
    given, (batch, rows, width) = found.attributes(), found.shape(0, 3)
    count, pairs = given.get("num_heads", 0), given.get("kv_num_heads", 0)
    if count < 1 or pairs < 1 or count % pairs:
        raise found.invalid(f"Its {count} heads of queries do not fit {pairs} of keys")
    if found.output(3) or any(map(found.input, (12, 13))):
        raise found.unsupported("The compiler does not support its quantised past or its output of products")
    queries, keys, values = _parts(found, (batch, rows, width), count, pairs)
    buffer = found.shape(3, 4)[2] if found.input(3) else 0
    total = found.value(found.required(6))
    if total is None or total.size != 1:
        raise found.unsupported("Its total_sequence_length is not constant")
    past = int(total.reshape(-1)[0]) - rows
    if not 0 <= past <= buffer:
        raise found.invalid(f"Its total_sequence_length is {past + rows}, with {rows} new tokens and {buffer} before")
    last = found.value(found.input(5))
    if last is not None and (last != past + rows - 1).any():
        raise found.unsupported(f"Its seqlens_k are not all {past + rows - 1}, as its total_sequence_length says")
    if given.get("do_rotary", 0):
        rotation = Rotation.of(found, (7, 8, 9), rows, past)
        queries, keys = (
            Heads(rotation.turned(found, heads.tensor, heads.shape), *heads.shape) for heads in (queries, keys)
        )
    kept = []
    for place, heads in ((3, keys), (4, values)):
        before = found.sliced(found.required(place), 2, 0, past) if past else ""
        whole = behind(found, before, heads, past)
        rest = (batch, pairs, max(buffer - whole.rows, 0), whole.size)  # the runtime clears the end of a buffer
        after = [found.constant(np.zeros(rest, found.number_type))] if all(rest) else []
        found.bound(found.joined([whole.tensor, *after], 2), place - 2)
        kept.append(whole)
    keys, values = kept
    read, dtype = causal(queries, keys, past, given.get("local_window_size", -1)), found.number_type
    biases = [found.constant(np.where(read, 0.0, np.finfo(dtype).min).astype(dtype))] if not read.all() else []
    if found.input(10):
        biases.append(found.input(10))
    attended(found, queries, keys, values, biases, _sink(found, count))


def _parts(found: Decomposition, shape: tuple[int, int, int], count: int, pairs: int) -> list[Heads]:
    """Return queries, keys and values of a GroupQueryAttention: three inputs, or columns of one."""
    batch, rows, width = shape
    if found.input(1):
        counts = ((0, count), (1, pairs), (2, pairs))
        return [divided(found, found.required(place), found.shape(place, 3), number) for place, number in counts]
    if width % (count + 2 * pairs):
        raise found.invalid(f"Its {count} and twice {pairs} heads do not divide {width} elements")
    size, start, parts = width // (count + 2 * pairs), 0, []
    for number in (count, pairs, pairs):
        part = found.sliced(found.required(0), 2, start, start + number * size)
        parts.append(divided(found, part, (batch, rows, number * size), number))
        start += number * size
    return parts


def _sink(found: Decomposition, count: int) -> str:
    """Return the product of the sink of each head, (1, heads, 1, 1); "" if there is none."""
    if found.input(11):
        return found.reshaped(found.input(11), (1, count, 1, 1))
    if found.attributes().get("smooth_softmax", 0) == 1:
        return found.constant(np.zeros((1, 1, 1, 1), found.number_type))
    return ""


def _of_integers(found: Decomposition) -> None:
    """Decompose QAttention, whose product has integer factors."""
    factors = [found.required(0), found.required(1), found.input(6), found.input(7)]
    product = scaled_product(found, factors, [found.required(3), found.required(4)], found.required(2))
    _of_one_input(found, product, (5, 8))


DECOMPOSITIONS: Mapping[str, Decompose] = {
    "Attention": _attention,
    "MultiHeadAttention": _several_inputs,
    "GroupQueryAttention": _grouped,
    "QAttention": _of_integers,
    "RotaryEmbedding": embedding,
}
