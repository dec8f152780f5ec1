"""The memory order of the axes of each value: channels innermost for feature maps, else the logical order.

Layers with windows, and layers that work across channels, need the channels innermost. Elementwise layers pass the
order on between their inputs and outputs. Inputs and outputs of the network keep the order of the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer, Value, View
from device_agents.emulated_npu.unit_commands import Function

_OF_MAPS = frozenset(
    {Function.CONVOLVE, Function.DEPTHWISE, Function.POOL_MAX, Function.POOL_AVERAGE, Function.LRN, Function.AFFINE}
)
_ELEMENTWISE = frozenset({Function.MAP, Function.TABLE, Function.BINARY, Function.WHERE, Function.COPY})
_SMALLEST_RANK = 3


def ordered(values: Mapping[str, Value], layers: Iterable[HardwareLayer]) -> dict[str, tuple[int, ...]]:
    """Return the memory order of every value."""
    innermost: dict[str, int] = {}
    spread: list[HardwareLayer] = []
    for layer in layers:
        if layer.function in _OF_MAPS and not layer.matrix:
            for view in (layer.inputs[0], layer.output, *layer.reads[1:]):
                _note(innermost, values, view, 1)
        if layer.function in _ELEMENTWISE or layer.residual is not None:
            spread.append(layer)
    changed = True
    while changed:
        changed = False
        for layer in (*spread, *reversed(spread)):
            changed = _pass_on(innermost, values, layer) or changed
    return {name: _order(value, innermost.get(name)) for name, value in values.items()}


def _note(innermost: dict[str, int], values: Mapping[str, Value], view: View, axis: int) -> bool:
    """Make this axis of a view the innermost of its value, unless another axis is already."""
    base = view.axes[axis].base
    value = values[view.value]
    if base is None or view.value in innermost or len(value.shape) < _SMALLEST_RANK or value.shape[base] == 1:
        return False
    innermost[view.value] = base
    return True


def _pass_on(innermost: dict[str, int], values: Mapping[str, Value], layer: HardwareLayer) -> bool:
    """Pass the innermost axis of one view of a layer on to the others; return whether anything changed."""
    changed = False
    linked = [view for view in (layer.output, *layer.reads) if len(view.axes) == len(layer.output.axes)]
    for view in linked:
        base = innermost.get(view.value)
        axis = next((place for place, item in enumerate(view.axes) if base is not None and item.base == base), None)
        if axis is not None:
            for other in linked:
                changed = _note(innermost, values, other, axis) or changed
    return changed


def _order(value: Value, innermost: int | None) -> tuple[int, ...]:
    axes = range(len(value.shape))
    if innermost is None or value.kind == "input" or value.is_output:
        return tuple(axes)
    return (*(axis for axis in axes if axis != innermost), innermost)
