"""The nodes of a network for partition, and what each asks of a machine (S5.2)."""

from __future__ import annotations

import numpy as np
from small_models import Array, model, node

from device_agents.emulated_npu.compiler.pipeline import compile_model
from device_agents.emulated_npu.inference import time_program
from device_agents.emulated_npu.machine import Machine, load_preset
from device_agents.emulated_npu.many_cores.mapping import fabric_of, form_groups, stage_times, traversal_from
from device_agents.emulated_npu.many_cores.workload import NetworkNodes, network_nodes
from device_agents.emulated_npu.partition.balanced import balanced_partition

EDGE = load_preset("edge")
_RNG = np.random.default_rng(3)


def _weights(*shape: int) -> Array:
    return _RNG.normal(0, 0.3, shape).astype(np.float32)


def _nodes(machine: Machine = EDGE) -> NetworkNodes:
    """A convolution of 3 to 8 channels, a copy of it with a border of ones, a second one, and the sum of both ways."""
    nodes = [
        node("Conv", "x first", "a", pads=[1, 1, 1, 1]),
        node("Pad", "a pads one", "b"),
        node("Conv", "b second", "c"),
        node("Add", "a c", "y"),
    ]
    sizes = np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64)
    constants = {"first": _weights(8, 3, 3, 3), "second": _weights(8, 8, 3, 3), "pads": sizes}
    constants["one"] = np.float32(1)  # a border of ones is no padding of a convolution
    proto = model(nodes, {"x": _weights(1, 3, 10, 10)}, constants)
    compiled = compile_model(proto.SerializeToString(), machine)
    return network_nodes(compiled.graph, machine, time_program(compiled.program, machine).timing)


def test_every_layer_is_in_one_node() -> None:
    """What fills a border is no node of its own, which could be visited first, but part of the one that reads it."""
    found = _nodes()
    layers = [layer for layers in found.layers for layer in layers]
    assert sorted(layers) == list(range(len(layers)))
    assert len(found.graph.sources) == 1, "the network has one input"
    assert any(len(each) > 1 for each in found.layers), "the borders have joined their reader"


def test_storage_is_what_shapes_say() -> None:
    """Of the first convolution: 300 elements in, 800 out, 216 weights, of four bytes; nothing of other nodes."""
    first = _nodes().graph.nodes[0].workload
    assert (first.dynamic_in_bytes, first.dynamic_out_bytes, first.routing_bytes) == (1200, 3200, 0)
    assert first.static_bytes >= 216 * 4


def test_compute_counts_idle_lanes() -> None:
    """By the machine's own parallelism: 32 x 32 multipliers for 9 x 3 inputs and 8 outputs are mostly idle."""
    first = _nodes().graph.nodes[0].workload
    useful = 100 * 27 * 8
    assert first.compute_macs > 3 * useful
    assert first.compute_macs % (EDGE.mfu.rows * EDGE.mfu.columns) == 0


def test_groups_come_from_text() -> None:
    """A number of groups has one core each, or divides --cores; several chips take their part of the groups."""
    fabric = fabric_of(load_preset("chiplets-64"))
    assert [len(group.cores) for group in form_groups(fabric, "3")] == [1, 1, 1]
    assert [len(group.cores) for group in form_groups(fabric, "3", 8)] == [2, 3, 3]
    many = form_groups(fabric, "16", 64)
    assert [group.chip for group in many] == [chip for chip in range(4) for _ in range(4)]
    assert all(len(group.cores) == 4 for group in many)


def test_the_balanced_partition_is_by_stage_times() -> None:
    """Its slowest stage is as fast as that of any cut of the same traversal in two."""
    found = _nodes()
    traversal = traversal_from(found, None)
    groups = form_groups(fabric_of(EDGE), "2")
    times = stage_times(found, traversal, groups, EDGE)
    best = balanced_partition(found.graph, traversal, groups, times)
    count = len(traversal.order)
    every = [max(times(0, cut, 0), times(cut, count, 1)) for cut in range(1, count)]
    assert max(part.load for part in best.sub_structures) == min(every)
