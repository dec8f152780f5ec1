"""LSTM, GRU and RNN, unrolled in time.

One matrix product computes the gates of all steps and directions by the input. Each step adds the product of the state
by the recurrent weights, which all steps share. States lie in the output sequence, if the node has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.constants import derived, known
from device_agents.emulated_npu.compiler.graph.drafts import Builder, Handler
from device_agents.emulated_npu.compiler.graph.hardware_graph import View
from device_agents.emulated_npu.compiler.graph.operators.recurrent_gates import Direction, gate_functions
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import OnnxNode, unsupported
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import Function
from device_agents.emulated_npu.unit_settings import Activation, Binary, Settings

MOST_STEPS = 4096
"""The longest sequence, times directions, that is unrolled: every step adds layers."""

_X, _W, _R, _B, _LENGTHS, _STATE, _PEEPHOLES = 0, 1, 2, 3, 4, 5, 7
"""Places of the inputs; the states of a cell begin at `_STATE`."""

States = tuple[View, ...]
"""The states of a cell, each (batch, hidden): the hidden state, and that of an LSTM's cell."""


@dataclass(frozen=True)
class _Cell:
    """A kind of cell: its number of gates and states, the defaults of its functions, and one step of it."""

    gates: int
    states: int
    functions: tuple[str, ...]
    step: Callable[[Direction, States], States]


@dataclass(frozen=True)
class _Sizes:
    """Sizes of a node; `batch_first` is ONNX's layout 1, in which axes of steps and directions follow the batch."""

    steps: int
    batch: int
    directions: int
    hidden: int
    columns: int
    batch_first: bool


def _simple_step(direction: Direction, states: States) -> States:
    return (direction.gates(states[0], 0, 1, direction.functions[0]),)


def _gru_step(direction: Direction, states: States) -> States:
    """Compute a GRU: update and reset gates, the candidate, and a mean of candidate and state by the update gate."""
    (hidden,), (gate, candidate) = states, direction.functions
    update, reset = _divided(direction.gates(hidden, 0, 2, gate), 2)
    if direction.node.attribute("linear_before_reset", 0):
        product = direction.state_gates(hidden, 2, 1)
        if direction.node.input(_B):
            product = direction.binary(Binary.ADD, product, direction.parameter(_B, 5), "biased")
        product = direction.binary(Binary.MULTIPLY, reset, product, "reset")
        total = direction.binary(Binary.ADD, product, direction.input_gates(2, 1), "total2")
        new = direction.activated(candidate, total, "active2")
    else:
        new = direction.gates(direction.binary(Binary.MULTIPLY, reset, hidden, "reset"), 2, 1, candidate)
    change = direction.binary(Binary.SUBTRACT, hidden, new, "change")
    kept = direction.binary(Binary.MULTIPLY, update, change, "kept")
    return (direction.binary(Binary.ADD, new, kept, "hidden"),)


def _lstm_step(direction: Direction, states: States) -> States:
    """Compute an LSTM: its gates are input, output, forget and cell; peepholes add products by the cell's state."""
    hidden, cell = states
    gate, candidate, last = direction.functions
    peepholes = bool(direction.node.input(_PEEPHOLES))
    if peepholes:
        enter = direction.gates(hidden, 0, 1, gate, _peephole(direction, 0, cell))
        forget = direction.gates(hidden, 2, 1, gate, _peephole(direction, 2, cell))
        leave = None
    else:
        enter, leave, forget = _divided(direction.gates(hidden, 0, 3, gate), 3)
    if direction.node.attribute("input_forget", 0):
        forget = direction.apply(((Activation.SCALE, -1.0, 1.0),), enter, "forget")
    new = direction.gates(hidden, 3, 1, candidate)
    kept = direction.binary(Binary.MULTIPLY, forget, cell, "kept")
    added = direction.binary(Binary.MULTIPLY, enter, new, "added")
    cell = direction.binary(Binary.ADD, kept, added, "cell")
    if leave is None:
        leave = direction.gates(hidden, 1, 1, gate, _peephole(direction, 1, cell))
    return direction.binary(Binary.MULTIPLY, leave, direction.apply(last, cell, "shown"), "hidden"), cell


def _peephole(direction: Direction, place: int, cell: View) -> View:
    return direction.binary(Binary.MULTIPLY, cell, direction.parameter(_PEEPHOLES, place), f"peephole{place}")


def _divided(gates: View, count: int) -> list[View]:
    """Return the gates of a view (batch, count * hidden)."""
    size = gates.shape[1] // count
    return [views.sliced(gates, 1, place * size, size) for place in range(count)]


def _recurrent(cell: _Cell) -> Handler:
    def handler(build: Builder, node: OnnxNode) -> None:
        """Add a recurrent node, step by step; raises UnsupportedOperator for lengths that are not constant."""
        sizes = _sizes(build, node, cell)
        functions = gate_functions(node, cell.functions, sizes.directions)
        lengths = _lengths(build, node, sizes)
        by_input = _by_input(build, node, sizes, cell)
        sequence = _sequence(build, node, sizes)
        finals = []
        for index in range(sizes.directions):
            part = views.sliced(by_input, 2, index * sizes.columns, sizes.columns)
            direction = Direction(build, node, index, part, functions[index])
            initial = tuple(_initial(build, node, _STATE + place, index, sizes) for place in range(cell.states))
            steps = range(sizes.steps)
            reverse = index == 1 or _direction(node) == "reverse"
            order = steps[::-1] if reverse else steps
            finals.append(_unrolled(direction, cell, initial, (order, lengths), sequence))
        for place in range(cell.states):
            _write_final(build, node, place + 1, [final[place] for final in finals], sizes.batch_first)

    return handler


def _sizes(build: Builder, node: OnnxNode, cell: _Cell) -> _Sizes:
    """Return the sizes of a node; raises UnsupportedOperator if its operands contradict each other."""
    shape, weights, recurrent = (build.type(node.inputs[place]).shape for place in (_X, _W, _R))
    directions = 2 if _direction(node) == "bidirectional" else 1
    hidden = recurrent[-1]
    columns = cell.gates * hidden
    if len(shape) != 3 or weights != (directions, columns, shape[-1]) or recurrent != (directions, columns, hidden):
        shapes = f"{list(weights)} and {list(recurrent)}"
        raise unsupported(node, f"Weights of shape {shapes} do not fit an input of shape {list(shape)}")
    batch_first = bool(node.attribute("layout", 0))
    batch, steps = shape[:2] if batch_first else (shape[1], shape[0])
    for place, wanted in ((_B, (directions, 2 * columns)), (_PEEPHOLES, (directions, 3 * hidden))):
        if node.input(place) and build.type(node.inputs[place]).shape != wanted:
            raise unsupported(node, f"Its input {place} does not have the shape {list(wanted)}")
    if steps * directions > MOST_STEPS:
        raise unsupported(node, f"It has {steps * directions} steps; at most {MOST_STEPS} are unrolled")
    if steps < 1:
        raise unsupported(node, f"It reads a tensor without elements, of shape {list(shape)}")
    return _Sizes(steps, batch, directions, hidden, columns, batch_first)


def _direction(node: OnnxNode) -> str:
    name: str = (node.attribute("direction") or b"forward").decode()
    if name not in ("forward", "reverse", "bidirectional"):
        raise unsupported(node, f"Its direction is {name[:40]!r}")
    return name


def _lengths(build: Builder, node: OnnxNode, sizes: _Sizes) -> Array:
    """Return the length of each sequence of the batch."""
    if not node.input(_LENGTHS):
        return np.full(sizes.batch, sizes.steps)
    found = build.required(node.inputs[_LENGTHS], "sequence_lens").reshape(-1)
    if found.shape != (sizes.batch,) or found.min() < 1 or found.max() > sizes.steps:
        raise unsupported(node, f"Its sequence_lens are not {sizes.batch} numbers from 1 to {sizes.steps}")
    return found


def _by_input(build: Builder, node: OnnxNode, sizes: _Sizes, cell: _Cell) -> View:
    """Return the gates of all steps by the input and the bias, (steps, batch, directions * gates * hidden)."""
    source, name, columns = build.view(node.inputs[_X]), node.inputs[_W], sizes.directions * sizes.columns
    outer, width = source.shape[:2], source.shape[2]
    rows = build.reshape(source, (outer[0] * outer[1], width), f"{node.inputs[_X]}.rows", "rows")
    product = build.temporary("inputs", (outer[0] * outer[1], columns), build.dtype(source))
    constant = build.constant(name)
    if constant is not None:
        weights = derived(
            f"{name}.columns", (width, columns), constant.dtype, (constant,), lambda array: array.reshape(columns, -1).T
        )
        build.layer(Function.CONVOLVE, [rows], product, weights=weights, matrix=True)
    else:
        flat = build.reshape(build.view(name), (columns, width), f"{name}.flat", "weights")
        build.layer(Function.CONVOLVE, [rows, views.permuted(flat, (1, 0))], product, matrix=True)
    if node.input(_B):
        # The recurrent bias of a GRU's candidate is added before the reset gate, if that comes after the product.
        apart = cell.gates == 3 and bool(node.attribute("linear_before_reset", 0))
        bias = _input_bias(build, node.inputs[_B], sizes, sizes.columns - sizes.hidden * apart)
        total = build.temporary("biased", product.shape, build.dtype(source))
        build.binary(Binary.ADD, product, bias, total)
        product = total
    found = views.divided(product, (*outer, columns))
    return views.permuted(found, (1, 0, 2)) if sizes.batch_first else found


def _input_bias(build: Builder, tensor: str, sizes: _Sizes, merged: int) -> View:
    """Return the bias of the input (directions * columns), plus that of the state in the first `merged` columns."""
    columns, count = sizes.columns, sizes.directions * sizes.columns

    def added(array: Array) -> Array:
        pairs = array.reshape(-1, 2, columns)
        return np.asarray(pairs[:, 0] + pairs[:, 1] * (np.arange(columns) < merged))

    constant = build.constant(tensor)
    if constant is not None:
        return build.constant_view(derived(f"{tensor}.sum{merged}", (count,), constant.dtype, (constant,), added))
    given = build.view(tensor)
    total = build.temporary("bias", (sizes.directions, columns), build.dtype(given))
    by_input, by_state = (views.sliced(given, 1, first, merged) for first in (0, columns))
    build.binary(Binary.ADD, by_input, by_state, views.sliced(total, 1, 0, merged))
    if merged < columns:
        rest = columns - merged
        build.copy(views.sliced(given, 1, merged, rest), views.sliced(total, 1, merged, rest))
    return build.reshape(total, (count,), f"{tensor}.sum", "sum")


def _initial(build: Builder, node: OnnxNode, place: int, index: int, sizes: _Sizes) -> View:
    """Return the state of a direction before its first step; without an input, zeros."""
    shape = (sizes.batch, sizes.hidden)
    if not node.input(place):
        zeros = known(f"{node.inputs[_R]}.zeros{sizes.batch}", np.zeros(shape), build.type(node.inputs[_R]).dtype)
        return build.constant_view(zeros)
    view = build.view(node.inputs[place])
    wanted = (sizes.batch, sizes.directions) if sizes.batch_first else (sizes.directions, sizes.batch)
    if view.shape != (*wanted, sizes.hidden):
        raise unsupported(node, f"Its initial state has the shape {list(view.shape)}")
    return views.divided(views.sliced(view, 1 if sizes.batch_first else 0, index, 1), shape)


def _sequence(build: Builder, node: OnnxNode, sizes: _Sizes) -> View | None:
    """Return the first output as (steps, directions, batch, hidden); None if it is absent."""
    if not node.outputs[0]:
        return None
    result = build.result()
    return views.permuted(result, (1, 2, 0, 3)) if sizes.batch_first else result


def _unrolled(
    direction: Direction, cell: _Cell, states: States, course: tuple[range, Array], sequence: View | None
) -> States:
    """Add all steps of a direction; return its last states. `course` has their order and the lengths.

    A sequence that is shorter than others keeps its states beyond its end, and its outputs there are zero.
    """
    build, shape, (order, lengths) = direction.build, states[0].shape, course
    for step in order:
        target = None
        if sequence is not None:
            slot = views.sliced(views.sliced(sequence, 0, step, 1), 1, direction.index, 1)
            target = views.divided(slot, shape)
        direction.begin(step)
        active = [bool(length > step) for length in lengths]
        if any(active):
            new = cell.step(direction, states)
            shown, states = _held(direction, active, new, states)
            if target is not None:
                build.place(shown, target)
        elif target is not None:
            build.layer(Function.FILL, [], target, Settings(alpha=0.0))
    return states


def _held(direction: Direction, active: Sequence[bool], new: States, old: States) -> tuple[View, States]:
    """Return the output of a step, and its states: those before it for sequences that are not active."""
    if all(active):
        return new[0], new
    zero = known(f"{direction.node.inputs[_R]}.zero", np.zeros(()), direction.dtype)
    nothing = views.expanded(direction.build.constant_view(zero), new[0].shape)
    shown = direction.selected(active, new[0], nothing, "output")
    pairs = zip(new, old, strict=True)
    return shown, tuple(
        direction.selected(active, after, before, f"held{place}") for place, (after, before) in enumerate(pairs)
    )


def _write_final(build: Builder, node: OnnxNode, place: int, states: Sequence[View], batch_first: bool) -> None:
    """Bind or write an output of last states, (directions, batch, hidden), or (batch, directions, hidden)."""
    if place >= len(node.outputs) or not node.outputs[place]:
        return
    axis = 1 if batch_first else 0
    if len(states) == 1:
        build.bind(node.outputs[place], views.with_axis(states[0], axis))
        return
    result = build.result(place)
    for index, state in enumerate(states):
        build.place(state, views.divided(views.sliced(result, axis, index, 1), state.shape))


HANDLERS: Mapping[str, Handler] = {
    "RNN": _recurrent(_Cell(1, 1, ("Tanh",), _simple_step)),
    "GRU": _recurrent(_Cell(3, 1, ("Sigmoid", "Tanh"), _gru_step)),
    "LSTM": _recurrent(_Cell(4, 2, ("Sigmoid", "Tanh", "Tanh"), _lstm_step)),
}
