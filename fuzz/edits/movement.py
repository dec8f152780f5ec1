"""Insert operators that move data: views, cuts, repetitions, reductions, and shapes that are computed."""

from typing import Any

import numpy as np

from fuzz.edits.draft import Draft, Edit, Kind, Unsuited

_REDUCTIONS = ("Mean", "Sum", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSumExp")


def _ints(draft: Draft, *values: int) -> str:
    return draft.constant(np.array(values, np.int64))


def transpose(draft: Draft) -> None:
    """Insert Transpose, often with its inverse behind it."""
    tensor, kind = draft.choose(lambda kind: len(kind.shape) > 1)
    perm = draft.draw.sample(range(len(kind.shape)), len(kind.shape))
    (turned,) = draft.append("Transpose", [tensor], perm=perm)
    if draft.draw.random() < 0.6:
        if kind.is_float and draft.draw.random() < 0.5:
            (turned,) = draft.append("Relu", [turned])
        (turned,) = draft.append("Transpose", [turned], perm=np.argsort(perm).tolist())
    draft.attach(turned, tensor)


def reshape(draft: Draft) -> None:
    """Insert Reshape to another factorisation, often with the way back."""
    tensor, kind = draft.choose(lambda kind: kind.elements > 0)
    draw, sizes, rest = draft.draw, [], kind.elements
    for _ in range(draw.randrange(4)):
        sizes.append(draw.choice([size for size in range(1, min(rest, 64) + 1) if rest % size == 0]))
        rest //= sizes[-1]
    sizes.append(rest)
    stated = list(sizes)
    if draw.random() < 0.4:
        stated[draw.randrange(len(stated))] = -1
    (view,) = draft.append("Reshape", [tensor, _ints(draft, *stated)])
    if draw.random() < 0.5:
        (view,) = draft.append("Reshape", [view, _ints(draft, *kind.shape)])
    draft.attach(view, tensor)


def computed_shape(draft: Draft) -> None:
    """Insert Reshape to a shape that the network computes: Shape, Gather, arithmetic and Concat over constants."""
    tensor, kind = draft.choose(lambda kind: len(kind.shape) > 0)
    draw = draft.draw
    (shape,) = draft.append("Shape", [tensor])
    at = draw.randrange(len(kind.shape))
    (part,) = draft.append("Gather", [shape, _ints(draft, at)], axis=0)
    if draw.random() < 0.5:
        factor = _ints(draft, draw.choice((1, 2, 3)))
        (part,) = draft.append("Mul", [part, factor])
        (part,) = draft.append("Div", [part, factor])
    before = [_ints(draft, *kind.shape[:at])] if at else []
    after = [_ints(draft, *kind.shape[at + 1 :])] if at + 1 < len(kind.shape) else []
    (wanted,) = draft.append("Concat", [*before, part, *after], axis=0)
    if draw.random() < 0.5 or not kind.is_float:
        (found,) = draft.append("Reshape", [tensor, wanted])
    else:
        (ones,) = draft.append("ConstantOfShape", [wanted])
        (cast,) = draft.append("Cast", [ones], to=kind.element)
        (found,) = draft.append("Add", [tensor, cast])
    draft.state(found, kind)
    draft.attach(found, tensor)


def view(draft: Draft) -> None:
    """Insert Flatten, Squeeze, Unsqueeze or Expand."""
    tensor, kind = draft.choose()
    draw, rank = draft.draw, len(kind.shape)
    operator = draw.choice(("Flatten", "Unsqueeze", "Squeeze", "Expand", "Unsqueeze"))
    if operator == "Flatten":
        draft.attach(draft.append("Flatten", [tensor], axis=draw.randrange(rank + 1))[0], tensor)
        return
    if operator == "Expand":
        if draft.opset < 8:
            raise Unsuited("no such operator")
        shape = [size if size > 1 else draw.choice((1, 2)) for size in kind.shape]
        draft.attach(draft.append("Expand", [tensor, _ints(draft, *shape)])[0], tensor)
        return
    if operator == "Squeeze":
        axes = [at for at, size in enumerate(kind.shape) if size == 1][: draw.choice((1, 2))]
        if not axes:
            raise Unsuited("no axis of size one")
    else:
        axes = [draw.randrange(rank + 1)]
    (found,) = _with_axes(draft, operator, tensor, axes, since=13)
    if draw.random() < 0.6:
        (found,) = _with_axes(draft, "Squeeze" if operator == "Unsqueeze" else "Unsqueeze", found, axes, since=13)
    draft.attach(found, tensor)


def reduction(draft: Draft) -> None:
    """Insert a reduction over some axes."""
    tensor, kind = draft.choose(lambda kind: kind.is_float and len(kind.shape) > 0)
    axes = draft.draw.sample(range(len(kind.shape)), draft.draw.randrange(1, len(kind.shape) + 1))
    name = draft.draw.choice(_REDUCTIONS)
    given = draft.draw.choice(({}, {"keepdims": 0}, {"keepdims": 1}))
    draft.attach(_with_axes(draft, f"Reduce{name}", tensor, axes, 13 if name == "Sum" else 18, **given)[0], tensor)


def _with_axes(draft: Draft, operator: str, tensor: str, axes: list[int], since: int, **given: Any) -> list[str]:
    """Append an operator whose axes are an attribute in older opsets and an input in newer ones."""
    if draft.opset >= since:
        return draft.append(operator, [tensor, _ints(draft, *axes)], **given)
    return draft.append(operator, [tensor], axes=axes, **given)


def cut(draft: Draft) -> None:
    """Insert Slice or Pad."""
    tensor, kind = draft.choose(lambda kind: kind.is_float and len(kind.shape) > 0)
    draw, axis = draft.draw, draft.draw.randrange(len(kind.shape))
    size = kind.shape[axis]
    if draw.random() < 0.5:
        start = draw.randrange(size)
        ends = draw.choice((size, (1 << 63) - 1, start + 1))
        if draft.opset < 10:
            draft.attach(draft.append("Slice", [tensor], starts=[start], ends=[ends], axes=[axis])[0], tensor)
            return
        extra = [_ints(draft, axis), *([_ints(draft, draw.choice((1, 2)))] if draw.random() < 0.4 else [])]
        draft.attach(draft.append("Slice", [tensor, _ints(draft, start), _ints(draft, ends), *extra])[0], tensor)
        return
    pads = [0] * (2 * len(kind.shape))
    pads[axis] = draw.choice((0, 1))
    pads[len(kind.shape) + axis] = draw.choice((0, 1, 2)) if size > 2 else 0
    mode = draw.choice(("constant", "edge", "reflect")) if size > 2 else "constant"
    if draft.opset < 11:
        draft.attach(draft.append("Pad", [tensor], pads=pads, mode=mode)[0], tensor)
    else:
        draft.attach(draft.append("Pad", [tensor, _ints(draft, *pads)], mode=mode)[0], tensor)


def gather(draft: Draft) -> None:
    """Insert Gather or GatherElements with constant indices."""
    tensor, kind = draft.choose(lambda kind: len(kind.shape) > 0)
    axis = draft.draw.randrange(len(kind.shape))
    count = draft.draw.choice((1, 2, kind.shape[axis]))
    generator = np.random.default_rng(draft.draw.randrange(1 << 16))
    element = draft.draw.choice((np.int64, np.int32))
    if draft.draw.random() < 0.7 or draft.opset < 11:
        shape: tuple[int, ...] = draft.draw.choice(((count,), (), (1, count)))
        operator = "Gather"
    else:
        shape, operator = (*kind.shape[:axis], count, *kind.shape[axis + 1 :]), "GatherElements"
    indices = generator.integers(0, kind.shape[axis], shape)
    draft.attach(draft.append(operator, [tensor, draft.constant(np.asarray(indices, element))], axis=axis)[0], tensor)


def split(draft: Draft) -> None:
    """Insert Split and Concat, or Concat of a tensor with others of the same type."""
    tensor, kind = draft.choose(lambda kind: len(kind.shape) > 0)
    draw, axis = draft.draw, draft.draw.randrange(len(kind.shape))
    size = kind.shape[axis]
    parts = [tensor, draw.choice(draft.tensors(lambda other: other == kind))]
    if size > 1 and draw.random() < 0.7:
        first = draw.randrange(1, size)
        if draft.opset >= 13:
            parts = draft.append("Split", [tensor, _ints(draft, first, size - first)], 2, axis=axis)
        else:
            parts = draft.append("Split", [tensor], 2, axis=axis, split=[first, size - first])
        if kind.is_float and draw.random() < 0.5:
            parts[0] = draft.append("Relu", parts[:1])[0]
    if draw.random() < 0.8:
        draft.attach(draft.append("Concat", parts, axis=axis)[0], tensor)
    else:
        draft.attach(parts[0], tensor)


def repeat(draft: Draft) -> None:
    """Insert Tile or Resize."""
    tensor, kind = draft.choose(lambda kind: kind.is_float and 0 < len(kind.shape) < 5)
    draw, rank = draft.draw, len(kind.shape)
    if draw.random() < 0.5:
        repeats = [draw.choice((1, 1, 2)) for _ in range(rank)]
        draft.attach(draft.append("Tile", [tensor, _ints(draft, *repeats)])[0], tensor)
        return
    scales = draft.constant(np.array([draw.choice((1.0, 1.0, 2.0, 0.5)) for _ in range(rank)], np.float32))
    mode = draw.choice(("nearest", "linear"))
    if draft.opset < 10:
        draft.attach(draft.append("Upsample", [tensor, scales], mode=mode)[0], tensor)
    elif draft.opset == 10:
        draft.attach(draft.append("Resize", [tensor, scales], mode=mode)[0], tensor)
    else:
        shape = [max(1, size * draw.choice((1, 2))) for size in kind.shape]
        inputs = [tensor, "", scales] if draw.random() < 0.5 else [tensor, "", "", _ints(draft, *shape)]
        draft.attach(draft.append("Resize", inputs, mode=mode)[0], tensor)


def blocks(draft: Draft) -> None:
    """Insert DepthToSpace or SpaceToDepth."""
    tensor, kind = draft.choose(lambda kind: kind.element == 1 and len(kind.shape) == 4)
    if kind.shape[1] % 4 == 0:
        draft.attach(draft.append("DepthToSpace", [tensor], blocksize=2)[0], tensor)
    elif kind.shape[2] % 2 == 0 and kind.shape[3] % 2 == 0:
        draft.attach(draft.append("SpaceToDepth", [tensor], blocksize=2)[0], tensor)
    else:
        raise Unsuited("channels and pixels do not divide")


def selection(draft: Draft) -> None:
    """Insert TopK, ArgMax or CumSum; or an operator whose result has a size that depends on the data."""
    tensor, kind = draft.choose(lambda kind: kind.is_float and len(kind.shape) > 0)
    operator = draft.draw.choice(("TopK", "ArgMax", "CumSum", "NonZero", "TopK", "ArgMax", "CumSum"))
    axis = draft.draw.randrange(len(kind.shape))
    if operator == "TopK" and draft.opset >= 10:
        many = draft.append("TopK", [tensor, _ints(draft, draft.draw.randrange(1, kind.shape[axis] + 1))], 2, axis=axis)
        draft.attach(draft.draw.choice(many), tensor)
    elif operator == "CumSum" and draft.opset >= 11:
        draft.attach(draft.append("CumSum", [tensor, draft.constant(np.array(axis, np.int64))])[0], tensor)
    elif operator == "NonZero" and draft.opset >= 9:
        draft.output(draft.append("NonZero", [tensor])[0])
    else:
        draft.attach(draft.append("ArgMax", [tensor], axis=axis)[0], tensor)


def sums(draft: Draft) -> None:
    """Insert Einsum over one or two tensors."""
    tensor, kind = draft.choose(lambda kind: kind.element == 1 and len(kind.shape) in (2, 3) and draft.opset >= 12)
    letters = "abc"[: len(kind.shape)]
    if draft.draw.random() < 0.5:
        draft.attach(draft.append("Einsum", [tensor], equation=f"{letters}->{letters[::-1]}")[0], tensor)
        return
    weight = draft.numbers(Kind(kind.element, (kind.shape[-1], 4)))
    equation = f"{letters},{letters[-1]}z->{letters[:-1]}z"
    draft.attach(draft.append("Einsum", [tensor, weight], equation=equation)[0], tensor)


def folded(draft: Draft) -> None:
    """Insert a sum with a constant that is computed: a chain of operators over constants, which readers fold."""
    tensor, kind = draft.choose(lambda kind: kind.is_float)
    draw = draft.draw
    source = draw.choice(("numbers", "range", "shape"))
    if source == "range" and draft.opset >= 11:
        ends = [draft.constant(np.array(value, np.float32)) for value in (0, 4, 1)]
        (found,) = draft.append("Range", ends)
    elif source == "shape":
        sizes = draw.choice(((1,), (2, 3), (300, 300), (40, 40)))
        (found,) = draft.append("ConstantOfShape", [_ints(draft, *sizes)])
    else:
        found = draft.constant(np.ones(draw.choice(((), (1,), (2, 3), (1, 4))), np.float32))
    for _ in range(draw.randrange(4)):
        operator = draw.choice(("Exp", "Neg", "Sqrt", "Mul", "Add", "Relu", "Ceil"))
        (found,) = draft.append(operator, [found, found] if operator in ("Mul", "Add") else [found])
    (found,) = draft.append("ReduceMean", [found], keepdims=0)
    (found,) = draft.append("Cast", [found], to=kind.element)
    draft.attach(draft.append(draw.choice(("Add", "Mul", "Sub")), [tensor, found])[0], tensor)


EDITS: tuple[Edit, ...] = (
    transpose,
    reshape,
    computed_shape,
    view,
    reduction,
    cut,
    gather,
    split,
    repeat,
    blocks,
    selection,
    sums,
    folded,
)
