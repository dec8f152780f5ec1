"""Networks on several core groups compute the values of one core, for any crossings between groups."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from networks_on_npu import ORDERS, NetworkCase, network_of, small_machine
from small_models import node, values
from systems_of_cores import checked_run, compiled_for, groups_of, in_turn, with_cores

from device_agents.emulated_npu.compiler.compiled import Compiled, CompiledSystem
from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.splitting.assignment import Assignment, GroupAssignment
from device_agents.emulated_npu.compiler.splitting.layer_split import split_layer
from device_agents.emulated_npu.compiler.stages import compile_graph, compile_system
from device_agents.emulated_npu.emulator_errors import ChipTooSmall
from device_agents.emulated_npu.execution.interleaving import Order
from device_agents.emulated_npu.execution.stream_execution import run_stream
from device_agents.emulated_npu.isa.program import Program
from device_agents.emulated_npu.isa.sequencer import sequence
from device_agents.emulated_npu.machine import find_machine
from device_agents.emulated_npu.many_cores.system_runs import group_programs, run_system
from device_agents.emulated_npu.unit_commands import Command, Function, Space

MACHINE = with_cores(small_machine(), 6)
DIRECT = Options(conv_algorithm="direct")


def _commands(program: Program, *functions: Function) -> list[Command]:
    """Return the data commands with one of these functions, in the order of issue."""
    items = (step.item for step in sequence(program.code))
    return [item for item in items if isinstance(item, Command) and item.function in functions]


def _crossings(compiled: CompiledSystem) -> set[tuple[int, int]]:
    """Return the pairs of sender and receiver."""
    return {(core.core, command.peer) for core in compiled.cores for command in _commands(core.program, Function.SEND)}


def _convolutions(count: int, channels: int = 4, height: int = 24) -> NetworkCase:
    nodes, constants = [], {}
    for place in range(count):
        constants[f"w{place}"] = values((channels, channels, 3, 3), place, -0.5, 0.5)
        nodes.append(node("Conv", f"{f't{place - 1}' if place else 'x'} w{place}", f"t{place}", pads=[1, 1, 1, 1]))
    return network_of(nodes, {"x": values((1, channels, height, 16))}, constants, [f"t{count - 1}"])


def test_values_inside_a_chain_need_no_cache() -> None:
    """Programs are those for a large cache if what they store fits in the cache, whatever a chain keeps on chip."""
    network = _convolutions(6, channels=8, height=32)
    graph = import_model(network.model)
    splits = {place: split_layer(graph.layers[place], graph.values, "rows", [1, 1]) for place in (4, 5)}
    edge = with_cores(find_machine("edge"), 2)
    programs = []
    for cache_bytes in (40 << 10, 1 << 20):  # a map of features has 16 KiB
        machine = replace(edge, llc=replace(edge.llc, bytes=cache_bytes))
        compiled = compile_system(
            graph, machine, Assignment((GroupAssignment((0, 1), tuple(range(6))),)), splits=splits
        )
        chains = [chain for core in compiled.cores for decision in core.decisions for chain in decision.chains]
        assert max(len(chain.layers) for chain in chains) > 2, "maps are inside a chain"
        programs.append([core.program for core in compiled.cores])
    assert programs[0] == programs[1]


@pytest.mark.parametrize("ends", [(2,), (1, 2, 3)], ids=str)
def test_a_chain_of_layers_in_stages(ends: tuple[int, ...]) -> None:
    """Each group sends only to the next one, and the outputs are those of one core."""
    network = _convolutions(4)
    compiled = compiled_for(network, MACHINE, in_turn(import_model(network.model), *ends))
    checked_run(network, compiled)
    assert _crossings(compiled) == {(core, core + 1) for core in range(len(ends))}
    assert [group.stage for group in compiled.groups] == list(range(len(ends) + 1))
    assert [group.depth for group in compiled.groups] == [1, *(2 for _ in ends)]
    # 4 channels x 24 x 16 pixels x 4 bytes
    assert [group.received_bytes for group in compiled.groups] == [0, *(6144 for _ in ends)]


def test_what_only_others_read_is_sent_and_not_stored() -> None:
    """Tiles go directly from NB to the memory of the group that reads them; the sender has no place for them."""
    network = _convolutions(4)
    compiled = compiled_for(network, MACHINE, in_turn(import_model(network.model), 2))
    first, second = (core.program for core in compiled.cores)
    assert not _commands(first, Function.STORE)
    assert all(
        command.first and command.first.descriptor.space is Space.NB for command in _commands(first, Function.SEND)
    )
    weights = 2 * 4 * 4 * 9 * 4
    assert first.footprint.ddr_bytes == 6144 + weights  # x, and the weights of two layers
    assert len(_commands(second, Function.RECEIVE)) == len(_commands(first, Function.SEND))


def test_tiles_are_received_when_they_are_needed() -> None:
    """A group begins with its first tile before the last one has been sent: RECEIVE and CONVOLVE alternate."""
    network = _convolutions(2, height=64)
    machine = with_cores(small_machine(nb_bytes=8 << 10, halo_bytes=2 << 10), 2)
    compiled = compiled_for(network, machine, in_turn(import_model(network.model), 1))
    checked_run(network, compiled)
    order = [command.function for command in _commands(compiled.cores[1].program, Function.RECEIVE, Function.CONVOLVE)]
    assert order.count(Function.RECEIVE) > 2
    last = len(order) - 1 - order[::-1].index(Function.RECEIVE)
    assert order.index(Function.CONVOLVE) < last


def test_a_value_for_three_later_stages() -> None:
    """A value that several groups read is sent to each, and held for as many inputs as it passes stages, plus one."""
    nodes = [node("Conv", "x w", "a", pads=[1, 1, 1, 1])]
    nodes += [node("Relu", "a", "b"), node("Add", "a b", "c"), node("Sub", "c a", "d")]
    network = network_of(nodes, {"x": values((1, 4, 12, 12))}, {"w": values((4, 4, 3, 3))}, ["d"])
    graph = import_model(network.model)
    assert len(graph.layers) == 4
    compiled = compiled_for(network, MACHINE, in_turn(graph, 1, 2, 3))
    checked_run(network, compiled)
    assert _crossings(compiled) == {(0, 1), (0, 2), (0, 3), (1, 2), (2, 3)}
    assert [group.depth for group in compiled.groups] == [1, 2, 3, 4]
    size = 4 * 12 * 12 * 4
    assert [group.received_bytes for group in compiled.groups] == [0, size, 2 * size, 2 * size]
    # Rings of 4 slots for a and c, and d itself.
    assert compiled.cores[3].program.footprint.ddr_bytes == (2 * 4 + 1) * size


def test_parallel_branches_are_one_stage() -> None:
    """Groups that read from the same group are in the same stage."""
    nodes = [node("Relu", "x", "a"), node("Sigmoid", "a", "b"), node("Tanh", "a", "c"), node("Add", "b c", "y")]
    network = network_of(nodes, {"x": values((1, 4, 9, 9))}, {}, ["y"])
    compiled = compiled_for(network, MACHINE, groups_of([0], [1], [2], [3]))
    checked_run(network, compiled)
    assert [group.stage for group in compiled.groups] == [0, 1, 1, 2]
    assert [group.depth for group in compiled.groups] == [1, 2, 2, 2]


def _concatenated(axis: int, outputs: tuple[str, ...] = ("y",)) -> NetworkCase:
    """Return three parts of one value, and a layer that reads all of it."""
    nodes = [node("Conv", f"x w{place}", f"t{place}", pads=[1, 1, 1, 1]) for place in range(3)]
    nodes += [node("Concat", "t0 t1 t2", "c", axis=axis), node("Relu", "c", "y")]
    weights = {f"w{place}": values((4, 4, 3, 3), place) for place in range(3)}
    return network_of(nodes, {"x": values((1, 4, 10, 8))}, weights, list(outputs))


@pytest.mark.parametrize(
    ("axis", "layers"),
    [(1, ([0, 1, 2], [3])), (2, ([0], [1], [2], [3])), (3, ([0], [2, 1, 3])), (1, ([1], [0, 2, 3]))],
    ids=str,
)
def test_parts_of_a_concatenation_come_together(axis: int, layers: tuple[list[int], ...]) -> None:
    """Several groups write parts of one value in place; each part is sent to the readers of the value."""
    network = _concatenated(axis)
    compiled = compiled_for(network, MACHINE, groups_of(*layers))
    assert len({layer.output.value for layer in import_model(network.model).layers[:3]}) == 1
    checked_run(network, compiled)
    assert {peer for _, peer in _crossings(compiled)} == {len(layers) - 1}


@pytest.mark.parametrize("layers", [([0], [1], [2]), ([0, 2], [1]), ([2], [0, 1])], ids=str)
def test_a_concatenation_as_output_comes_together_in_one_group(layers: tuple[list[int], ...]) -> None:
    """The last group that writes a part of an output receives the other parts, though no layer of it reads them."""
    nodes = [node("Conv", f"x w{place}", f"t{place}", pads=[1, 1, 1, 1]) for place in range(3)]
    nodes += [node("Concat", "t0 t1 t2", "y", axis=1)]
    weights = {f"w{place}": values((4, 4, 3, 3), place) for place in range(3)}
    network = network_of(nodes, {"x": values((1, 4, 10, 8))}, weights, ["y"])
    compiled = compiled_for(network, MACHINE, groups_of(*layers))
    checked_run(network, compiled)
    ports = [[port.name for port in core.program.outputs] for core in compiled.cores]
    assert ports == [*([] for _ in layers[1:]), ["y"]]


def test_a_dense_block_in_stages() -> None:
    """If every layer reads what earlier layers added to one value, groups send its parts in one direction."""
    nodes, parts, weights = [node("Relu", "x", "t0")], ["t0"], {}
    for place in range(1, 6):
        joined = parts[0]
        if place > 1:
            joined = f"c{place}"
            nodes.append(node("Concat", " ".join(parts), joined, axis=1))
        weights[f"w{place}"] = values((4, 4 * place, 3, 3), place, -0.3, 0.3)
        nodes.append(node("Conv", f"{joined} w{place}", f"t{place}", pads=[1, 1, 1, 1]))
        parts.append(f"t{place}")
    nodes.append(node("Concat", " ".join(parts), "c", axis=1))
    nodes.append(node("GlobalAveragePool", "c", "y"))
    network = network_of(nodes, {"x": values((1, 4, 12, 10))}, weights, ["y"])
    graph = import_model(network.model)
    for ends in ((3,), (1, 2, 4, 5)):
        compiled = compiled_for(network, MACHINE, in_turn(graph, *ends))
        checked_run(network, compiled)
        assert all(sender < peer for sender, peer in _crossings(compiled))


def test_several_inputs_and_outputs() -> None:
    """Inputs are ports of every group that reads them, outputs are ports of the group that computes them."""
    nodes = [node("Add", "x z", "a"), node("Relu", "a", "b"), node("Mul", "b z", "c"), node("Sigmoid", "b", "d")]
    inputs = {"x": values((1, 3, 7, 5)), "z": values((1, 3, 7, 5), 1)}
    network = network_of(nodes, inputs, {}, ["a", "c", "d"])
    graph = import_model(network.model)
    compiled = compiled_for(network, MACHINE, in_turn(graph, 1, 2, 3))
    checked_run(network, compiled)
    programs = [core.program for core in compiled.cores]
    assert [[port.name for port in program.inputs] for program in programs] == [["x", "z"], [], ["z"], []]
    assert [[port.name for port in program.outputs] for program in programs] == [["a"], [], ["c"], ["d"]]


@pytest.mark.parametrize("end", [1, 2, 3])
def test_values_read_through_reshaped_and_transposed_views(end: int) -> None:
    """Products read received values transposed, in heads, and as rows of a table, as on one core."""
    nodes = [
        node("MatMul", "x wq", "q"),
        node("Reshape", "q split", "qs"),
        node("Transpose", "qs", "qh", perm=[0, 2, 1, 3]),
        node("MatMul", "x wk", "k"),
        node("Reshape", "k split", "ks"),
        node("Transpose", "ks", "kh", perm=[0, 2, 3, 1]),
        node("MatMul", "qh kh", "s"),
        node("Softmax", "s", "p", axis=-1),
        node("Transpose", "p", "y", perm=[0, 2, 1, 3]),
    ]
    constants = {"wq": values((8, 8)), "wk": values((8, 8), 1), "split": np.array([1, 6, 2, 4], np.int64)}
    network = network_of(nodes, {"x": values((1, 6, 8), 2)}, constants, ["y"])
    graph = import_model(network.model)
    checked_run(network, compiled_for(network, MACHINE, in_turn(graph, end)))


def test_rows_gathered_from_a_table_of_another_group() -> None:
    """GATHER reads its table from the memory of the group that received it."""
    nodes = [node("Relu", "t", "table"), node("Gather", "table i", "g"), node("Neg", "g", "y")]
    inputs = {"t": values((9, 5)), "i": np.array([3, 0, 8, 3], np.int64)}
    network = network_of(nodes, inputs, {}, ["y"])
    compiled = compiled_for(network, MACHINE, in_turn(import_model(network.model), 1))
    checked_run(network, compiled)


@pytest.mark.parametrize("chips", [1, 2])
def test_groups_on_chips(chips: int) -> None:
    """The chips of the cores and the order of the groups do not change values."""
    network = _convolutions(4)
    layers = ((0,), (1,), (2, 3))
    machine = with_cores(small_machine(), 6 // chips, chips)
    groups = [GroupAssignment((core,), own) for core, own in zip((5, 0, 3), layers, strict=True)]
    compiled = compiled_for(network, machine, Assignment((groups[2], groups[0], groups[1])))
    checked_run(network, compiled)
    assert [group.stage for group in compiled.groups] == [2, 0, 1]
    assert [group.chip for group in compiled.groups] == ([0, 0, 0] if chips == 1 else [1, 1, 0])


def test_one_group_is_one_core() -> None:
    """All layers on one core of several compile to the program of a machine with one core."""
    network = _convolutions(3)
    machine = with_cores(small_machine(), 1)
    compiled = compiled_for(network, machine, in_turn(import_model(network.model)))
    assert compiled.cores[0].program == compile_graph(import_model(network.model), machine, DIRECT).program


def test_values_that_are_received_lie_in_the_cache_where_they_fit() -> None:
    """Sent values go to the last-level cache if there is one; its share grows with the cores of the group."""
    network = _convolutions(4)
    cached = small_machine(llc=replace(find_machine("edge").llc, bytes=6 * 64 << 10))
    compiled = compiled_for(network, with_cores(cached, 6), in_turn(import_model(network.model), 2))
    checked_run(network, compiled)
    targets = {command.target.descriptor.space for command in _commands(compiled.cores[0].program, Function.SEND)}
    assert targets == {Space.LLC}


def test_one_buffer_for_features_and_weights() -> None:
    """Groups work on machines with NB and SB in one memory."""
    machine = small_machine(nb_bytes=16 << 10, sb_bytes=16 << 10, shared_buffer=True)
    network = _convolutions(4)
    checked_run(network, compiled_for(network, with_cores(machine, 2), in_turn(import_model(network.model), 2)))


@cache
def _by_dft() -> tuple[NetworkCase, Compiled]:
    """Return two convolutions, and their program for one of several cores with both by DFT."""
    network = _convolutions(2)
    machine = with_cores(small_machine(nb_bytes=64 << 10, sb_bytes=64 << 10), 6)
    return network, compile_graph(import_model(network.model), machine, Options(conv_algorithm="odd-dft"))


@pytest.mark.parametrize("ends", [(), (3, 6, 9)], ids=str)
def test_spectra_of_kernels_are_made_where_they_are_used(ends: tuple[int, ...]) -> None:
    """With convolutions by DFT, each group has a setup for the kernels of its own layers, or none."""
    network, written = _by_dft()
    assert written.program.setup.code
    compiled = compile_system(written.graph, written.machine, in_turn(written.graph, *ends), DIRECT)
    checked_run(network, compiled, tolerance=1e-4)
    made = [set(core.program.setup.layers) for core in compiled.cores]
    assert set().union(*made) == set(written.program.setup.layers)
    setup = {name for name, value in written.graph.values.items() if value.kind == "setup"}
    for names, group in zip(made, compiled.assignment.groups, strict=True):
        layers = (written.graph.layers[place] for place in group.layers)
        assert bool(names) == any(view.value in setup for layer in layers for view in layer.reads)


@pytest.mark.parametrize(
    "options", [Options(fences=True), Options("layers", reorder=False), Options(tile=(5, 3))], ids=str
)
def test_forced_choices(options: Options) -> None:
    """Options that a user forces apply in every group."""
    network = _convolutions(4)
    compiled = compiled_for(network, MACHINE, in_turn(import_model(network.model), 2), options)
    checked_run(network, compiled)


def test_equal_systems_are_compiled_equally() -> None:
    """The same network and assignment compile to the same bytes."""
    network = _concatenated(1)
    first, second = (compiled_for(network, MACHINE, groups_of([0], [1], [2, 3])) for _ in range(2))
    assert [core.program.to_bytes() for core in first.cores] == [core.program.to_bytes() for core in second.cores]


def test_a_chip_that_is_too_small_for_its_groups_is_named() -> None:
    """Received values take room for every pending input; the error has the demands, the limit, chip and groups.

    x, t0, t1 and the output have 6144 bytes, the weights of a layer 576. The groups need 6144 + 576 for x, 2 x 6144 +
    576 for a ring of two, and 6144 more for the output: 6720 + 12864 + 19008 = 38592.
    """
    network = _convolutions(3)
    assignment = in_turn(import_model(network.model), 1, 2)
    for size, fits in ((38592, True), (38591, False)):
        machine = with_cores(small_machine(ddr=replace(find_machine("edge").ddr, bytes=size)), 3)
        if fits:
            checked_run(network, compiled_for(network, machine, assignment))
            continue
        with pytest.raises(ChipTooSmall, match=r"Chip 0 needs 38592 bytes of DDR: 6720 for group 0, 12864") as caught:
            compiled_for(network, machine, assignment)
        assert caught.value.why == "there are 38591"
        assert (caught.value.chip, caught.value.limit_bytes, caught.value.demand_bytes) == (0, 38591, 38592)


def test_a_group_is_sent_what_its_cores_read_once() -> None:
    """A payload is sent to one core, although all of the group wait for it, and each stores its own rows."""
    network = _convolutions(4)
    graph = import_model(network.model)
    groups = Assignment((GroupAssignment((0,), (0, 1)), GroupAssignment((1, 2), (2, 3))))
    rows = {place: split_layer(graph.layers[place], graph.values, "rows", [1] * 2) for place in (2, 3)}
    compiled = compile_system(graph, MACHINE, groups, DIRECT, splits=rows)
    assert compiled.groups[1].received_bytes == 6144
    sent = [command for command in _commands(compiled.cores[0].program, Function.SEND) if command.first is not None]
    assert sum(command.target.descriptor.bytes for command in sent) == 6144
    # Half of the rows of t2 and half of those of t3 to each.
    stored = [_commands(core.program, Function.STORE) for core in compiled.cores]
    written = [sum(command.target.descriptor.bytes for command in each) for each in stored]
    assert written == [0, 6144, 6144]
    assert all(_commands(core.program, Function.RECEIVE) for core in compiled.groups[1].cores)


def _crossing_two_stages() -> NetworkCase:
    """Return a network in which the second and the third of three layers read the same value."""
    nodes = [node("Conv", "x w", "a", pads=[1, 1, 1, 1]), node("Relu", "a", "b"), node("Sub", "b a", "y")]
    return network_of(nodes, {"x": values((1, 4, 12, 12))}, {"w": values((4, 4, 3, 3))}, ["y"])


@pytest.mark.parametrize("cores", [((0,), (1,), (2,)), ((5,), (3,), (0,)), ((0, 1), (2, 3), (4, 5))], ids=str)
@pytest.mark.parametrize("order", ORDERS)
def test_inputs_one_after_the_other(cores: tuple[tuple[int, ...], ...], order: Order) -> None:
    """Each of five inputs has the outputs that it has alone, with senders as far ahead as possible."""
    network = _crossing_two_stages()
    graph = import_model(network.model)
    assert len(graph.layers) == 3
    groups = tuple(GroupAssignment(own, (place,)) for place, own in enumerate(cores))
    parts = len(cores[0])
    rows = {each.index: split_layer(each, graph.values, "rows", [1] * parts) for each in graph.layers if parts > 1}
    compiled = compile_system(graph, MACHINE, Assignment(groups), DIRECT, splits=rows)
    assert [group.depth for group in compiled.groups] == [1, 2, 3]
    stream = [{"x": values((1, 4, 12, 12), seed)} for seed in range(5)]
    found = run_stream(group_programs(compiled, network.weights), compiled.machine, stream, order=order)
    singles = [run_system(compiled, network.weights, inputs) for inputs in stream]
    for together, single in zip(found, singles, strict=True):
        assert together["y"].tobytes() == single["y"].tobytes()
    assert len({output["y"].tobytes() for output in found}) == 5
