"""The nodes of a network for the partition, and their demand on a machine (S5.2)."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from small_models import Array, model, node

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph
from device_agents.emulated_npu.compiler.options import DEFAULT
from device_agents.emulated_npu.compiler.splitting.assignment import group_machines, with_room
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.emulator_errors import InvalidPartition
from device_agents.emulated_npu.inference import time_program
from device_agents.emulated_npu.machine import Machine, load_preset
from device_agents.emulated_npu.many_cores.core_groups import (
    contended,
    fabric_of,
    form_groups,
    traversal_from,
)
from device_agents.emulated_npu.many_cores.node_workloads import NetworkNodes, network_nodes
from device_agents.emulated_npu.many_cores.stage_balancing import PartitionTask
from device_agents.emulated_npu.partition.balanced import StageTimes, balanced_partition
from device_agents.emulated_npu.partition.groups import CoreCapability, CoreGroup, Fabric
from device_agents.emulated_npu.partition.node_graph import Traversal, Workload

EDGE = load_preset("edge")
_RNG = np.random.default_rng(3)


def _weights(*shape: int) -> Array:
    return _RNG.normal(0, 0.3, shape).astype(np.float32)


def _measured(machine: Machine = EDGE) -> tuple[Graph, NetworkNodes]:
    """Return a convolution of 3 to 8 channels, a copy with a border of ones, a second one, and the sum of both."""
    nodes = [
        node("Conv", "x first", "a", pads=[1, 1, 1, 1]),
        node("Pad", "a pads one", "b"),
        node("Conv", "b second", "c"),
        node("Add", "a c", "y"),
    ]
    sizes = np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64)
    constants = {"first": _weights(8, 3, 3, 3), "second": _weights(8, 8, 3, 3), "pads": sizes}
    constants["one"] = np.array(1, np.float32)  # a border of ones is no padding of a convolution
    proto = model(nodes, {"x": _weights(1, 3, 10, 10)}, constants)
    compiled = compile_model(proto.SerializeToString(), machine)
    return compiled.graph, network_nodes(compiled.graph, machine, time_program(compiled.program, machine))


def _nodes(machine: Machine = EDGE) -> NetworkNodes:
    return _measured(machine)[1]


def _stage_times(machine: Machine, traversal: Traversal, groups: Sequence[CoreGroup]) -> StageTimes:
    """Return the predicted times of the nodes of the edge on groups of a machine; weights are fetched."""
    graph, nodes = _measured()
    task = PartitionTask(graph, machine, DEFAULT, nodes, traversal, sum(nodes.times_ps), weights="fetched")
    return task.stage_times(groups)


def test_every_layer_is_in_one_node() -> None:
    """The fill of a border belongs to the node that reads it, so it cannot be visited first."""
    found = _nodes()
    layers = [layer for layers in found.layers for layer in layers]
    assert sorted(layers) == list(range(len(layers)))
    assert len(found.graph.sources) == 1, "the network has one input"
    assert any(len(each) > 1 for each in found.layers), "the borders have joined their reader"


def test_the_workload_of_the_edge_by_hand() -> None:
    """The demand of the first convolution: 3 to 8 channels, 10 x 10 outputs, 3 x 3 taps, float32, 32 x 32 multipliers.

    It reads 300 elements, writes 800 and has 8 x 27 = 216 weights, of 4 bytes each; the input of the network comes from
    no node. The 32 rows of the MFU hold a whole window of 27 elements, its 32 columns the 8 outputs: a cycle for each
    of the 8 windows of a line that lie on the map. The two on the padding are computed a row of 9 elements at a time:
    3 cycles each. The demand is three commands of 10 x (8 + 2 x 3) cycles together plus 20 of start-up each, with 1024
    multiply-adds a cycle, of which 100 x 27 x 8 = 21600 are useful.
    """
    first = _nodes().graph.nodes[0].workload
    assert first == Workload((10 * (8 + 2 * 3) + 3 * 20) * 1024, 300 * 4, 800 * 4, 216 * 4, routing_bytes=0)


def test_bytes_follow_the_precision_and_compute_the_parallelism() -> None:
    """The same convolution in int8 on the 64 x 4 multipliers of nvdla-256, without start-up.

    Each element is a byte. A cycle computes the channels of one tap (3 of 64 rows) for 4 of 8 outputs: 100 pixels x 9
    taps x 2 halves of the outputs = 1800 cycles of 256 multiply-adds.
    """
    first = _nodes(load_preset("nvdla-256")).graph.nodes[0].workload
    assert first == Workload(100 * 9 * 2 * 256, 300, 800, 216, routing_bytes=0)


def test_what_nodes_read_of_each_other_is_routed() -> None:
    """The second convolution reads 8 x 12 x 12 elements with the border, and adds 8 x 10 x 10 to its sum.

    The fill of the border, 1 element wide around 10 x 10, is its own but part of the same value: 1152 + 800 elements
    come from the two other nodes. 8 x 72 weights are static.
    """
    second = _nodes().graph.nodes[2].workload
    assert (second.dynamic_in_bytes, second.routing_bytes) == (1952 * 4, 1952 * 4)
    assert (second.dynamic_out_bytes, second.static_bytes) == (800 * 4, 576 * 4)


def test_groups_come_from_text() -> None:
    """A number of groups means one core each, or divides --cores; chips share the groups."""
    fabric = fabric_of(load_preset("chiplets-64"))
    assert [len(group.cores) for group in form_groups(fabric, "3")] == [1, 1, 1]
    assert [len(group.cores) for group in form_groups(fabric, "3", 8)] == [2, 3, 3]
    many = form_groups(fabric, "16", 64)
    assert [group.chip for group in many] == [chip for chip in range(4) for _ in range(4)]
    assert all(len(group.cores) == 4 for group in many)
    uneven = form_groups(Fabric(5, 2, CoreCapability(1e9, 1)), "7", 8)
    assert sorted(len(group.cores) for group in uneven) == [1, 1, 1, 1, 1, 1, 2]
    lists = form_groups(fabric, "0-2/16,17", 5)
    assert [(group.chip, group.cores) for group in lists] == [(0, (0, 1, 2)), (1, (16, 17))]


@settings(max_examples=50, derandomize=True)
@given(st.integers(1, 5), st.integers(1, 9), st.data())
def test_a_number_of_groups_spreads_over_chips(chips: int, cores_per_chip: int, data: st.DataObject) -> None:
    """The requested groups and cores are spread evenly over chips; each group lies on one chip."""
    fabric = Fabric(chips, cores_per_chip, CoreCapability(1e9, 1), cache_bytes=360)
    total = data.draw(st.integers(1, fabric.cores))
    count = data.draw(st.integers(min(chips, total), total))
    groups = form_groups(fabric, str(count), total)
    cores = [core for group in groups for core in group.cores]
    assert len(groups) == count and len(cores) == total and cores == sorted(set(cores))
    assert all({fabric.chip_of(core) for core in group.cores} == {group.chip} for group in groups)
    by_chip = [[len(group.cores) for group in groups if group.chip == chip] for chip in range(chips)]
    assert max(map(len, by_chip)) - min(map(len, by_chip)) <= 1
    for sizes in by_chip:
        assert not sizes or max(sizes) - min(sizes) <= 1
    for group in groups:
        assert group.storage_bytes == (1 + 360 // sum(by_chip[group.chip])) * len(group.cores)


@pytest.mark.parametrize(
    ("text", "cores", "limit"),
    [
        ("0", None, "the machine has 8"),
        ("9", None, "the machine has 8"),
        ("1" * 5000, None, "the machine has 8"),
        (" " * 30 + "9", None, "the machine has 8"),
        ("2", 9, "the machine has 8"),
        ("3", 2, "the machine has 8"),
        ("1", 5, "which has 4 cores"),
        ("0-1/2", 4, "--cores is 4"),
        ("٣", None, "cores are 0 to 7"),
    ],
)
def test_numbers_that_contradict_the_machine_are_refused(text: str, cores: int | None, limit: str) -> None:
    """The error names the limit of two chips of four cores."""
    with pytest.raises(InvalidPartition) as caught:
        form_groups(Fabric(2, 4, CoreCapability(1e9, 1)), text, cores)
    assert limit in caught.value.why


def test_a_core_stores_what_its_chip_has_for_it() -> None:
    """Of the edge's 4 MiB of cache and 2 GiB of DDR two cores in use have half each, beside 1 MiB each of NB and SB.

    With a given size, that is what each core stores and holds.
    """
    fabric = fabric_of(EDGE)
    for text, cores in (("2", None), ("3", 8), ("0-2/5", None)):
        groups = form_groups(fabric, text, cores)
        shares = group_machines(EDGE, [group.cores for group in groups])
        in_use = sum(len(group.cores) for group in groups)
        for group, (share, *_) in zip(groups, shares, strict=True):
            own = len(group.cores) * (EDGE.nb_bytes + EDGE.sb_bytes)
            assert 0 <= own + share.llc.bytes - group.storage_bytes < in_use, "but for rounding"
            assert group.held_bytes == EDGE.ddr.bytes // in_use * len(group.cores)
    assert form_groups(fabric, "2")[0].storage_bytes == 4 * 2**20
    assert form_groups(fabric, "2")[0].held_bytes == 2**30
    given = form_groups(fabric_of(EDGE, 60_000), "0-1/2")[0]
    assert given.storage_bytes == given.held_bytes == 120_000


def test_one_buffer_for_both_counts_once() -> None:
    """Where NB and SB are one memory, a core stores as much as that has."""
    machine = replace(EDGE, shared_buffer=True)
    assert form_groups(fabric_of(machine), "1")[0].storage_bytes == EDGE.nb_bytes + EDGE.llc.bytes


def test_a_core_among_several_need_not_hold_the_network() -> None:
    """The machine for predictions has the bandwidth of one core of four, and room for any network."""
    crowded = contended(EDGE, form_groups(fabric_of(EDGE), "4"))
    assert crowded.ddr.bytes == with_room(EDGE).ddr.bytes > EDGE.ddr.bytes
    assert crowded.ddr.bytes_per_s == EDGE.ddr.bytes_per_s / 4
    assert crowded.llc.bytes == EDGE.llc.bytes // 4


def test_a_stage_sends_over_the_link_to_the_next_one() -> None:
    """Groups on chips 0, 0 and 1 send 544 bytes/ns to the second, 100 to the third, and nothing after it."""
    machine = load_preset("chiplets-64")
    found = _nodes()
    times = _stage_times(machine, traversal_from(found, None), form_groups(fabric_of(machine), "0/1/16"))
    assert times.time_per_byte == pytest.approx((1000 / 544, 1000 / 100, 0))


def test_the_balanced_partition_is_by_stage_times() -> None:
    """Its slowest stage is as fast as in the best cut of the same traversal into two."""
    found = _nodes()
    traversal = traversal_from(found, None)
    groups = form_groups(fabric_of(EDGE), "2")
    times = _stage_times(EDGE, traversal, groups)
    best = balanced_partition(found.graph, traversal, groups, times)
    count = len(traversal.order)
    every = [max(times(0, cut, 0), times(cut, count, 1)) for cut in range(1, count)]
    assert max(part.load for part in best.sub_structures) == min(every)
