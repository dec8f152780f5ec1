"""The gates of one direction of a recurrent node: products of its state, and activations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.constants import derived, known
from device_agents.emulated_npu.compiler.graph.drafts import Builder
from device_agents.emulated_npu.compiler.graph.hardware_graph import LazyConstant, View
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import OnnxNode, unsupported
from device_agents.emulated_npu.unit_commands import DataType, Function
from device_agents.emulated_npu.unit_settings import Activation, Binary

Steps = tuple[tuple[Activation, float, float], ...]
"""A function of one variable as activations with alpha and beta, applied one after the other."""

_SCALED_TANH = "scaledtanh"
_FUNCTIONS: Mapping[str, tuple[Activation, float | None, float | None]] = {
    "relu": (Activation.RELU, None, None),
    "tanh": (Activation.TANH, None, None),
    "sigmoid": (Activation.SIGMOID, None, None),
    "softsign": (Activation.SOFTSIGN, None, None),
    "softplus": (Activation.SOFTPLUS, None, None),
    "affine": (Activation.SCALE, 1.0, 0.0),
    "leakyrelu": (Activation.LEAKY_RELU, 0.01, None),
    "thresholdedrelu": (Activation.THRESHOLDED_RELU, 1.0, None),
    "elu": (Activation.ELU, 1.0, None),
    "hardsigmoid": (Activation.HARD_SIGMOID, 0.2, 0.5),
    _SCALED_TANH: (Activation.TANH, 1.0, 1.0),
}
"""The activations that ONNX names, with the defaults of alpha and beta; None where a function has no such parameter."""


def gate_functions(node: OnnxNode, defaults: Sequence[str], directions: int) -> list[tuple[Steps, ...]]:
    """Return the functions of each direction; lists of alpha and beta belong to the functions that have them, in turn.

    Raises UnsupportedOperator for an unknown function, or another number of functions.
    """
    names = [name.decode() for name in node.attribute("activations") or ()] or [*defaults] * directions
    if len(names) != len(defaults) * directions:
        raise unsupported(node, f"It has {len(names)} activations; {len(defaults) * directions} are needed")
    alphas, betas = (iter(node.attribute(name) or ()) for name in ("activation_alpha", "activation_beta"))
    found = []
    for name in names:
        if name.lower() not in _FUNCTIONS:
            raise unsupported(node, f"Its activation {name[:40]!r} is not supported")
        activation, first, second = _FUNCTIONS[name.lower()]
        alpha, beta = _parameter(alphas, first), _parameter(betas, second)
        steps: Steps = ((activation, alpha, beta),)
        if name.lower() == _SCALED_TANH:
            steps = ((Activation.SCALE, beta, 0.0), (activation, 0.0, 0.0), (Activation.SCALE, alpha, 0.0))
        found.append(steps)
    return [tuple(found[place : place + len(defaults)]) for place in range(0, len(found), len(defaults))]


def _parameter(given: Iterator[float], default: float | None) -> float:
    """Return the next parameter of a list, or the default after its end; a function without one takes none."""
    return 0.0 if default is None else float(next(given, default))


class Direction:
    """One direction of a recurrent node: builds its gates, step by step.

    `by_input` (steps, batch, gates * hidden) are the gates by the input and the bias. `functions` are the activations
    of the direction, `hidden` is the number of elements of its state, and `dtype` their type.
    """

    def __init__(
        self, build: Builder, node: OnnxNode, index: int, by_input: View, functions: tuple[Steps, ...]
    ) -> None:
        self.build, self.node, self.index, self.functions = build, node, index, functions
        kind = build.type(node.inputs[2])
        self.hidden, self.dtype = kind.shape[2], kind.dtype
        self._by_input = by_input
        self._weights: dict[tuple[int, int], LazyConstant | View] = {}
        self._step = 0

    def begin(self, step: int) -> None:
        """Begin a step of the sequence: all that follows belongs to it."""
        self._step = step

    def temporary(self, what: str, shape: Sequence[int]) -> View:
        """Add a value of this step."""
        return self.build.temporary(self._named(what), shape, self.dtype)

    def _named(self, what: str) -> str:
        return f"{what}.{self.index}.{self._step}"

    def input_gates(self, first: int, count: int) -> View:
        """Return `count` gates of this step by the input, (batch, count * hidden)."""
        view = views.sliced(self._by_input, 0, self._step, 1)
        view = views.sliced(view, 2, first * self.hidden, count * self.hidden)
        return views.divided(view, (view.shape[1], count * self.hidden))

    def state_gates(self, state: View, first: int, count: int) -> View:
        """Return the product of a state (batch, hidden) by the recurrent weights of `count` gates."""
        weights = self._recurrent_weights(first, count)
        output = self.temporary(f"gates{first}", (state.shape[0], count * self.hidden))
        if isinstance(weights, LazyConstant):
            self.build.layer(Function.CONVOLVE, [state], output, weights=weights, matrix=True)
        else:
            self.build.layer(Function.CONVOLVE, [state, weights], output, matrix=True)
        return output

    def gates(self, state: View, first: int, count: int, function: Steps, addend: View | None = None) -> View:
        """Return the function of `count` gates by state and input, plus the addend if there is one."""
        total = self.binary(
            Binary.ADD, self.state_gates(state, first, count), self.input_gates(first, count), f"total{first}"
        )
        if addend is not None:
            total = self.binary(Binary.ADD, total, addend, f"more{first}")
        return self.activated(function, total, f"active{first}")

    def activated(self, function: Steps, total: View, what: str) -> View:
        """Return the function of the sum of a gate; `clip` bounds these sums, as in ONNX Runtime, and no other."""
        clip = self.node.attribute("clip") or 0.0
        return self.apply(((Activation.CLIP, -clip, clip), *function) if clip else function, total, what)

    def apply(self, function: Steps, source: View, what: str) -> View:
        """Return a function of a view."""
        for place, (activation, alpha, beta) in enumerate(function):
            source = self.build.mapped(self._named(f"{what}.{place}"), source, activation, alpha, beta)
        return source

    def binary(self, mode: Binary, first: View, second: View, what: str) -> View:
        """Return a function of two views."""
        return self.build.combined(self._named(what), mode, first, second)

    def selected(self, mask: Sequence[bool], first: View, second: View, what: str) -> View:
        """Return the rows of the first view where the mask is true, of the second elsewhere."""
        output = self.temporary(what, first.shape)
        condition = known(f"{output.value}.mask", np.array(mask).reshape(-1, 1), DataType.BOOL)
        chosen = views.expanded(self.build.constant_view(condition), first.shape)
        self.build.layer(Function.WHERE, [chosen, first, second], output)
        return output

    def parameter(self, place: int, first: int) -> View:
        """Return one group of `hidden` elements of a parameter (directions, elements) of the node."""
        view = views.sliced(self.build.view(self.node.inputs[place]), 0, self.index, 1)
        return views.divided(views.sliced(view, 1, first * self.hidden, self.hidden), (self.hidden,))

    def _recurrent_weights(self, first: int, count: int) -> LazyConstant | View:
        """Return recurrent weights (hidden, count * hidden); all steps share a constant."""
        if (first, count) not in self._weights:
            self._weights[first, count] = self._read_weights(first * self.hidden, count * self.hidden)
        return self._weights[first, count]

    def _read_weights(self, low: int, count: int) -> LazyConstant | View:
        tensor, index = self.node.inputs[2], self.index
        constant = self.build.constant(tensor)
        if constant is None:
            view = views.sliced(views.sliced(self.build.view(tensor), 0, index, 1), 1, low, count)
            return views.permuted(views.divided(view, (count, self.hidden)), (1, 0))
        name, shape = f"{tensor}[{index}, {low}:{low + count}].T", (self.hidden, count)
        return derived(name, shape, constant.dtype, (constant,), lambda array: array[index, low : low + count].T)
