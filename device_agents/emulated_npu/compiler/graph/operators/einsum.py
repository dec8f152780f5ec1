"""Einsum of one or two operands: a product of matrices, a product element by element, or a permutation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.constants import derived
from device_agents.emulated_npu.compiler.graph.drafts import Builder, Handler
from device_agents.emulated_npu.compiler.graph.hardware_graph import LazyConstant, View
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import OnnxNode, unsupported
from device_agents.emulated_npu.unit_commands import Binary, Function

_ELLIPSIS = "..."
_FREE = "0123456789"
"""Labels of the axes that an ellipsis stands for, the last one first."""


def einsum(build: Builder, node: OnnxNode) -> None:
    """Add an Einsum; raises UnsupportedOperator for diagonals, and for sums over an axis of one operand alone."""
    operands = [build.view(name) for name in node.inputs]
    terms, wanted = _labels(node, operands)
    sizes: dict[str, int] = {}
    for term, view in zip(terms, operands, strict=True):
        for label, size in zip(term, view.shape, strict=True):
            known = sizes.setdefault(label, size)
            if 1 not in (known, size) and known != size:
                raise unsupported(node, f"Its label {label!r} has {known} and {size} elements")
            sizes[label] = max(known, size)
    if len(operands) == 1:
        (term,) = terms
        if set(term) != set(wanted):
            raise unsupported(node, "It sums over an axis of one operand")
        build.bind(node.outputs[0], _arranged(operands[0], term, wanted, sizes))
        return
    if len(operands) > 2:
        raise unsupported(node, "It has more than two operands")
    if build.constant(node.inputs[0]) is not None:  # weights are the second factor
        operands, terms = operands[::-1], terms[::-1]
    first, second = terms
    summed = [label for label in first if label in second and label not in wanted]
    alone = [label for label in (*first, *second) if label not in wanted and label not in summed]
    if alone:
        raise unsupported(node, "It sums over an axis of one operand")
    if not summed:
        arranged = [_arranged(view, term, wanted, sizes) for view, term in zip(operands, terms, strict=True)]
        build.binary(Binary.MULTIPLY, arranged[0], arranged[1], build.result())
    else:
        _product(build, node, operands, (first, second, wanted), summed, sizes)


def _product(
    build: Builder,
    node: OnnxNode,
    operands: Sequence[View],
    terms: tuple[str, str, str],
    summed: Sequence[str],
    sizes: Mapping[str, int],
) -> None:
    """Add a product of matrices: rows are the last axis of the first operand alone, all before it repeat the second."""
    first, second, wanted = terms
    both = [label for label in wanted if label in first and label in second]
    rows = [label for label in wanted if label in first and label not in second]
    columns = [label for label in wanted if label in second and label not in first]
    outer, last, inner, right = map("".join, ([*both, *rows[:-1]], rows[-1:], summed, columns))
    count, depth, width = (math.prod(sizes[label] for label in part) for part in (last, inner, right))
    batch = tuple(sizes[label] for label in outer)
    name = node.outputs[0]
    left = _arranged(operands[0], first, outer + last + inner, sizes)
    left = build.reshape(left, (*batch, count, depth), f"{name}.first", "first")
    order = [wanted.index(label) for label in outer + last + right]
    result, shape = build.result(), (*batch, count, width)
    merged = views.reshaped(views.permuted(result, order), shape)
    target = merged or build.temporary("product", shape, build.dtype(left))
    constant = _constant_of(build, node)
    if constant is not None and not both:
        axes = [second.index(label) for label in inner + right]
        made = f"{constant.name}.{inner}{right}"
        weights = derived(made, (depth, width), constant.dtype, (constant,), lambda array: array.transpose(axes))
        build.layer(Function.CONVOLVE, [left], target, weights=weights, matrix=True)
    else:
        arranged = _arranged(operands[1], second, outer + inner + right, sizes)
        factor = build.reshape(arranged, (*batch, depth, width), f"{name}.second", "second")
        build.layer(Function.CONVOLVE, [left, factor], target, matrix=True)
    if merged is None:
        parts = views.divided(target, tuple(sizes[label] for label in outer + last + right))
        build.copy(parts, views.permuted(result, order))


def _constant_of(build: Builder, node: OnnxNode) -> LazyConstant | None:
    """Return the operand that is constant, if one is."""
    return next((found for name in node.inputs if (found := build.constant(name)) is not None), None)


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
