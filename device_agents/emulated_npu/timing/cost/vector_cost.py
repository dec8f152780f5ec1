"""The number of operations that a command takes on the vector unit, per element and output.

A lane does one simple operation a cycle: add, multiply, multiply-add, compare, select, convert, move. A
division, a square root or a transcendental function occupies it for `special_cycles`.

====================  ==========================================================================================
Command               Operations
====================  ==========================================================================================
COPY, FILL, WHERE     1 per element
BINARY                1 per element; DIVIDE and remainders 1 special, POWER 2 (logarithm, exponential)
AFFINE                1 per element (multiply-add)
MAP                   1 per element if simple, else the specials of the function
TABLE                 1 special per element: like other functions of one variable, it is looked up and interpolated
REDUCE                1 per input element, ARGMAX 2; per output MEAN 1 more, L2 1 special more
SOFTMAX               passes: maximum 1, exponential of the difference 1 + 1 special, sum 1, scaling 1; per row one
                      special (reciprocal; logarithm for log-softmax)
NORMALIZE             passes: sum 1, sum of squares 1, centre and scale 1, affine 1 if it has an operand; per row
                      2 specials (square root, reciprocal)
LRN                   square 1, window sum `mode`, multiply-add 1, power 2 specials, multiply 1
POOL_*                taps inside the input; the average multiplies 1 more per output
DEPTHWISE             taps per output, 1 for the third and 1 for the fourth operand
====================  ==========================================================================================

An activation at the end of a command other than MAP costs nothing if simple, else its specials per element.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

from device_agents.emulated_npu.arithmetic import ceil_div
from device_agents.emulated_npu.timing.cost.transfer_cost import dims_of, present
from device_agents.emulated_npu.unit_commands import Command, Function
from device_agents.emulated_npu.unit_settings import Activation, Binary, Reduction

_Operations = tuple[int, int]
"""The numbers of simple and of special operations."""

_SPECIALS: Mapping[Activation, int] = {
    Activation.SIGMOID: 1,
    Activation.TANH: 1,
    Activation.SWISH: 1,
    Activation.GELU: 1,
    Activation.GELU_TANH: 1,
    Activation.ELU: 1,
    Activation.SELU: 1,
    Activation.CELU: 1,
    Activation.SOFTPLUS: 2,  # exponential, logarithm
    Activation.ERF: 1,
    Activation.EXP: 1,
    Activation.LOG: 1,
    Activation.SQRT: 1,
    Activation.RECIPROCAL: 1,
    Activation.SOFTSIGN: 1,
    Activation.MISH: 3,  # softplus, hyperbolic tangent
    Activation.SIN: 1,
    Activation.COS: 1,
    Activation.TAN: 1,
    Activation.ASIN: 1,
    Activation.ACOS: 1,
    Activation.ATAN: 1,
    Activation.SINH: 1,
    Activation.COSH: 1,
    Activation.ASINH: 1,
    Activation.ACOSH: 1,
    Activation.ATANH: 1,
}
_BINARY_SPECIALS: Mapping[int, int] = {
    Binary.DIVIDE: 1,
    Binary.MODULO: 1,
    Binary.FLOOR_MODULO: 1,
    Binary.TRUNCATED_MODULO: 1,
    Binary.POWER: 2,
}


def vector_operations(command: Command, special_cycles: int) -> int:
    """Return the lane cycles of a VFU command: 1 per simple operation, `special_cycles` per special one.

    Raises `ExecutionFault` for a command that lacks an operand its cost depends on.
    """
    simple, special = _BODIES[command.function](command)
    if command.function.rule.activates:
        special += _SPECIALS.get(command.settings.activation, 0) * command.target.descriptor.elements
    return simple + special * special_cycles


def _elements(command: Command) -> int:
    return command.target.descriptor.elements


def _special(command: Command, specials: int) -> _Operations:
    """Return so many special operations for each element, or one simple operation if there are none."""
    elements = _elements(command)
    return (0, specials * elements) if specials else (elements, 0)


def _reduce(command: Command) -> _Operations:
    mode, elements = command.settings.mode, _elements(command)
    simple = present(command, command.first).descriptor.elements * (2 if mode == Reduction.ARGMAX else 1)
    return simple + elements * (mode == Reduction.MEAN), elements * (mode == Reduction.L2)


def _normalize(command: Command) -> _Operations:
    affine = command.second is not None or command.third is not None
    return _elements(command) * (3 + affine), _rows(command) * 2


def _rows(command: Command) -> int:
    """Return the number of rows; a row is the set of elements that share one maximum or mean."""
    dims, axes = command.target.descriptor.dims, command.settings.axes
    return math.prod(size for axis, size in enumerate(dims) if not axes >> axis & 1) if math.prod(dims) else 0


def _depthwise(command: Command) -> _Operations:
    taps = math.prod(dims_of(command, command.second, 5)[:3])
    operands = (command.third is not None) + (command.fourth is not None)
    return _elements(command) * (taps + operands), 0


def _pool_taps(command: Command) -> int:
    """Return the taps of all outputs of a pool that lie inside its input; the unit skips the others."""
    *outputs, channels = dims_of(command, command.target, 4)
    *sizes, _ = dims_of(command, command.first, 4)
    settings = command.settings
    sides = zip(outputs, sizes, settings.kernel, settings.stride, settings.dilation, settings.pad, strict=True)
    return math.prod(itertools.starmap(_taps_along, sides)) * channels


def _taps_along(outputs: int, size: int, kernel: int, stride: int, dilation: int, pad: int) -> int:
    """Return the taps of all outputs along one axis that lie inside it."""
    if pad == 0 and (outputs - 1) * stride + (kernel - 1) * dilation < size:
        return outputs * kernel
    starts = (output * stride - pad for output in range(outputs))
    return sum(
        max(0, min(kernel, ceil_div(size - start, dilation)) - max(0, ceil_div(-start, dilation))) for start in starts
    )


_BODIES: Mapping[Function, Callable[[Command], _Operations]] = {
    **dict.fromkeys((Function.COPY, Function.FILL, Function.AFFINE, Function.WHERE), lambda one: _special(one, 0)),
    Function.MAP: lambda one: _special(one, _SPECIALS.get(one.settings.activation, 0)),
    Function.BINARY: lambda one: _special(one, _BINARY_SPECIALS.get(one.settings.mode, 0)),
    Function.TABLE: lambda one: _special(one, 1),
    Function.REDUCE: _reduce,
    Function.SOFTMAX: lambda one: (_elements(one) * 4, _elements(one) + _rows(one)),
    Function.NORMALIZE: _normalize,
    Function.LRN: lambda one: (_elements(one) * (3 + one.settings.mode), _elements(one) * 2),
    Function.POOL_MAX: lambda one: (_pool_taps(one), 0),
    Function.POOL_AVERAGE: lambda one: (_pool_taps(one) + _elements(one), 0),
    Function.DEPTHWISE: _depthwise,
}
"""The operations of a command of each function of the VFU, without its activation."""
