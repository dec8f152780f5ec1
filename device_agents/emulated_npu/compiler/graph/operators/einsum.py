"""Einsum: products of matrices or element by element, two operands at a time, sums and permutations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.constants import derived
from device_agents.emulated_npu.compiler.graph.drafts import Builder, Handler
from device_agents.emulated_npu.compiler.graph.hardware_graph import View
from device_agents.emulated_npu.compiler.graph.operators.normalisation import axes_mask
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import OnnxNode, unsupported
from device_agents.emulated_npu.unit_commands import Function
from device_agents.emulated_npu.unit_settings import Binary, Reduction, Settings

_ELLIPSIS = "..."
_FREE = "0123456789"
"""Labels of the axes of an ellipsis, the last one first."""


def einsum(build: Builder, node: OnnxNode) -> None:
    """Add an Einsum; raises UnsupportedOperator for diagonals, and where ONNX infers a wrong shape."""
    operands = [build.view(name) for name in node.inputs]
    terms, wanted = _labels(node, operands)
    sizes: dict[str, int] = {}
    for term, view in zip(terms, operands, strict=True):
        for label, size in zip(term, view.shape, strict=True):
            known = sizes.setdefault(label, size)
            if 1 not in (known, size) and known != size:
                raise unsupported(node, f"Its label {label!r} has {known} and {size} elements")
            sizes[label] = max(known, size)
    if tuple(sizes[label] for label in wanted) != build.type(node.outputs[0]).shape:
        why = "One of its labels has 1 element in the first operand and more in a later one"
        raise unsupported(node, why, "Export it with an ellipsis, such as '...ij,...jk->...ik', or expand that operand")
    for place, term in enumerate(terms):
        others = {*wanted, *(label for other in terms[:place] + terms[place + 1 :] for label in other)}
        if alone := [label for label in term if label not in others]:
            operands[place], terms[place] = _summed(build, operands[place], term, alone)
    if len(operands) == 1:
        build.bind(node.outputs[0], _arranged(operands[0], terms[0], wanted, sizes))
        return
    if len(operands) == 2 and build.constant(node.inputs[0]) is not None:  # weights are the second factor
        operands, terms = operands[::-1], terms[::-1]
    while len(operands) > 2:
        kept = "".join(dict.fromkeys(label for label in terms[0] + terms[1] if label in "".join((wanted, *terms[2:]))))
        name, shape = f"{kept} of {len(operands)}", [sizes[label] for label in kept]
        target = build.temporary(name, shape, build.dtype(operands[0]))
        _contracted(build, operands[:2], (terms[0], terms[1], kept), sizes, target)
        operands, terms = [target, *operands[2:]], [kept, *terms[2:]]
    _contracted(build, operands, (terms[0], terms[1], wanted), sizes, None)


def _summed(build: Builder, operand: View, term: str, alone: Sequence[str]) -> tuple[View, str]:
    """Add the sum over the axes that no other operand has and the result has not; return it and its labels."""
    shape = tuple(1 if label in alone else size for label, size in zip(term, operand.shape, strict=True))
    total = build.temporary(f"sum of {term}", shape, build.dtype(operand))
    mask = axes_mask([term.index(label) for label in alone], len(term))
    build.layer(Function.REDUCE, [operand], total, Settings(axes=mask, mode=Reduction.SUM))
    kept = [(size, label) for size, label in zip(shape, term, strict=True) if label not in alone]
    return views.divided(total, tuple(size for size, _ in kept)), "".join(label for _, label in kept)


def _contracted(
    build: Builder, operands: Sequence[View], terms: tuple[str, str, str], sizes: Mapping[str, int], target: View | None
) -> None:
    """Add a product of two operands, of matrices if it sums over an axis of both; without a target, to the result."""
    first, second, wanted = terms
    summed = [label for label in first if label in second and label not in wanted]
    result = build.result() if target is None else target
    if summed:
        _product(build, operands, terms, summed, sizes, result)
        return
    arranged = [_arranged(view, term, wanted, sizes) for view, term in zip(operands, terms[:2], strict=True)]
    build.binary(Binary.MULTIPLY, arranged[0], arranged[1], result)


def _product(
    build: Builder,
    operands: Sequence[View],
    terms: tuple[str, str, str],
    summed: Sequence[str],
    sizes: Mapping[str, int],
    result: View,
) -> None:
    """Add a product of matrices: rows are the last axis that only the first operand has, other axes are a batch."""
    first, second, wanted = terms
    both = [label for label in wanted if label in first and label in second]
    rows = [label for label in wanted if label in first and label not in second]
    columns = [label for label in wanted if label in second and label not in first]
    outer, last, inner, right = map("".join, ([*both, *rows[:-1]], rows[-1:], summed, columns))
    count, depth, width = (math.prod(sizes[label] for label in part) for part in (last, inner, right))
    batch = tuple(sizes[label] for label in outer)
    name = result.value
    left = _arranged(operands[0], first, outer + last + inner, sizes)
    left = build.reshape(left, (*batch, count, depth), f"{name}.first", f"first of {wanted}")
    order = [wanted.index(label) for label in outer + last + right]
    shape = (*batch, count, width)
    merged = views.reshaped(views.permuted(result, order), shape)
    target = merged or build.temporary(f"product of {wanted}", shape, build.dtype(left))
    value = build.values[operands[1].value]
    constant = value.constant if views.is_whole(operands[1], value.shape) else None
    if constant is not None and not both:
        axes = [second.index(label) for label in inner + right]
        made = f"{constant.name}.{inner}{right}"
        weights = derived(made, (depth, width), constant.dtype, (constant,), lambda array: array.transpose(axes))
        build.layer(Function.CONVOLVE, [left], target, weights=weights, matrix=True)
    else:
        arranged = _arranged(operands[1], second, outer + inner + right, sizes)
        factor = build.reshape(arranged, (*batch, depth, width), f"{name}.second", f"second of {wanted}")
        build.layer(Function.CONVOLVE, [left, factor], target, matrix=True)
    if merged is None:
        parts = views.divided(target, tuple(sizes[label] for label in outer + last + right))
        build.copy(parts, views.permuted(result, order))


def _arranged(view: View, term: str, wanted: str, sizes: Mapping[str, int]) -> View:
    """Return a view with the axes that `wanted` names, in that order; axes that it does not have repeat."""
    view = views.permuted(view, [term.index(label) for label in wanted if label in term])
    for place, label in enumerate(wanted):
        if label not in term:
            view = views.with_axis(view, place, 1)
    return views.expanded(view, tuple(sizes[label] for label in wanted))


def _labels(node: OnnxNode, operands: Sequence[View]) -> tuple[list[str], str]:
    """Return one label for each axis of every operand, and those of the output; an ellipsis becomes digits."""
    equation = node.attribute("equation").decode().replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise unsupported(node, f"Its equation has {len(terms)} operands, the node {len(operands)}")
    if not arrow:
        letters = sorted(label for label in set(left) - set(",.") if left.count(label) == 1)
        right = (_ELLIPSIS if _ELLIPSIS in left else "") + "".join(letters)
    found, most = [], 0
    for term, view in zip(terms, operands, strict=True):
        count = len(view.axes) - len(term.replace(_ELLIPSIS, ""))
        if count < 0 or (count and _ELLIPSIS not in term) or count > len(_FREE):
            raise unsupported(node, f"Its term {term[:40]!r} does not fit {len(view.axes)} axes")
        most = max(most, count)
        found.append(term.replace(_ELLIPSIS, _FREE[:count][::-1]))
    wanted = right.replace(_ELLIPSIS, _FREE[:most][::-1])
    if any(len(set(term)) < len(term) for term in (*found, wanted)) or set(wanted) - set("".join(found)):
        raise unsupported(node, "It names an axis twice, or one that no operand has")
    return found, wanted


HANDLERS: Mapping[str, Handler] = {"Einsum": einsum}
