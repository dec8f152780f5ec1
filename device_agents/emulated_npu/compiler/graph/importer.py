"""The graph stage: from an ONNX model to hardware layers within the limits of commands, with memory orders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from onnx import ModelProto, NodeProto

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.constants import BYTES, ChannelStep, part_of, scale_shift
from device_agents.emulated_npu.compiler.graph.drafts import NO_NODE, Builder, Draft
from device_agents.emulated_npu.compiler.graph.folding import fold
from device_agents.emulated_npu.compiler.graph.hardware_graph import (
    Graph,
    HardwareLayer,
    LazyConstant,
    Value,
    View,
    ViewAxis,
    constant_value,
)
from device_agents.emulated_npu.compiler.graph.layer_parts import channel_axis
from device_agents.emulated_npu.compiler.graph.operators import DOMAINS, IN_PART, OPERATORS
from device_agents.emulated_npu.compiler.graph.operators.spatial.window_attributes import MAX_PAD, MAX_WINDOW
from device_agents.emulated_npu.compiler.graph.quantised_layers import finished_product, read_integers
from device_agents.emulated_npu.compiler.graph.reading.model_reader import parse_model
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import unsupported
from device_agents.emulated_npu.compiler.graph.recognition.patterns import recognise
from device_agents.emulated_npu.unit_commands import MAX_RANK, DataType, Function
from device_agents.emulated_npu.unit_settings import PLAIN

DEFAULT_DOMAIN = "ai.onnx"
"""The domain of operators that name none."""
_OF_MAPS = frozenset(
    {Function.CONVOLVE, Function.DEPTHWISE, Function.POOL_MAX, Function.POOL_AVERAGE, Function.LRN, Function.AFFINE}
)
_ELEMENTWISE = frozenset({Function.MAP, Function.TABLE, Function.BINARY, Function.WHERE, Function.COPY})
_SMALLEST_RANK = 3
_MULTIPLIED = frozenset({DataType.FLOAT32, DataType.FLOAT16})
_FREE_OF_AXES = frozenset({Function.COPY, Function.MAP, Function.BINARY, Function.WHERE, Function.FILL})


def import_model(model: bytes | ModelProto, columns: int = 32) -> Graph:
    """Return the hardware layers of a model, folded; nodes that move no data become views.

    `columns` are those of the matrix unit for which the phases of transposed convolutions are chosen.

    Requires: shapes that are known before the network runs. Weights may be initializers without data (`data_location`
    external).
    Ensures: layers in topological order that compute what the model computes. Constants that depend on initializers
    without data list them in `sources`, and `compute` takes their arrays in that order.
    Raises UnsupportedOperator for a node that cannot be compiled, InvalidModel for a model that is not valid.
    """
    source = recognise(parse_model(model, _is_whole))
    build, free = Builder(source, columns), list(source.free)
    for node in source.nodes:
        build.begin(node)
        OPERATORS[node.op](build, node)
        free.extend(build.finish_node())
    _write_outputs(build, free)
    free.extend(read_integers(build))
    return _Finish(build).graph(fold(build), free)


def _is_whole(node: NodeProto) -> bool:
    """Return whether a handler compiles the node; others become the functions that define them."""
    if (node.domain or DEFAULT_DOMAIN) != DOMAINS.get(node.op_type, DEFAULT_DOMAIN) or node.op_type not in OPERATORS:
        return False
    return node.op_type not in IN_PART or IN_PART[node.op_type](node)


def _write_outputs(build: Builder, free: list[str]) -> None:
    """Write outputs of the network that are views, inputs or constants to separate values.

    If that takes a copy, the copy represents the node that computes the output, which then is no longer free.
    """
    for name in build.source.outputs:
        view = build.view(name)
        value = build.values[view.value]
        if value.name == name and value.is_output and views.is_whole(view, value.shape):
            continue
        node = build.source.producers.get(name, replace(NO_NODE, op="Identity", name=name, outputs=(name,)))
        build.begin(node)
        build.place(view, build.output_value(name))
        if all(part in free for part in node.names) and not build.finish_node():
            free[:] = [other for other in free if other not in node.names]


def _of_model(
    layers: tuple[HardwareLayer, ...], free: list[str], origins: Mapping[str, str]
) -> tuple[tuple[HardwareLayer, ...], tuple[str, ...]]:
    """Name the model's nodes instead of the nodes of functions: in the last layer of each, or as free."""
    if not origins:
        return layers, tuple(free)
    last = {origins.get(name, name): layer.index for layer in layers for name in layer.nodes}
    named = []
    for layer in layers:
        nodes = dict.fromkeys(origins.get(name, name) for name in layer.nodes)
        named.append(replace(layer, nodes=tuple(name for name in nodes if last[name] == layer.index)))
    unlisted = dict.fromkeys(origins.get(name, name) for name in free)
    return tuple(named), tuple(name for name in unlisted if name not in last)


class _Finish:
    """Turns drafts into layers: values inside other values become views, and every value gets its memory order."""

    def __init__(self, build: Builder) -> None:
        self._build = build
        self._values: dict[str, Value] = {}

    def graph(self, drafts: list[Draft], free: list[str]) -> Graph:
        """Return the finished graph."""
        layers = tuple(self._layer(index, draft) for index, draft in enumerate(drafts))
        layers, free_nodes = _of_model(layers, free, self._build.source.origins)
        used = {view.value for layer in layers for view in (*layer.reads, layer.output)}
        source = self._build.source
        used.update(source.inputs, source.outputs)
        values = {name: value for name, value in (self._build.values | self._values).items() if name in used}
        orders = _ordered(values, layers)
        return Graph(
            values={name: replace(value, order=orders[name]) for name, value in values.items()},
            layers=layers,
            inputs=source.inputs,
            outputs=source.outputs,
            free_nodes=free_nodes,
            node_count=source.node_count,
        )

    def _layer(self, index: int, draft: Draft) -> HardwareLayer:
        inputs, output = self._checked(draft)
        residual = None if draft.layer.residual is None else self._build.resolved(draft.layer.residual)
        layer = replace(draft.layer, index=index, inputs=inputs, output=output, residual=residual)
        if layer.function.multiplies:
            layer = replace(layer, factor_type=self._factor_type(layer))
        if draft.product is not None:
            return finished_product(layer, draft.product, draft.steps)
        if draft.steps:
            return self._scaled(layer, draft.steps)
        return self._unconverted(layer)

    def _factor_type(self, layer: HardwareLayer) -> DataType:
        return self._build.values[layer.inputs[1].value].dtype if layer.weights is None else layer.weights.dtype

    def _scaled(self, layer: HardwareLayer, steps: Sequence[ChannelStep]) -> HardwareLayer:
        """Return the layer with its steps as scale and shift; those of products are float32 also for float16."""
        channels, dtype = layer.output.axes[channel_axis(layer)].size, self._build.dtype(layer.output)
        if layer.function.multiplies or layer.settings.quantises:
            dtype = DataType.FLOAT32
        folded = scale_shift(f"{layer.name}.scale_shift", steps, channels, dtype)
        if layer.function == Function.AFFINE:
            return replace(layer, inputs=(*layer.inputs, *self._factors(folded, layer.output.shape)))
        return replace(layer, scale_shift=folded)

    def _unconverted(self, layer: HardwareLayer) -> HardwareLayer:
        """Return a copy between equal quantisations as one of the integers; any other layer as it is."""
        settings = layer.settings
        same = layer.function is Function.COPY and settings.quantised_first == settings.quantised_target
        if not same or self._build.dtype(layer.inputs[0]) != self._build.dtype(layer.output):
            return layer
        return replace(layer, settings=PLAIN)

    def _checked(self, draft: Draft) -> tuple[tuple[View, ...], View]:
        """Return inputs and output of the layer; raises UnsupportedOperator if no command can compute it."""
        inputs, output = (
            tuple(self._build.resolved(view) for view in draft.layer.inputs),
            self._build.resolved(draft.layer.output),
        )
        operands = [self._build.values[view.value] for view in (output, *inputs)]
        _check_types(draft, operands)
        _check_window(draft)
        for value in operands:
            _check_value(draft, value)
        for view in (output, *inputs):
            _check_elements(draft, view.shape)
        return _within_rank(draft, inputs, output)

    def _factors(self, pair: LazyConstant, shape: tuple[int, ...]) -> tuple[View, View]:
        """Return scale and shift of an AFFINE layer as values, repeated over all axes except the channels."""
        scale, shift = (part_of(pair, row, f"{pair.name}.{row}") for row in (0, 1))
        for constant in (scale, shift):
            self._values[constant.name] = constant_value(constant)
        axes = tuple(ViewAxis(size, 0 if axis == 1 else None) for axis, size in enumerate(shape))
        return View(scale.name, (0,), axes), View(shift.name, (0,), axes)


def _ordered(values: Mapping[str, Value], layers: Iterable[HardwareLayer]) -> dict[str, tuple[int, ...]]:
    """Return the memory order of every value.

    Layers with windows, and layers that work across channels, need the channels innermost. Elementwise layers pass the
    order on between their inputs and outputs. Inputs and outputs of the network keep the order of the host.
    """
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


def _within_rank(draft: Draft, inputs: Sequence[View], output: View) -> tuple[tuple[View, ...], View]:
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


def _check_value(draft: Draft, value: Value) -> None:
    """Raise UnsupportedOperator if a value of a layer is empty, or has too many axes to move."""
    _check_elements(draft, value.shape)
    shown = value.is_output or value.kind == "input"  # the host accesses those with all their axes
    axes = len(value.shape) if shown else sum(size != 1 for size in value.shape)
    if axes > MAX_RANK:
        raise unsupported(draft.node, f"It takes a tensor with more than {MAX_RANK} axes ({axes})")


def _check_elements(draft: Draft, shape: Sequence[int]) -> None:
    """Raise UnsupportedOperator for a shape without elements."""
    if any(size < 1 for size in shape):
        raise unsupported(draft.node, f"It reads or writes a tensor without elements, of shape {list(shape)}")


def _check_types(draft: Draft, operands: Sequence[Value]) -> None:
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


def _check_window(draft: Draft) -> None:
    """Raise UnsupportedOperator for kernels, strides, dilations and padding that no instruction can encode."""
    settings = draft.layer.settings
    for name, most in (("kernel", MAX_WINDOW), ("stride", MAX_WINDOW), ("dilation", MAX_WINDOW), ("pad", MAX_PAD)):
        largest = max(getattr(settings, name))
        if largest > most:
            raise unsupported(draft.node, f"Its {name} is {largest}; the largest possible is {most}")
