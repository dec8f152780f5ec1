"""Drafts of hardware layers: the operators of a network add them before folding (S2.5)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from device_agents.emulated_npu.compiler.graph import constants, views
from device_agents.emulated_npu.compiler.graph.constants import ChannelStep
from device_agents.emulated_npu.compiler.graph.hardware_graph import (
    HardwareLayer,
    LazyConstant,
    Value,
    View,
    constant_value,
)
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import (
    OnnxNode,
    ParsedModel,
    ValueType,
    unsupported,
    untyped,
)
from device_agents.emulated_npu.emulator_errors import InvalidModel
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import MAX_RANK, DataType, Function
from device_agents.emulated_npu.unit_settings import PLAIN, Activation, Binary, Quantisation, Settings

NO_NODE = OnnxNode("", "", (), (), (), {})


@dataclass(frozen=True)
class IntegerProduct:
    """The numbers that the integers of a product represent.

    `first` is the quantisation of the first input. The scale of the second factor, and its zero point (None for 0),
    have one element, or one for each output channel.
    """

    first: Quantisation
    scale: LazyConstant
    zero_point: LazyConstant | None


@dataclass
class Draft:
    """A layer before folding, with its scale and shift as a list of steps; its index is given later.

    An AFFINE draft has only its first input; its factors are computed from the steps at the end. Errors name `node`.
    A `product` is one of integers.
    """

    layer: HardwareLayer
    node: OnnxNode
    steps: list[ChannelStep] = field(default_factory=list)
    product: IntegerProduct | None = None


class Builder:
    """Collects values and drafts while the nodes of a model are visited.

    `node` is the node being visited. `homes` maps values that lie inside another value, such as parts of
    concatenations, to their place in it. `integers` maps values to the integers that they are computed from, and what
    these stand for. `columns` are those of the matrix unit.
    """

    def __init__(self, source: ParsedModel, columns: int) -> None:
        self.source, self.columns = source, columns
        self.values: dict[str, Value] = {}
        self.drafts: list[Draft] = []
        self.homes: dict[str, View] = {}
        self.integers: dict[str, tuple[View, Quantisation]] = {}
        self._places: dict[str, View] = {}
        self.node = NO_NODE
        self._first = 0
        for name in source.inputs:
            self._places[name] = self._add_value(name, source.types[name], "input")

    def begin(self, node: OnnxNode) -> None:
        """Start a node: the drafts that follow belong to it."""
        self.node, self._first = node, len(self.drafts)

    def type(self, tensor: str) -> ValueType:
        """Return shape and element type of a tensor; raises InvalidModel if they are unknown."""
        if tensor not in self.source.types:
            raise untyped(tensor, self.source.other_types.get(tensor, ""), self.node)
        return self.source.types[tensor]

    def constant(self, tensor: str) -> LazyConstant | None:
        """Return the constant of that name; None for absent inputs and computed tensors."""
        return self.source.constants.get(tensor)

    def known(self, tensor: str) -> Array | None:
        """Return the values of a constant whose data are in the model, else None."""
        constant = self.constant(tensor)
        return None if constant is None else constants.value_of(constant)

    def required(self, tensor: str, what: str) -> Array:
        """Return the values of a constant; raises UnsupportedOperator if they are unknown."""
        value = self.known(tensor)
        if value is None:
            raise unsupported(self.node, f"Its {what} is not a constant with known values")
        return value

    def number(self, tensor: str, what: str) -> int | float:
        """Return the value of a constant with one element; raises UnsupportedOperator for any other tensor."""
        value = self.required(tensor, what)
        if value.size != 1:
            raise unsupported(self.node, f"Its {what} has {value.size} elements instead of one")
        number: int | float = value.item()
        return number

    def parameter(self, tensor: str, what: str) -> LazyConstant:
        """Return a constant, whose values may be unknown; raises UnsupportedOperator if the tensor is computed."""
        constant = self.constant(tensor)
        if constant is None:
            raise unsupported(self.node, f"Its {what} is not constant")
        return constant

    def view(self, tensor: str) -> View:
        """Return the view of a tensor; a constant becomes a value."""
        if tensor not in self._places:
            constant = self.constant(tensor)
            if constant is None:
                self.type(tensor)
                raise InvalidModel(f"Node {self.node.name[:80]!r} reads {tensor[:80]!r}, which nothing wrote yet")
            return self.constant_view(constant)
        return self._places[tensor]

    def constant_view(self, constant: LazyConstant) -> View:
        """Return the view of a constant, which becomes a value."""
        if constant.name not in self.values:
            self.values[constant.name] = constant_value(constant)
        return views.whole(constant.name, constant.shape)

    def bind(self, tensor: str, view: View) -> None:
        """Set the view of a tensor."""
        self._places[tensor] = view

    def note_integers(self, value: str, integers: View, code: Quantisation) -> None:
        """Note that a whole value has the numbers that integers represent."""
        self.integers[value] = integers, code

    def integers_of(self, view: View, code: Quantisation) -> View | None:
        """Return the integers of a view of numbers; None if there are none that represent them by this quantisation."""
        integers, own = self.integers.get(view.value, (None, None))
        return None if integers is None or own != code else views.composed(view, integers)

    def result(self, place: int = 0) -> View:
        """Add a value for an output of the node, in its own shape."""
        name = self.node.outputs[place]
        view = self._add_value(name, self.type(name), "activation", name in self.source.outputs)
        self.bind(name, view)
        return view

    def temporary(self, suffix: str, shape: Sequence[int], dtype: DataType) -> View:
        """Add a value between layers of the node."""
        name = f"{next(filter(None, self.node.outputs))}.{suffix}"
        return self._add_value(name, ValueType(tuple(shape), dtype), "activation")

    def output_value(self, name: str) -> View:
        """Add the value of an output of the network."""
        return self._add_value(name, self.source.types[name], "activation", True)

    def resolved(self, view: View) -> View:
        """Return a view of a value that lies in another value as a view of that one."""
        while view.value in self.homes:
            view = views.composed(view, self.homes[view.value])
        return view

    def surroundings(self, view: View) -> tuple[str, ...]:
        """Return the value of a view, the value that it lies in, and so on."""
        names = [view.value]
        while names[-1] in self.homes:
            names.append(self.homes[names[-1]].value)
        return tuple(names)

    def dtype(self, view: View) -> DataType:
        """Return the element type of a view."""
        return self.values[view.value].dtype

    def _add_value(
        self, name: str, kind: ValueType, role: Literal["input", "activation"], is_output: bool = False
    ) -> View:
        while name in self.values:
            name = f"{name}'"
        order = tuple(range(len(kind.shape)))
        self.values[name] = Value(name, kind.shape, kind.dtype, order, role, is_output)
        return views.whole(name, kind.shape)

    def layer(
        self,
        function: Function,
        inputs: Sequence[View],
        output: View,
        settings: Settings = PLAIN,
        *,
        weights: LazyConstant | None = None,
        groups: int = 1,
        matrix: bool = False,
    ) -> Draft:
        """Add a layer; its inputs have the shapes that `HardwareLayer` lists."""
        name = f"{self.node.name}.{len(self.drafts)}"
        layer = HardwareLayer(-1, name, (), function, tuple(inputs), output, settings, weights, groups, matrix)
        draft = Draft(layer, self.node)
        self.drafts.append(draft)
        return draft

    def map(self, source: View, output: View, activation: Activation, alpha: float = 0.0, beta: float = 0.0) -> Draft:
        """Add a function of one variable, element by element."""
        return self.layer(Function.MAP, [source], output, Settings(activation=activation, alpha=alpha, beta=beta))

    def binary(self, mode: int, first: View, second: View, output: View) -> Draft:
        """Add a function of two variables; raises UnsupportedOperator if they do not broadcast to the output."""
        inputs = [self.expanded(view, output.shape, "operand") for view in (first, second)]
        return self.layer(Function.BINARY, inputs, output, Settings(mode=mode))

    def copy(self, source: View, output: View) -> Draft:
        """Add a copy, which converts types."""
        return self.layer(Function.COPY, [source], output)

    def fixed(self, what: str, values: Any, dtype: DataType) -> View:
        """Return known values as a constant of the node; `what` ends its name."""
        return self.constant_view(constants.known(f"{self.node.outputs[0]}.{what}", values, dtype))

    def mapped(self, what: str, source: View, activation: Activation, alpha: float = 0.0, beta: float = 0.0) -> View:
        """Add a function of one variable between layers of the node; return its result, whose name ends with `what`."""
        result = self.temporary(what, source.shape, self.dtype(source))
        self.map(source, result, activation, alpha, beta)
        return result

    def combined(self, what: str, mode: Binary, first: View, second: View, dtype: DataType | None = None) -> View:
        """Add a function of two variables between layers of the node; return its result, of the type of the first."""
        kind = self.dtype(first) if dtype is None else dtype
        result = self.temporary(what, np.broadcast_shapes(first.shape, second.shape), kind)
        self.binary(mode, first, second, result)
        return result

    def reshape(self, source: View, shape: Sequence[int], name: str, suffix: str = "flat") -> View:
        """Return the elements of a view under another shape, copied if no view has that shape.

        `name` is the tensor that results; a copy of exactly its shape becomes its value. Raises UnsupportedOperator
        if the numbers of elements differ.
        """
        self._check_elements(source, shape)
        direct = views.reshaped(source, shape)
        if direct is not None:
            return direct
        target = tuple(shape)
        if views.reshaped(views.whole("", target), source.shape) is None:
            target = views.common_shape(source.shape, shape)
        if target == tuple(shape) and name in self.source.types and self.source.types[name].shape == target:
            own = name in self.source.outputs
            value = self._add_value(name, ValueType(target, self.dtype(source)), "activation", own)
        else:
            value = self.temporary(suffix, target, self.dtype(source))
        self.copy(source, views.divided(value, source.shape))
        return views.divided(value, shape)

    def divided(self, view: View, shape: Sequence[int]) -> View:
        """Return `views.divided`; raises UnsupportedOperator if the numbers of elements differ."""
        self._check_elements(view, shape)
        return views.divided(view, shape)

    def _check_elements(self, view: View, shape: Sequence[int]) -> None:
        has, wanted = math.prod(view.shape), math.prod(shape)
        if has != wanted:
            why = f"{list(view.shape)} has {has} elements, and {list(shape)} would have {wanted}"
            raise unsupported(self.node, why)
        if not has:
            raise unsupported(self.node, f"It reads a tensor without elements, of shape {list(view.shape)}")

    def expanded(self, view: View, shape: Sequence[int], what: str) -> View:
        """Return the view broadcast to `shape`; raises UnsupportedOperator if that is impossible."""
        missing = len(shape) - len(view.axes)
        if missing < 0 or any(own not in (1, size) for own, size in zip(view.shape, shape[missing:], strict=True)):
            raise unsupported(self.node, f"Its {what} of shape {list(view.shape)} does not broadcast to {list(shape)}")
        return views.expanded(view, shape)

    def repeated(self, source: View, repeats: Mapping[int, int], behind: int, shape: Sequence[int], name: str) -> View:
        """Return the view with its axes repeated `repeats` times, under `shape`, by one copy or several.

        `behind` is 1 to repeat each element of an axis, 0 to repeat the axis as a whole. A copy has at most as many
        axes as a command.
        """
        rest = {place: count for place, count in sorted(repeats.items(), reverse=True) if count > 1}
        while rest:
            room = max(1, MAX_RANK - len(source.axes))
            now = list(rest)[:room]
            sizes = [size * rest[place] if place in now else size for place, size in enumerate(source.shape)]
            for place in now:
                source = views.with_axis(source, place + behind, rest.pop(place))
            if rest:
                source = self.reshape(source, sizes, f"{name}.repeated{len(rest)}", f"repeated{len(rest)}")
        return self.reshape(source, shape, name)

    def place(self, view: View, target: View) -> None:
        """Make `target`, part of another value, hold the elements of `view`.

        A whole value that layers write (its axes may be permuted) and that lies in no other value is written there
        directly. Anything else is copied.
        """
        value = self.values[view.value]
        if value.kind == "activation" and not value.is_output and value.name not in self.homes:
            home = views.home(view, value.shape, target)
            if home is not None and target.value != value.name:
                self.homes[value.name] = home
                return
        self.copy(view, target)

    def finish_node(self) -> tuple[str, ...]:
        """Give the node's names to the last layer that it added; return them if it added none."""
        own = self.drafts[self._first :]
        if not own:
            return self.node.names
        own[-1].layer = replace(own[-1].layer, nodes=self.node.names, name=self.node.name)
        return ()


Handler = Callable[[Builder, OnnxNode], None]
"""Adds the layers, or sets the views, of a node of one operator."""
