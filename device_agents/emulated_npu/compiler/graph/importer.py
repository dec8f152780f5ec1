"""The graph stage: from an ONNX model to a graph of hardware layers (S2.5, S3.6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from onnx import ModelProto, NodeProto

from device_agents.emulated_npu.compiler.graph import command_limits, views
from device_agents.emulated_npu.compiler.graph.constants import ChannelStep, part_of, scale_shift
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
from device_agents.emulated_npu.compiler.graph.integer_products import finished_product
from device_agents.emulated_npu.compiler.graph.layer_parts import channel_axis
from device_agents.emulated_npu.compiler.graph.operators import DOMAINS, IN_PART, OPERATORS
from device_agents.emulated_npu.compiler.graph.orders import ordered
from device_agents.emulated_npu.compiler.graph.quantised_reads import read_integers
from device_agents.emulated_npu.compiler.graph.reading.model_reader import parse_model
from device_agents.emulated_npu.compiler.graph.recognition.patterns import recognise
from device_agents.emulated_npu.unit_commands import DataType, Function
from device_agents.emulated_npu.unit_settings import PLAIN

DEFAULT_DOMAIN = "ai.onnx"
"""The domain of operators that name none."""


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
        orders = ordered(values, layers)
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
        command_limits.check_types(draft, operands)
        command_limits.check_window(draft)
        for value in operands:
            command_limits.check_value(draft, value)
        for view in (output, *inputs):
            command_limits.check_elements(draft, view.shape)
        return command_limits.within_rank(draft, inputs, output)

    def _factors(self, pair: LazyConstant, shape: tuple[int, ...]) -> tuple[View, View]:
        """Return scale and shift of an AFFINE layer as values, repeated over all axes except the channels."""
        scale, shift = (part_of(pair, row, f"{pair.name}.{row}") for row in (0, 1))
        for constant in (scale, shift):
            self._values[constant.name] = constant_value(constant)
        axes = tuple(ViewAxis(size, 0 if axis == 1 else None) for axis, size in enumerate(shape))
        return View(scale.name, (0,), axes), View(shift.name, (0,), axes)
