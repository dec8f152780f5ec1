"""How a data-movement layer accesses memory: the length of what is contiguous, in elements, and how many tensors."""

import itertools
import math
from collections.abc import Sequence

from harness.network.network import BYTES, ITEM_BYTES
from harness.network.operator_kinds import SCALING
from harness.predictor.features.key_parser import PICKING, SAMPLING, SCATTERS, KeyOperator, ParsedKey, Shape, Tensor
from harness.predictor.features.layer_features import WIDEST

_SCATTERED = SCALING | {"DepthToSpace", "SpaceToDepth"}
_COMBINING = frozenset({"Add", "Sub", "Mul", "PRelu", "Min", "Max", "Sum"})
_ALONG_ROWS = frozenset({"Pad", "Slice", "Tile", "LayerNormalization", "RMSNormalization"})
_MAP_AXES = 4
_PAGE_BYTES = 4096


def run_of(layer: ParsedKey) -> int:
    """Return the shortest run of all operators of a layer; 0 if none of them jumps."""
    found = [_run(operator, layer) for operator in layer.operators]
    return min((run for run in found if run), default=0)


def is_general(operator: KeyOperator) -> bool:
    """Return whether a transposition moves more than one axis past the others, for which runtimes have no fast loop."""
    _, order = _transposed(operator)
    without = ([one for one in order if one != axis] for axis in order)
    return len(order) > 0 and all(rest != sorted(rest) for rest in without)


def moves_rows(operator: KeyOperator) -> bool:
    """Return whether a transposition leaves its last axis, so that it moves rows of several elements."""
    return _unmoved(*_transposed(operator)) > 1


def is_paged(operator: KeyOperator) -> bool:
    """Return whether a transposition reads or writes one element from each of many pages.

    Elements that are whole pages apart share few places of a cache.
    """
    read, order = _transposed(operator)
    if not order or _unmoved(read, order) != 1:
        return False
    kept = [axis for axis in order if read[axis] > 1]
    apart = math.prod(read[kept[-1] + 1 :]), math.prod(read[axis] for axis in kept[kept.index(max(kept)) + 1 :])
    return any(elements * ITEM_BYTES.get(operator.tensors[0].dtype, 4) % _PAGE_BYTES == 0 for elements in apart)


def _run(operator: KeyOperator, layer: ParsedKey) -> int:
    if operator.op in ("GatherElements", "ScatterElements"):
        return 1
    read = operator.tensors[0].shape if operator.tensors else None
    if not read:
        return 0
    if operator.op == "Transpose":
        return _unmoved(*_transposed(operator))
    if operator.op in ("Concat", "Split"):
        return _along(operator, layer)
    if operator.op in PICKING:
        return _picked(operator, read)
    if operator.op in _SCATTERED:
        return 1
    if operator.op == SAMPLING:  # the place of a pixel is computed once for all of its channels
        return math.prod(read[1:2])
    if normalised := normalised_rows(operator):
        _, row = normalised
        # To compute the exponentials of a part of a vector takes as long as to begin another row.
        return -(-row // 2) if "Softmax" in operator.op and row % WIDEST else row
    if operator.op in _ALONG_ROWS:
        return read[-1]
    if operator.op == "Expand":
        return _expanded(read, layer.outputs[0].shape or read)
    if operator.op.startswith("Reduce"):
        return _reduced(operator, read)
    if operator.op in _COMBINING:
        return _broadcast(_in_memory(operator.tensors))
    return 0


def normalised_rows(operator: KeyOperator) -> Shape:
    """Return how many planes or rows an InstanceNormalization or Softmax combines, and their length; else ()."""
    read, axis = (operator.tensors[0].shape or () if operator.tensors else ()), operator.number("axis", -1)
    own = {
        "InstanceNormalization": read[2:],
        "Softmax": read[axis:][:1],
        "LogSoftmax": read[axis:][:1],
        "Softmax-12": read[axis:],
        "LogSoftmax-12": read[axis:],
    }.get(operator.op, ())
    return (math.prod(read) // math.prod(own), math.prod(own)) if own else ()


def _in_memory(tensors: Sequence[Tensor]) -> list[Shape]:
    """Return the known shapes, all of one rank, with their axes as they lie in memory.

    Runtimes keep the channels of byte maps last, and everything that is combined with one in the same order.
    """
    shapes = [tensor.shape for tensor in tensors if tensor.shape is not None]
    rank = max(map(len, shapes), default=0)
    whole = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    if rank != _MAP_AXES or not _has_byte_maps(tensors):
        return whole
    return [(shape[0], *shape[2:], shape[1]) for shape in whole]


def _has_byte_maps(tensors: Sequence[Tensor]) -> bool:
    maps = (tensor.shape or () for tensor in tensors if tensor.dtype in BYTES and not tensor.constant)
    return any(len(shape) == _MAP_AXES for shape in maps)


def _transposed(operator: KeyOperator) -> tuple[Shape, Sequence[int]]:
    """Return the shape that a transposition reads, and its order of axes; both empty for other operators and orders."""
    read = operator.tensors[0].shape if operator.tensors else None
    order = operator.numbers("perm", tuple(range(len(read or ())))[::-1])
    return (read, order) if operator.op == "Transpose" and read and sorted(order) == [*range(len(read))] else ((), ())


def _unmoved(read: Shape, order: Sequence[int]) -> int:
    """Return the elements of the last axes that a transposition leaves last; axes of one element never matter."""
    kept = [axis for axis in order if read[axis] > 1]
    run = 1
    for axis, expected in zip(reversed(kept), sorted(kept, reverse=True), strict=True):
        if axis != expected:
            return run
        run *= read[axis]
    return 0


def _along(operator: KeyOperator, layer: ParsedKey) -> int:
    """Return the elements that lie together in the smallest part of what is joined or divided."""
    axis = operator.number("axis", 0)
    parts = layer.outputs if operator.op == "Split" else operator.tensors
    shapes = [tensor.shape for tensor in parts if tensor.shape]
    if axis == 1 and _has_byte_maps(layer.inputs):
        return min((shape[axis] for shape in shapes), default=0)
    return min((math.prod(shape[axis:]) for shape in shapes), default=0)


def _picked(operator: KeyOperator, read: Shape) -> int:
    """Return the elements that one index picks."""
    if operator.op == "Gather":
        return math.prod(read[operator.number("axis", 0) + 1 :])
    index = operator.tensor(1).shape
    if not index or not operator.op.endswith("ND"):
        return 1
    return math.prod(read[operator.number("batch_dims", 0) + index[-1] :])


def _expanded(read: Shape, written: Shape) -> int:
    """Return how many elements an Expand writes for each row that it repeats along its last repeated axis."""
    whole = (1,) * (len(written) - len(read)) + read
    repeated = [axis for axis, sizes in enumerate(zip(whole, written, strict=False)) if sizes[0] != sizes[1]]
    return math.prod(written) // math.prod(whole[: max(repeated, default=0)])


def _reduced(operator: KeyOperator, read: Shape) -> int:
    """Return the elements of the last axes that are all reduced, or all kept; axes of one element never matter."""
    longer = _longer_axes(operator, read)
    together = itertools.takewhile(lambda one: one[1] == longer[-1][1], reversed(longer))
    return math.prod(size for size, _ in together)


def reduced(layer: ParsedKey) -> tuple[Shape, bool]:
    """Return the shape of a reduction's result with all axes, and whether it adds up rows, not elements of a row."""
    for operator in layer.operators:
        read = operator.tensors[0].shape if operator.tensors else None
        if operator.op.startswith("Reduce") and read:
            axes = operator.numbers("axes", ())
            shape = tuple(1 if axis in axes else size for axis, size in enumerate(read))
            longer = _longer_axes(operator, read)
            return shape, bool(longer) and not longer[-1][1]
    return (), False


def _longer_axes(operator: KeyOperator, read: Shape) -> list[tuple[int, bool]]:
    """Return the sizes of the axes of several elements, and whether a reduction reduces each."""
    axes = operator.numbers("axes", ())
    return [(size, axis in axes) for axis, size in enumerate(read) if size > 1]


def _broadcast(shapes: Sequence[Shape]) -> int:
    """Return the elements that are combined with one other element, or with a row of others, before it changes.

    The shapes have one rank. Several may be repeated, as in the product of a column and a row.
    """
    if len(shapes) < 2:
        return 0
    result = tuple(map(max, zip(*shapes, strict=True)))
    runs = []
    for shape in shapes:
        if math.prod(shape) == 1 or shape == result:
            continue
        run, repeats = 1, shape[-1] == 1 and result[-1] > 1
        for own, full in zip(reversed(shape), reversed(result), strict=True):
            if full > 1 and (own == 1) != repeats:
                break
            run *= full
        runs.append(run)
    return min(runs, default=0)


def parts_of(layer: ParsedKey) -> int:
    """Return how many tensors a layer joins or divides."""
    joined = [len(operator.tensors) for operator in layer.operators if operator.op == "Concat"]
    divided = [len(layer.outputs) for operator in layer.operators if operator.op == "Split"]
    return max([1, *joined, *divided])


def copied_shapes(layer: ParsedKey, written: Shape, *, tables: bool) -> tuple[Shape, Shape]:
    """Return the shapes that a layer reads and writes if it only copies.

    Joined inputs and split outputs count, of other inputs only what is picked. With `tables`, the table that a scatter
    copies counts as well, and a computed one that rows are picked from.
    """
    written = max(_joined(layer), written, key=math.prod)
    for operator in layer.operators if tables else ():
        table = operator.tensor(0).shape if operator.op in PICKING else None
        if table and operator.op in SCATTERS:
            added = operator.tensor(2).shape
            return (2, *table), written if added is None else added
        if table and not operator.tensor(0).constant:
            return (math.prod(written) + math.prod(table),), written
    return written, written


def _joined(layer: ParsedKey) -> Shape:
    """Return the shape of all outputs as if they were one tensor."""
    if len(layer.outputs) == 1:
        return layer.outputs[0].shape or (1,)
    first = layer.outputs[0].shape or (1,)
    total = sum(math.prod(tensor.shape or ()) for tensor in layer.outputs)
    return (*first[:1], total // max(1, first[0]))
