"""Slices of a layer compute their parts of the same values, and nothing twice."""

import contextlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import event, given, settings, strategies as st
from networks_on_npu import NetworkCase, execute, network_of, relative_error, small_machine
from onnx import NodeProto
from random_networks import WINDOWS, random_networks
from reference_graph import run_graph
from small_models import node, values
from splittable_network import splittable_network

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph, HardwareLayer
from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.compiler.graph.regions import overlap
from device_agents.emulated_npu.compiler.graph.value_parts import whole_value
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.planning.search import possible_chains
from device_agents.emulated_npu.compiler.planning.search.possible_chains import PossibleChains
from device_agents.emulated_npu.compiler.splitting.assignment import Assignment, GroupAssignment
from device_agents.emulated_npu.compiler.splitting.division import divide, shared_layers
from device_agents.emulated_npu.compiler.splitting.layer_split import (
    SPLIT_KINDS,
    CannotSplit,
    LayerSplit,
    SplitKind,
    proportional_parts,
    split_graph,
    split_layer,
)
from device_agents.emulated_npu.compiler.stages import compile_graph
from device_agents.emulated_npu.machine import find_machine
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import Function
from device_agents.emulated_npu.unit_settings import Activation


def _with(graph: Graph, layer: HardwareLayer, split: LayerSplit) -> Graph:
    """Return the graph with one layer split."""
    return split_graph(graph, {layer.index: split}).graph


def _choosing(graph: Graph, kind: SplitKind, parts: int) -> tuple[Graph, int]:
    """Return the graph with every possible layer split by the kind, and their number."""
    splits: dict[int, LayerSplit] = {}
    for layer in graph.layers:
        with contextlib.suppress(CannotSplit):
            splits[layer.index] = split_layer(layer, graph.values, kind, [1] * parts)
    return split_graph(graph, splits).graph, len(splits)


def _close(found: Mapping[str, Array], expected: Mapping[str, Array], tolerance: float) -> None:
    for name, wanted in expected.items():
        scale = max(float(np.abs(wanted.astype(float)).max(initial=0.0)), 1e-6)
        np.testing.assert_allclose(found[name].astype(float), wanted.astype(float), rtol=0, atol=tolerance * scale)


@given(st.data())
@settings(max_examples=24)
def test_slices_together_are_the_layer(data: st.DataObject) -> None:
    """The slices of every layer of random networks write every element once, with the values of the layers."""
    network = data.draw(random_networks() | random_networks(WINDOWS, 5, 16))
    graph = import_model(network.model)
    kind, parts = data.draw(st.sampled_from(SPLIT_KINDS)), data.draw(st.integers(2, 8))
    split, count = _choosing(graph, kind, parts)
    if not count:
        event(f"no layer by {kind}")
        return
    expected = run_graph(graph, network.inputs, network.weights)
    _close(run_graph(split, network.inputs, network.weights), expected, 1e-5)


@given(st.data())
@settings(max_examples=10)
def test_compiled_slices_compute_what_the_layers_do(data: st.DataObject) -> None:
    """A program of all slices computes the values of the network."""
    network = data.draw(random_networks())
    graph = import_model(network.model)
    split, _ = _choosing(graph, data.draw(st.sampled_from(SPLIT_KINDS)), data.draw(st.integers(2, 8)))
    outputs = execute(compile_graph(split, find_machine("edge")), network)
    assert relative_error(outputs, network.expected) <= 1e-4


def test_parts_of_a_sum_that_no_other_chain_reads_are_not_stored() -> None:
    """Of a sum in eight parts, each read by one layer, a chain with that layer stores none, and one without it does."""
    nodes = [node("Conv", "x w", "c", pads=[1] * 4), node("Relu", "c", "y")]
    network = network_of(nodes, {"x": values((1, 4, 10, 3))}, {"w": values((4, 4, 3, 3), 1)}, ["y"])
    split, _ = _choosing(import_model(network.model), "inputs", 8)
    machine = find_machine("edge")
    first = next(place for place, layer in enumerate(split.layers) if layer.function is Function.REDUCE)
    chains, (total, output) = PossibleChains(split, machine), split.layers[first : first + 2]
    for end, stored in ((first + 1, total.output.value), (first + 2, output.output.value)):
        assert set(map(whole_value, chains.chain(first, end).stored)) == {stored}
    assert relative_error(execute(compile_graph(split, machine), network), network.expected) <= 1e-4


def test_each_part_is_compared_with_each_of_its_readers_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which chains store a value of many parts, each read by one layer, is not found anew for every chain."""
    counted = Mock(side_effect=overlap)
    monkeypatch.setattr(possible_chains, "overlap", counted)
    parts = range(12)
    names = [" ".join(f"{letter}{part}" for part in parts) for letter in "pr"]
    nodes = [node("Concat", names[0], "all", axis=1), node("Split", "all", names[1], axis=1)]
    nodes[:0] = [node("Conv", f"x w{part}", f"p{part}") for part in parts]
    nodes += [node("Conv", f"r{part} w{part}", f"y{part}") for part in parts]
    weights = {f"w{part}": values((4, 4, 1, 1), part) for part in parts}
    graph = import_model(network_of(nodes, {"x": values((1, 4, 6, 6))}, weights, [f"y{part}" for part in parts]).model)
    chains, layers = PossibleChains(graph, find_machine("edge")), len(graph.layers)
    assert layers == 2 * len(parts)
    for start, end in itertools.combinations(range(layers + 1), 2):
        read_later = any(start <= part < end <= part + len(parts) for part in parts)
        assert chains.is_stored(graph.layers[0].output.value, start, end) == read_later
    assert counted.call_count == len(parts) ** 2


def test_memories_delay_slices_and_with_multicast_all_layers_of_several_cores() -> None:
    """By hand: the wide convolution is in two slices; the memories delay these for the other core, not others."""
    graph, edge = splittable_network(), find_machine("edge")
    layers = tuple(layer.index for layer in graph.layers)
    split = split_layer(graph.layers[0], graph.values, "outputs", [1, 1])
    divided = divide(graph, edge, Assignment((GroupAssignment((0, 1), layers),)), {0: split}).graph
    assert len(divided.layers) == len(layers) + 1
    multicast = replace(edge, cores=replace(edge.cores, multicast=True))
    found = [shared_layers(divided, machine, cores) for machine, cores in ((edge, 2), (multicast, 2), (multicast, 1))]
    assert found == [{0, 1}, {layer.index for layer in divided.layers}, {0, 1}]


# --- layer by layer -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Case:
    """A network whose last layer with `function` is tested, and the kinds by which it can be split."""

    function: Function
    nodes: Sequence[NodeProto]
    x: Sequence[int]
    kinds: str
    constants: Mapping[str, Array] = field(default_factory=dict)

    @property
    def network(self) -> NetworkCase:
        return network_of(self.nodes, {"x": values(self.x, 7)}, self.constants, ["y"])


def _w(*shape: int) -> dict[str, Array]:
    return {"w": values(shape, 1)}


_RESIDUAL = [
    node("Conv", "x w", "a", pads=[1, 1, 1, 1]),
    node("Mul", "a s", "b"),
    node("Add", "b x", "c"),
    node("Relu", "c", "y"),
]
_SCALE = {"s": values((1, 6, 1, 1), 2)}
CASES = {
    "strided and padded": _Case(
        Function.CONVOLVE,
        [node("Conv", "x w", "y", pads=[3, 3, 2, 2], strides=[2, 2])],
        (2, 5, 23, 21),
        "batch rows outputs inputs",
        _w(7, 5, 7, 7),
    ),
    "dilated": _Case(
        Function.CONVOLVE,
        [node("Conv", "x w", "y", pads=[2, 4, 2, 4], dilations=[2, 4])],
        (1, 3, 19, 30),
        "rows outputs inputs",
        _w(4, 3, 3, 3),
    ),
    "in one dimension": _Case(
        Function.CONVOLVE, [node("Conv", "x w", "y", pads=[1, 1])], (3, 4, 33), "batch rows outputs inputs", _w(6, 4, 3)
    ),
    "in three dimensions": _Case(
        Function.CONVOLVE,
        [node("Conv", "x w", "y", pads=[1] * 6, strides=[1, 2, 1])],
        (2, 3, 5, 9, 7),
        "batch rows outputs inputs",
        _w(4, 3, 3, 3, 3),
    ),
    "with residual and activation": _Case(
        Function.CONVOLVE, _RESIDUAL, (1, 6, 9, 9), "rows outputs inputs", {**_w(6, 6, 3, 3), **_SCALE}
    ),
    "four groups": _Case(
        Function.CONVOLVE, [node("Conv", "x w", "y", group=4)], (1, 8, 6, 6), "rows outputs", _w(12, 2, 1, 1)
    ),
    "depthwise": _Case(
        Function.DEPTHWISE,
        [node("Conv", "x w", "y", group=9, pads=[1, 1, 1, 1], strides=[2, 2])],
        (2, 9, 15, 16),
        "batch rows outputs",
        _w(9, 1, 3, 3),
    ),
    "depthwise with multiplier": _Case(
        Function.DEPTHWISE, [node("Conv", "x w", "y", group=5)], (1, 5, 8, 8), "rows outputs", _w(15, 1, 3, 3)
    ),
    "maximum": _Case(
        Function.POOL_MAX,
        [node("MaxPool", "x", "y", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])],
        (2, 5, 17, 17),
        "batch rows outputs",
    ),
    "average without padding": _Case(
        Function.POOL_AVERAGE,
        [node("AveragePool", "x", "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1])],
        (1, 5, 9, 9),
        "rows outputs",
    ),
    "average with padding": _Case(
        Function.POOL_AVERAGE,
        [node("AveragePool", "x", "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)],
        (1, 5, 9, 9),
        "rows outputs",
    ),
    "local response": _Case(Function.LRN, [node("LRN", "x", "y", size=3)], (2, 7, 5, 5), "batch rows"),
    "matrix by weights": _Case(
        Function.CONVOLVE, [node("MatMul", "x w", "y")], (3, 2, 9, 10), "batch rows outputs inputs", _w(10, 6)
    ),
    "two computed matrices": _Case(
        Function.CONVOLVE,
        [node("Transpose", "x", "t", perm=[0, 1, 3, 2]), node("MatMul", "x t", "y")],
        (2, 3, 8, 5),
        "batch rows outputs inputs",
    ),
    "elementwise": _Case(
        Function.BINARY, [node("Exp", "x", "a"), node("Mul", "x a", "y")], (2, 3, 9, 4), "batch rows outputs"
    ),
    "transposed copy": _Case(
        Function.COPY, [node("Transpose", "x", "y", perm=[0, 3, 1, 2])], (2, 3, 9, 4), "batch rows outputs"
    ),
    "sum along one axis": _Case(
        Function.REDUCE, [node("ReduceMax", "x", "y", axes=[2])], (2, 6, 9, 4), "batch rows outputs"
    ),
    "softmax": _Case(Function.SOFTMAX, [node("Softmax", "x", "y", axis=3)], (2, 6, 9, 4), "batch rows"),
    "layer normalization": _Case(
        Function.NORMALIZE, [node("LayerNormalization", "x w", "y", axis=3)], (2, 6, 9, 4), "batch rows", _w(4)
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_function_by_each_kind(name: str) -> None:
    """3 and up to 8 slices of every function have its values, run on the machine; kinds that it lacks are refused."""
    case = CASES[name]
    graph = import_model(case.network.model)
    (*_, layer) = (layer for layer in graph.layers if layer.function is case.function)
    possible = []
    for kind in SPLIT_KINDS:
        for parts in (3, 8):
            try:
                split = split_layer(layer, graph.values, kind, [1] * parts)
            except CannotSplit as error:
                assert layer.name in error.what
                assert kind in error.what
                assert error.why
                continue
            possible.append(kind)
            assert all(2 <= len(slices) <= parts for slices in split.phases)
            assert len(split.phases) == (2 if kind == "inputs" else 1)
            outputs = execute(compile_graph(_with(graph, layer, split), find_machine("edge")), case.network)
            assert relative_error(outputs, case.network.expected) <= 2e-6, (kind, parts)
    assert list(dict.fromkeys(possible)) == case.kinds.split()


def _convolution(**attributes: Any) -> tuple[Graph, HardwareLayer]:
    case = _Case(Function.CONVOLVE, [node("Conv", "x w", "y", **attributes)], (1, 8, 14, 14), "", _w(10, 8, 3, 3))
    graph = import_model(case.network.model)
    return graph, graph.layers[0]


def test_rows_bring_their_own_padding() -> None:
    """By hand: 14 rows padded by 1, kernel 3: rows 0-6 read 0-7 behind one of padding, rows 7-13 read 6-13."""
    graph, layer = _convolution(pads=[1, 1, 1, 1])
    (((upper,), (lower,)),) = split_layer(layer, graph.values, "rows", [1] * 2).phases
    assert [(part.inputs[0].start[2], part.inputs[0].shape[2], part.settings.pad[1]) for part in (upper, lower)] == [
        (0, 8, 1),
        (6, 8, 0),
    ]
    assert [(part.output.start[2], part.output.shape[2]) for part in (upper, lower)] == [(0, 7), (7, 7)]
    assert upper.weights is lower.weights is layer.weights


def test_outputs_divide_weights_and_scales() -> None:
    """By hand: 10 channels on 4 cores are 2, 3, 2, 3; each has those rows of the weights, and reads everything."""
    graph, layer = _convolution()
    (slices,) = split_layer(layer, graph.values, "outputs", [1] * 4).phases
    assert [part.fixed_weights.shape[0] for (part,) in slices] == [2, 3, 2, 3]
    assert [part.output.start[1] for (part,) in slices] == [0, 2, 5, 7]
    assert {part.inputs for (part,) in slices} == {layer.inputs}


def test_inputs_leave_partial_sums_to_be_summed() -> None:
    """By hand: 8 input channels on 3 cores are 2, 3, 3; the 12 rows of the sum are divided again."""
    case = _Case(Function.CONVOLVE, _RESIDUAL, (1, 8, 12, 12), "", {**_w(8, 8, 3, 3), "s": values((1, 8, 1, 1), 2)})
    graph = import_model(case.network.model)
    layer = graph.layers[0]
    split = split_layer(layer, graph.values, "inputs", [1] * 3)
    products, sums = split.phases
    assert [part.fixed_weights.shape[1] for (part,) in products] == [2, 3, 3]
    assert all(part.residual is None for (part,) in products)
    assert all(part.settings.activation is Activation.NONE for (part,) in products)
    assert [[part.function for part in parts] for parts in sums] == [[Function.REDUCE, Function.BINARY]] * 3
    assert [parts[-1].output.shape[2] for parts in sums] == [4, 4, 4]
    assert all(parts[-1].settings.activation is layer.settings.activation for parts in sums)
    partial = next(value for value in split.values.values() if len(value.shape) == 5)
    assert partial.shape == (3, 1, 8, 12, 12)


def test_slices_are_cut_into_tiles_along_the_axis_that_is_split() -> None:
    """Half of 256 rows of 64 columns and as many results take 64 KiB: in 20 KiB each half runs in several passes."""
    network = network_of([node("MatMul", "x w", "y")], {"x": values((256, 64), 3)}, _w(64, 64), ["y"])
    graph = import_model(network.model)
    split = _with(graph, graph.layers[0], split_layer(graph.layers[0], graph.values, "rows", [1] * 2))
    compiled = compile_graph(split, small_machine(20 << 10, 20 << 10), Options(chains="layers", residency="features"))
    assert [len(plan.layers) for plan in compiled.plans] == [1, 1]
    assert all(plan.passes > 1 for plan in compiled.plans)
    assert relative_error(execute(compiled, network), network.expected) <= 1e-6


def test_groups_stay_whole_or_are_divided_each_by_itself() -> None:
    """4 groups of 3 output channels: on 2 cores 2 groups each, on 8 cores each group in 2; channels follow."""
    case = CASES["four groups"]
    graph = import_model(case.network.model)
    halves, pieces = (split_layer(graph.layers[0], graph.values, "outputs", [1] * parts).phases[0] for parts in (2, 8))
    assert [(part.groups, part.output.shape[1], part.inputs[0].shape[1]) for (part,) in halves] == [(2, 6, 4)] * 2
    assert [(part.groups, part.output.shape[1], part.inputs[0].shape[1]) for (part,) in pieces] == [
        (1, 1, 2),
        (1, 2, 2),
    ] * 4


def test_windows_that_see_only_padding_belong_to_the_slice_before() -> None:
    """Rows whose windows hold only padding behind the input are computed with the rows before them."""
    case = _Case(
        Function.POOL_AVERAGE,
        [node("AveragePool", "x", "y", kernel_shape=[2, 2], pads=[0, 0, 1, 1], ceil_mode=0, count_include_pad=1)],
        (1, 2, 4, 4),
        "",
    )
    graph = import_model(case.network.model)
    assert all(
        part.inputs[0].shape[2] > 0
        for slices in split_layer(graph.layers[0], graph.values, "rows", [1] * 4).phases
        for (part,) in slices
    )


@pytest.mark.parametrize("kind", ["batch", "rows", "outputs", "inputs"])
def test_a_vector_is_refused_or_split(kind: SplitKind) -> None:
    """A layer with inputs of one axis, without channels and no product, has the possible kinds of split."""
    network = network_of([node("Add", "x b", "y")], {"x": values((12,), 1)}, {"b": values((12,), 2)}, ["y"])
    graph = import_model(network.model)
    (layer,) = graph.layers
    assert {len(view.axes) for view in layer.inputs} == {1}
    if kind == "inputs":
        with pytest.raises(CannotSplit) as caught:
            split_layer(layer, graph.values, kind, [1] * 3)
        assert caught.value.why == "BINARY makes no sum of products over input channels"
        return
    try:
        split = split_layer(layer, graph.values, kind, [1] * 3)
    except CannotSplit as error:
        assert layer.name in error.what
        return
    outputs = execute(compile_graph(_with(graph, layer, split), find_machine("edge")), network)
    assert relative_error(outputs, network.expected) == 0


@given(st.integers(1, 200), st.integers(1, 64), st.integers(1, 40))
def test_parts_are_as_equal_as_units_let_them(size: int, parts: int, unit: int) -> None:
    """Parts of equal shares are no more than asked for, and differ by at most one unit, except a cut last one."""
    found = proportional_parts(size, [7] * parts, unit)
    assert len(found) == min(parts, -(-size // unit))
    sizes = [-(-(high - low) // unit) for low, high in found]
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 200), st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 40))
def test_parts_have_the_proportion_of_their_shares(size: int, shares: list[int], unit: int) -> None:
    """Parts are adjacent and cover everything; each bound is less than a unit below its proportion, never above it."""
    found = proportional_parts(size, shares, unit)
    assert found[0][0] == 0
    assert found[-1][1] == size
    assert all(before[1] == after[0] for before, after in itertools.pairwise(found))
    assert all(low % unit == 0 for low, _ in found)
    units = -(-size // unit)
    counted = shares[:units]
    wanted = [units * sum(counted[:place]) / sum(counted) for place in range(1, len(counted))]
    assert {high // unit for _, high in found[:-1]} == {math.floor(bound) for bound in wanted} - {0}
