"""Chains of a graph that are compared with others, by what a predictor knows of the graph."""

from collections.abc import Sequence

import pytest
from networks_on_npu import network_of, small_machine
from onnx import NodeProto
from small_models import node, values

from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.prediction.graph_times import GraphPredictor
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.machine import Machine


def _conv(source: str, target: str) -> NodeProto:
    return node("Conv", f"{source} w", target, pads=[1] * 4)


BRANCHES = [node("Relu", "x", "l"), _conv("x", "c"), node("HardSwish", "c", "o"), _conv("l", "i")]
SEQUENCE = [node("Relu", "x", "b"), node("Sigmoid", "b", "p"), _conv("b", "q"), _conv("q", "c")]


@pytest.mark.parametrize(
    ("nodes", "outputs", "size", "machine"),
    [
        ([*BRANCHES, node("HardSwish", "i", "k")], ["o", "k"], 6, small_machine(7232, 1472, 1808, vfu_queue_depth=16)),
        ([*SEQUENCE, node("HardSwish", "c", "l")], ["p", "l"], 16, small_machine(8512, 4928, 2128, vfu_queue_depth=0)),
    ],
)
def test_other_chains_do_not_depend_on_the_candidates_before(
    nodes: Sequence[NodeProto], outputs: Sequence[str], size: int, machine: Machine
) -> None:
    """A predictor yields the same other chains, in the same order, before it has found any candidates and after all.

    Some chains of these networks differ only in the order of their names, so that a planner gives them one estimate.
    """
    options = Options(conv_algorithm="direct")
    network = network_of(nodes, {"x": values((1, 8, size, size))}, {"w": values((8, 8, 3, 3))}, outputs)
    compiled = compile_model(network.model, machine, options)
    graph, chosen = compiled.graph, compiled.decisions
    fresh, used = (GraphPredictor(compiled.machine, options) for _ in range(2))
    assert list(used.candidates(graph))
    others = list(fresh.others(graph, chosen, set()))
    assert others
    assert list(used.others(graph, chosen, set())) == others
