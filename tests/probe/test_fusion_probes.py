"""Pair probes: candidates, shapes, and models in which everything but the operators cancels."""

import functools
from collections import Counter
from dataclasses import replace

import onnx
import pytest

from harness.network.fusion.fusion_candidates import NodePair, neighbours, normal_form, shapes
from harness.network.fusion.fusion_rules import FusionRule
from harness.network.fusion.rule_matching import match_all
from harness.network.model_references import load_network
from harness.network.network import Network
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.fusion_probes import pair_producers, plan_pairs

NAMES = ("mobilenetv2", "squeezenet", "efficientnet_b0")


@functools.cache
def network_called(name: str) -> Network:
    """Return a built-in network."""
    return load_network(f"builtin:{name}")


@functools.cache
def chosen(name: str) -> tuple[NodePair, ...]:
    """Return the pairs of a network in the shapes to be probed."""
    return tuple(pair for pairs in neighbours([network_called(name)], ()).values() for pair in shapes(pairs)[:3])


def contents(content: bytes) -> Counter[tuple[str, tuple[tuple[int, ...], ...]]]:
    """Return how often each operator occurs in a model, with the shape that it writes."""
    graph = onnx.shape_inference.infer_shapes(onnx.load_model_from_string(content)).graph
    values = {value.name: value.type.tensor_type.shape for value in (*graph.value_info, *graph.output)}
    return Counter(
        (node.op_type, tuple(tuple(size.dim_value for size in values[name].dim) for name in node.output))
        for node in graph.node
    )


@pytest.mark.parametrize("auxiliary", [AuxiliaryKind.AVGPOOL, AuxiliaryKind.ROWPOOL])
@pytest.mark.parametrize("name", NAMES)
def test_all_but_a_saving_cancels(name: str, auxiliary: AuxiliaryKind) -> None:
    """`first` and `second` together have exactly the operators of `both` and `between`, with auxiliary layers."""
    pairs = [(pair, producer) for pair in chosen(name) for producer in pair_producers(pair, auxiliary)]
    plan, planned = plan_pairs(pairs, auxiliary)
    for pair in planned:
        first, second, both, between = (
            plan.probes[probe] for probe in (pair.first, pair.second, pair.both, pair.between)
        )
        apart = contents(first.model.content) + contents(second.model.content)
        together = contents(both.model.content) + contents(between.model.content)
        assert apart == together, pair


@pytest.mark.parametrize("name", NAMES)
def test_pairs_are_neighbours_that_nobody_else_reads(name: str) -> None:
    """Only the second group reads the first, and both together match their pattern."""
    network = network_called(name)
    for pattern, pairs in neighbours([network], ()).items():
        places = [{node.index for node in group} for group in match_all(network, [FusionRule(pattern)])]
        assert any({node.index for node in (*pair.first, *pair.second)} in places for pair in pairs)
        for pair in pairs:
            inside = {node.index for node in pair.second}
            assert {reader.index for reader in network.consumers[pair.between]} <= inside
            assert pair.between not in network.outputs


@pytest.mark.parametrize("name", NAMES)
def test_shapes_are_distinct_and_of_one_pattern(name: str) -> None:
    """The pairs probed for a pattern differ only in shape."""
    for pattern, pairs in neighbours([network_called(name)], ()).items():
        variants = shapes(pairs)
        assert 1 <= len(variants) <= 4
        assert {pair.pattern for pair in variants} == {pattern}
        operators = {tuple(node.op for node in (*pair.first, *pair.second)) for pair in variants}
        assert len(operators) == 1


def test_patterns_grow_from_what_is_fused_and_stop_where_it_is_not() -> None:
    """A fused pair is tried with its neighbours; a convolution found not to fuse is not tried again."""
    network = network_called("mobilenetv2")
    pair = FusionRule("Conv/dense/16(x0);BatchNormalization/16(0)")
    apart = FusionRule("Clip(x0);Conv/dense/16(0)", 4, 0)
    grown = neighbours([network], [pair])
    assert "Conv/dense/16(x0);BatchNormalization/16(0);Clip(1)" in grown
    across = "Clip(x0);Conv/dense/16(0);BatchNormalization/16(1)"
    assert across in grown
    assert across not in neighbours([network], [pair, apart])


@pytest.mark.parametrize(
    ("pattern", "normal"),
    [
        ("BatchNormalization(x1);Add(x0,0)", "BatchNormalization(x0);Add(0,x1)"),
        ("Sigmoid(x0);Mul(x0,0)", "Sigmoid(x0);Mul(0,x0)"),
        ("Sub(x1);Div(x0,0)", "Sub(x0);Div(x1,0)"),
    ],
)
def test_normal_form(pattern: str, normal: str) -> None:
    """The normal form orders operands of sums and products, but not those of differences."""
    assert normal_form(pattern) == normal
    assert normal_form(normal) == normal


def test_equal_probes_are_there_once() -> None:
    """A pair planned twice adds no probe, and every probe is in one batch."""
    pairs = [(pair, pair_producers(pair, AuxiliaryKind.AVGPOOL)[0]) for pair in chosen("squeezenet")]
    once, _ = plan_pairs(pairs, AuxiliaryKind.AVGPOOL)
    twice, planned = plan_pairs([*pairs, *((replace(pair), kind) for pair, kind in pairs)], AuxiliaryKind.AVGPOOL)
    assert once.id == twice.id
    assert len(planned) == 2 * len(pairs)
    visited = [probe for batch in once.batches for probe in batch.loads]
    assert sorted(visited) == sorted(set(visited)) == sorted(set(once.probes) - {once.reference})
