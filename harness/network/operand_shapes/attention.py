"""Attention and rotary embeddings, as opset 23 and later define them."""

from __future__ import annotations

from collections.abc import Iterator

from harness.network.operand_shapes.node_operands import NodeOperands, Shape, must_be, same_rank


def attention(operands: NodeOperands) -> Iterator[str]:
    """An Attention; its Q, K and V have three dimensions, or four with the heads in the second."""
    query, key, value = shapes = tuple(operands.shape(place) for place in range(3))
    if query is None or key is None or value is None:
        return
    if not len(query) == len(key) == len(value) or len(query) not in (3, 4):
        yield f"Its Q, K and V have {len(query)}, {len(key)} and {len(value)} dimensions; all need 3, or all 4"
        return
    if not query[0] == key[0] == value[0]:
        yield f"Its Q, K and V have batches of {query[0]}, {key[0]} and {value[0]}"
    if key[-2] != value[-2]:
        yield f"Its K and V have sequences of {key[-2]} and {value[-2]}"
    own = operands.number("kv_num_heads", 0)
    heads = [query[1], key[1], value[1]] if len(query) == 4 else [operands.number("q_num_heads", 0), own, own]
    flat = [shape for shape in shapes if shape is not None and len(shape) == 3]
    if min(heads) < 1 or any(shape[2] % count for shape, count in zip(flat, heads, strict=False)):
        yield f"Its Q, K and V of {query[2]}, {key[2]} and {value[2]} cannot be divided into {heads} heads"
        return
    if heads[1] != heads[2] or heads[0] % heads[1]:
        yield f"Its Q, K and V have {heads[0]}, {heads[1]} and {heads[2]} heads"
    sizes = [shape[2] // count for shape, count in zip(flat, heads, strict=False)]
    sizes = sizes or [query[3], key[3], value[3]]
    if sizes[0] != sizes[1]:
        yield f"The heads of its Q and K have sizes of {sizes[0]} and {sizes[1]}"
    yield from _mask(operands, (query[0], heads[0], query[-2]))
    yield from _past(operands, (query[0], heads[1]), sizes[1:])
    yield from must_be("nonpad_kv_seqlen", operands.shape(6), (query[0],))


def _mask(operands: NodeOperands, into: Shape) -> Iterator[str]:
    mask = operands.shape(3)
    if mask is None:
        return
    ends = zip(mask[-2::-1], into[::-1], strict=False)
    if not 2 <= len(mask) <= 4 or any(own not in (1, size) for own, size in ends):
        yield f"Its mask has shape {list(mask)}; it must fit {list(into)} and the sequence of K"


def _past(operands: NodeOperands, batch_and_heads: Shape, sizes: list[int]) -> Iterator[str]:
    lengths = set()
    for place, what, size in ((4, "past key", sizes[0]), (5, "past value", sizes[1])):
        past = operands.shape(place)
        if past is None:
            continue
        if len(past) != 4 or past[:2] != batch_and_heads or past[3] != size:
            yield f"Its {what} has shape {list(past)}; it must have {[*batch_and_heads, 'any length', size]}"
            return
        lengths.add(past[2])
    if len(lengths) > 1:
        yield f"Its past key and past value have different lengths: {sorted(lengths)}"


def rotary(operands: NodeOperands) -> Iterator[str]:
    """A RotaryEmbedding."""
    read, cosines, sines, positions = (operands.shape(place) for place in range(4))
    if read is None or cosines is None or sines is None:
        return
    yield from must_be("sin_cache", sines, cosines)
    yield from same_rank("cos_cache", cosines, 3 if positions is None else 2)
    if len(read) not in (3, 4):
        yield f"Its input has {len(read)} dimensions; it must have 3 or 4"
        return
    if positions is not None:
        yield from must_be("position_ids", positions, (read[0], read[-2]))
    heads = 1 if len(read) == 4 else max(1, operands.number("num_heads", 1))
    if read[-1] % heads:
        yield f"Its input of {read[-1]} cannot be divided into {heads} heads"
    rotated = operands.number("rotary_embedding_dim", 0) or read[-1] // heads
    if rotated > read[-1] // heads or (cosines and cosines[-1] != rotated // 2):
        yield f"Its cos_cache ends with {cosines[-1:]}; it must end with half of {rotated}"
