"""Limits of what commands can express: element types, numbers of axes and windows (S3.5)."""

from __future__ import annotations

from collections.abc import Sequence

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.constants import BYTES
from device_agents.emulated_npu.compiler.graph.drafts import Draft
from device_agents.emulated_npu.compiler.graph.hardware_graph import Value, View
from device_agents.emulated_npu.compiler.graph.operators.spatial.window_attributes import MAX_PAD, MAX_WINDOW
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import unsupported
from device_agents.emulated_npu.unit_commands import MAX_RANK, DataType, Function

_MULTIPLIED = frozenset({DataType.FLOAT32, DataType.FLOAT16})
_FREE_OF_AXES = frozenset({Function.COPY, Function.MAP, Function.BINARY, Function.WHERE, Function.FILL})


def within_rank(draft: Draft, inputs: Sequence[View], output: View) -> tuple[tuple[View, ...], View]:
    """Return inputs and output of a layer with at most as many axes as a command has.

    Elementwise layers drop axes of size 1 and merge axes that merge in all their views. Raises UnsupportedOperator if
    too many axes remain.
    """
    if draft.layer.function in _FREE_OF_AXES and len(output.axes) > MAX_RANK:
        output, *inputs = views.compacted((output, *inputs))
    # Products, windows and gathers loop over their leading axes: these do not count.
    if draft.layer.function is Function.GATHER:
        ranks = [len(inputs[0].axes)]
    else:
        ranks = [] if draft.layer.function.multiplies else [len(view.axes) for view in (output, *inputs)]
    if max(ranks, default=0) > MAX_RANK:
        raise unsupported(draft.node, f"It needs a view with more than {MAX_RANK} axes ({max(ranks)})")
    return tuple(inputs), output


def check_value(draft: Draft, value: Value) -> None:
    """Raise UnsupportedOperator if a value of a layer is empty, or has too many axes to move."""
    check_elements(draft, value.shape)
    shown = value.is_output or value.kind == "input"  # the host accesses those with all their axes
    axes = len(value.shape) if shown else sum(size != 1 for size in value.shape)
    if axes > MAX_RANK:
        raise unsupported(draft.node, f"It takes a tensor with more than {MAX_RANK} axes ({axes})")


def check_elements(draft: Draft, shape: Sequence[int]) -> None:
    """Raise UnsupportedOperator for a shape without elements."""
    if any(size < 1 for size in shape):
        raise unsupported(draft.node, f"It reads or writes a tensor without elements, of shape {list(shape)}")


def check_types(draft: Draft, operands: Sequence[Value]) -> None:
    """Raise UnsupportedOperator for factors that no unit multiplies; `operands` are the output and the inputs.

    The `data_type` of a machine replaces float32 when it computes.
    """
    settings, weights = draft.layer.settings, () if draft.layer.weights is None else (draft.layer.weights,)
    if not draft.layer.function.multiplies:
        return
    output, *inputs = operands
    kinds = [value.dtype for value in (*inputs, *weights)][:2]
    if all(kind in BYTES for kind in kinds) and (draft.product is not None or settings.quantised_first.scale):
        return
    codes = settings.quantised_first, settings.quantised_second
    types = {DataType.FLOAT32 if code.scale else kind for kind, code in zip(kinds, codes, strict=True)}
    if not settings.quantised_target.scale:
        types.add(output.dtype)
    other = next((kind for kind in sorted(types) if kind not in _MULTIPLIED), None)
    if other is not None:
        known = "only float32, float16, and integers of 8 and 16 bits with scales are supported"
        raise unsupported(draft.node, f"It multiplies in {other.name.lower()}; {known}")
    if len(types) > 1:
        raise unsupported(draft.node, "It multiplies float16 and float32; only factors of one type are supported")


def check_window(draft: Draft) -> None:
    """Raise UnsupportedOperator for kernels, strides, dilations and padding that no instruction can encode."""
    settings = draft.layer.settings
    for name, most in (("kernel", MAX_WINDOW), ("stride", MAX_WINDOW), ("dilation", MAX_WINDOW), ("pad", MAX_PAD)):
        largest = max(getattr(settings, name))
        if largest > most:
            raise unsupported(draft.node, f"Its {name} is {largest}; the largest possible is {most}")
