"""Machines whose cores differ: each core has the times of its kind, and gets the work that it can do."""

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st
from networks_on_npu import TOLERANCE, NetworkCase, network_of, relative_error, small_machine
from small_models import node, values
from systems_of_cores import checked_run, with_cores
from timed_programs import machine as plain_machine, sound_programs

from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.prediction.split_choice import choose_splits
from device_agents.emulated_npu.compiler.splitting.assignment import Assignment, GroupAssignment, fastest_first
from device_agents.emulated_npu.compiler.splitting.layer_split import split_layer
from device_agents.emulated_npu.compiler.stages import compile_graph, compile_system
from device_agents.emulated_npu.emulator_errors import InvalidMachine, InvalidPartition
from device_agents.emulated_npu.inference import time_program
from device_agents.emulated_npu.isa.sequencer import IssuedStep
from device_agents.emulated_npu.machine import Machine, load_preset, parse_machine, preset_text
from device_agents.emulated_npu.machine.description import CoreKind
from device_agents.emulated_npu.many_cores.core_groups import contended, fabric_of, form_groups
from device_agents.emulated_npu.many_cores.node_workloads import network_nodes
from device_agents.emulated_npu.many_cores.stage_balancing import PartitionTask, balance_stages
from device_agents.emulated_npu.many_cores.system_runs import run_system, time_system
from device_agents.emulated_npu.partition.greedy import partition_by_score
from device_agents.emulated_npu.partition.node_graph import traverse
from device_agents.emulated_npu.partition.split_score import ShareScore, SplitRule
from device_agents.emulated_npu.timing.many_cores.core_code import CoreSteps
from device_agents.emulated_npu.timing.many_cores.stream_timing import simulate_cores
from device_agents.emulated_npu.timing.simulation import simulate
from harness.npu.split.split_study import network_ps, study_splits

DIRECT = Options(conv_algorithm="direct")


def _kinds() -> Machine:
    """Return two cores, of which the second has a matrix unit a quarter as large."""
    large = with_cores(small_machine(array=(8, 8)), 2)
    small = replace(large, mfu=replace(large.mfu, rows=4, columns=4), sb_bytes=large.sb_bytes // 2)
    return replace(large, kinds=(CoreKind(1, 1, small),))


def _convolutions(count: int = 8, channels: int = 16) -> NetworkCase:
    """Return equal convolutions, one after the other."""
    constants = {f"w{at}": values((channels, channels, 3, 3), at) for at in range(count)}
    nodes = [node("Conv", f"x{at} w{at}", f"x{at + 1}", pads=[1] * 4) for at in range(count)]
    return network_of(nodes, {"x0": values((1, channels, 12, 12))}, constants, [f"x{count}"])


def _task(network: NetworkCase, machine: Machine) -> PartitionTask:
    """Return the task to partition a network over the cores of a machine, with nodes on every kind."""
    graph, groups = import_model(network.model), form_groups(fabric_of(machine), str(machine.cores.count))
    found = {}
    for kind in dict.fromkeys(machine.of_core(group.cores[0]) for group in groups):
        crowded = contended(machine, groups, kind)
        timed = time_program(compile_graph(graph, crowded, DIRECT).program, crowded)
        found[kind] = network_nodes(graph, crowded, timed)
    nodes = found[machine.of_core(0)]
    return PartitionTask(graph, machine, DIRECT, nodes, traverse(nodes.graph), sum(nodes.times_ps), of_kinds=found)


@settings(max_examples=36)
@given(sound_programs(), st.integers(0, 2), st.integers(1, 3))
def test_a_core_without_peers_has_the_times_of_a_machine_of_its_kind(
    steps: list[IssuedStep], issue: int, depth: int
) -> None:
    """Clock, queues and units of a core are those of its kind; random programs end as on that machine alone."""
    first = replace(plain_machine(issue_cycles=issue), cores=with_cores(plain_machine(), 2).cores)
    other = replace(first, clock_hz=5 * 10**8, io_queue_depth=depth, vfu=replace(first.vfu, lanes=4))
    mixed = replace(first, kinds=(CoreKind(1, 1, other),))
    for core, alone in ((0, first), (1, other)):
        timing = simulate_cores([CoreSteps(core, 0, steps)], mixed, inputs=1, depths={0: 1})
        assert timing.makespan_ps == simulate(steps, alone).makespan_ps


def test_a_faster_core_gets_more_of_the_network() -> None:
    """Balanced or by score, more convolutions run on the larger core, faster than halves; the values are right."""
    network, machine = _convolutions(), _kinds()
    task, groups = _task(network, machine), form_groups(fabric_of(machine), "2")
    by_score = partition_by_score(task.nodes.graph, task.traversal, groups, SplitRule(ShareScore(storage_weight=0.0)))
    assert len(by_score.nodes_of(0)) > len(by_score.nodes_of(1))
    placed = balance_stages(task, groups)
    assert len(placed.partition.nodes_of(0)) > len(placed.partition.nodes_of(1)) >= 1
    equal = Assignment((GroupAssignment((0,), (0, 1, 2, 3)), GroupAssignment((1,), (4, 5, 6, 7))))
    halves = compile_system(task.graph, machine, equal, DIRECT)
    assert placed.timed.report.interval_ps < time_system(halves, task.single_core_ps).report.interval_ps
    outputs = run_system(placed.timed.compiled, network.weights, network.inputs)
    assert relative_error(outputs, network.expected) <= TOLERANCE


def test_a_group_of_a_pipeline_has_cores_of_one_kind() -> None:
    """Groups of several kinds are refused, with the cores."""
    with pytest.raises(InvalidPartition, match="core 0 and core 1, which are of different kinds"):
        form_groups(fabric_of(_kinds()), "0,1")


@pytest.mark.parametrize("slow_first", [False, True])
def test_cores_of_several_kinds_share_a_layer_by_their_speed(slow_first: bool) -> None:
    """The faster core gets four fifths of the rows and ends sooner than with halves; what is not split runs on it."""
    fast, machine = _kinds().of_core(0), _kinds()
    if slow_first:
        machine = replace(machine.of_core(1), kinds=(CoreKind(1, 1, fast),))
    network = _convolutions(2)
    graph = import_model(network.model)
    choices = choose_splits(graph, [machine.of_core(core) for core in fastest_first(machine, range(2))], DIRECT)
    splits = {}
    for choice in choices:
        by_rows = choice.of_kind("rows")
        assert by_rows is not None
        ((large,), (small,)) = by_rows.split.phases[0]
        assert (large.output.shape[2], small.output.shape[2]) == (9, 3)
        splits[choice.layer.index] = by_rows.split
    halves = {layer.index: split_layer(layer, graph.values, "rows", [1, 1]) for layer in graph.layers}
    times = [network_ps(graph, each, machine, 2, DIRECT) for each in (splits, halves, {})]
    assert times[0] < times[1] and times[0] < times[2]
    # One core alone has more choices compared, which gains up to 3 %; the slower core would take four times as long.
    assert times[2] < 1.03 * network_ps(graph, {}, fast, 1, DIRECT)
    group = Assignment((GroupAssignment(fastest_first(machine, range(2)), (0, 1)),))
    checked_run(network, compile_system(graph, machine, group, DIRECT, splits=splits))


def test_a_study_of_splits_takes_cores_of_several_kinds() -> None:
    """The best split over two kinds of core is no slower than the fastest core alone, as predicted and as it runs."""
    study = study_splits(import_model(_convolutions(2).model), _kinds(), 2, DIRECT)
    ways = {one.name: one for one in study.networks}
    assert ways["best"].predicted_ps <= ways["one"].predicted_ps
    assert (ways["best"].true_ps or 0) <= (ways["one"].true_ps or 0)
    assert ways["best"].split_layers == 2


KIND = '[[kinds]]\ncores = "4-7"\nsb_bytes = 65536\n[kinds.mfu]\nrows = 8\n'


def test_a_machine_file_lists_what_is_different() -> None:
    """A kind has the keys of its table and, for the rest, those of the file; without kinds the digest is unchanged."""
    edge = load_preset("edge")
    mixed = parse_machine(f"{preset_text('edge')}\n{KIND}", "edge")
    own = mixed.of_core(5)
    assert own == replace(edge, sb_bytes=65536, mfu=replace(edge.mfu, rows=8))
    assert mixed.of_core(3) == mixed.of_core(8) == edge
    assert replace(mixed, kinds=()).digest == edge.digest != mixed.digest


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('[[kinds]]\ncores = "4-20"\n', "kinds.0.cores is '4-20'"),
        ('[[kinds]]\ncores = "7-4"\n', "kinds.0.cores is '7-4'"),
        ("[[kinds]]\nsb_bytes = 64\n", "kinds.0.cores is None"),
        ('[[kinds]]\ncores = "1"\n[kinds.ddr]\nbytes = 5\n', "kinds.0.ddr is not a key of a kind"),
        ('[[kinds]]\ncores = "1"\n[kinds.mfu]\nrow = 5\n', "kinds.0.mfu.row is not a key"),
        ('[[kinds]]\ncores = "1-3"\n[[kinds]]\ncores = "3"\n', "kinds.1.cores overlaps"),
        ("[kinds]\nsb_bytes = 64\n", "kinds is"),
    ],
)
def test_a_wrong_kind_is_refused(table: str, said: str) -> None:
    """Cores that do not exist or are of two kinds, and keys that all cores share or that do not exist, are named."""
    with pytest.raises(InvalidMachine, match=said.replace("(", "\\(")):
        parse_machine(f"{preset_text('edge')}\n{table}", "edge")
