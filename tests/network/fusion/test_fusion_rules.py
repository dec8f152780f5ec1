"""Fusion rules: written and read, matched without overlap, and learnt from the groups that a device reports."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, strategies as st
from onnx import ModelProto, helper
from onnx_models import IMAGE, WEIGHT, model_of, network_of, prepared, random_dags

from harness.network.fusion.fusion_patterns import parse_pattern, pattern_of
from harness.network.fusion.fusion_rules import DEFAULT_RULES, FusionRule
from harness.network.fusion.rule_learning import learn_rules
from harness.network.fusion.rule_matching import match_all
from harness.network.layers import cut
from harness.network.network import Network, Node

RULES = [
    "Conv(x0);Relu(0)",
    "Conv(x0);Add(0,x1);Relu(1)",
    "Conv(x0);Conv(0)",
    "Add(x0,x1);Relu(0)",
    "Add(x0,x1);Add(0,x2)",
    "Mul(x0,x1);Add(0,x2);Sigmoid(1)",
    "Sigmoid(x0);Mul(x0,0)",
    "Abs(x0);Relu(0);Add(1,0)",
    "Relu(x0);Sub(x0,0)",
    "Split(x0);Concat(0,0)",
]
NOT_OVERLAPPING_THEMSELVES = [
    "Conv(x0);Relu(0)",
    "Abs(x0);Sigmoid(0)",
    "Conv(x0);Sub(0,x1)",
    "Sub(x0,x1);Relu(0);Abs(1)",
]


@st.composite
def patterns(draw: st.DrawFn) -> str:
    """Draw well-formed patterns of up to six operators."""
    parts = []
    for position in range(draw(st.integers(1, 6))):
        inside = [str(earlier) for earlier in range(position)]
        reads = draw(st.lists(st.sampled_from([*inside, "x0", "x1", "x12"]), max_size=3))
        op = draw(st.sampled_from(("Conv", "Conv/dense/16", "Relu", "BatchNormalization/4", "Add_2")))
        parts.append(f"{op}({','.join(reads)})")
    return ";".join(parts)


def written(text: str) -> str:
    """Return a pattern read and written again."""
    return ";".join(f"{node.op}({','.join(node.reads)})" for node in parse_pattern(text))


@given(patterns())
def test_patterns_survive_reading_and_writing(text: str) -> None:
    """Every well-formed pattern is read without loss."""
    assert written(text) == text


@given(st.text() | st.text("Conv()x01,;/* ", max_size=30) | patterns().map(lambda text: text + "x"))
def test_malformed_patterns_are_refused(text: str) -> None:
    """Any text is either read without loss or raises ValueError."""
    try:
        again = written(text)
    except ValueError:
        return
    assert again == text


@pytest.mark.parametrize(
    "text", ["", "Conv", "Conv(0)", "Conv(x0);Relu(1)", "Conv(x0);", "Conv(x)", "Conv(x0,)", "Co nv(x0)"]
)
def test_patterns_that_read_nothing_before_them_are_refused(text: str) -> None:
    """Forward references, missing parentheses and empty parts raise ValueError."""
    with pytest.raises(ValueError, match=r"pattern|before"):
        parse_pattern(text)


def test_default_rules_are_well_formed() -> None:
    """Every default rule can be parsed, and no two are equal."""
    assert all(written(rule.pattern) == rule.pattern for rule in DEFAULT_RULES)
    assert len({rule.pattern for rule in DEFAULT_RULES}) == len(DEFAULT_RULES)


def assert_closed(network: Network, group: Sequence[Node]) -> None:
    """Assert that only the last node's result is read outside the group or is an output."""
    inside = {node.index for node in group}
    sink = max(inside)
    for node in group:
        if node.index != sink:
            assert not set(node.outputs) & set(network.outputs)
            readers = [reader.index for name in node.outputs for reader in network.consumers.get(name, [])]
            assert inside.issuperset(readers)


@given(random_dags(), st.lists(st.sampled_from(RULES), unique=True))
def test_matches_are_disjoint_and_closed(model: ModelProto, chosen: list[str]) -> None:
    """Groups share no node, have as many nodes as their pattern, and none of their inner results is read outside."""
    network = prepared(model)
    rules = [*DEFAULT_RULES, *(FusionRule(text) for text in chosen)]
    groups = match_all(network, rules)
    members = [node.index for group in groups for node in group]
    assert len(members) == len(set(members))
    assert {len(group) for group in groups} <= {len(rule.nodes) for rule in rules}
    for group in groups:
        assert_closed(network, group)


@given(random_dags(), st.lists(st.sampled_from(RULES), unique=True))
def test_cutting_covers_every_node_once(model: ModelProto, chosen: list[str]) -> None:
    """For any rules, each node is in exactly one layer, and layers are in topological order."""
    network = prepared(model)
    layers = cut(network, [FusionRule(text) for text in chosen])
    members = [node.index for layer in layers for node in layer.graph.nodes]
    assert sorted(members) == [node.index for node in network.nodes]
    written_before = {*network.inputs, *network.constants}
    for layer in layers:
        assert written_before.issuperset(layer.graph.inputs)
        written_before.update(layer.graph.outputs)


@given(random_dags(), st.sampled_from(NOT_OVERLAPPING_THEMSELVES))
def test_learnt_rules_reproduce_the_reported_groups(model: ModelProto, text: str) -> None:
    """Rules learnt from a device that fuses every place of one pattern reproduce its groups."""
    network = prepared(model)
    groups = [frozenset(node.index for node in group) for group in match_all(network, [FusionRule(text)])]
    fused = frozenset(itertools.chain.from_iterable(groups))
    reported = [*groups, *(frozenset({node.index}) for node in network.nodes if node.index not in fused)]
    rules = learn_rules([(network, reported)], "tester")
    assert {frozenset(node.index for node in layer.graph.nodes) for layer in cut(network, rules)} == set(reported)
    assert sum(rule.fused for rule in rules) == sum(rule.matched for rule in rules) == len(groups)
    assert {rule.source for rule in rules} <= {"tester"}


@given(random_dags())
def test_patterns_match_where_they_were_taken_from(model: ModelProto) -> None:
    """The pattern of a matched group is well formed and matches a group of the same size."""
    network = prepared(model)
    for group in match_all(network, [FusionRule(text) for text in RULES]):
        text = pattern_of(network, group)
        assert written(text) == text
        again = match_all(network, [FusionRule(text)])
        assert again
        assert all(len(found) == len(group) for found in again)


def blocks(count: int) -> Network:
    """Return a chain of convolutions, each with its activation."""
    nodes = []
    for index in range(count):
        nodes.append(helper.make_node("Conv", [f"r{index}", "w"], [f"c{index}"], pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{index}"], [f"r{index + 1}"]))
    return network_of(nodes, {"r0": IMAGE}, [f"r{count}"], {"w": WEIGHT})


@pytest.mark.parametrize(("fused", "is_rule"), [(0, False), (1, False), (2, True), (3, True), (4, True)])
def test_a_pattern_becomes_a_rule_by_majority(fused: int, is_rule: bool) -> None:
    """A pattern fused in at least half of its places is a rule that holds, with both numbers as evidence."""
    network = blocks(4)
    reported = [frozenset({2 * at, 2 * at + 1}) for at in range(fused)]
    reported += [frozenset({index}) for index in range(2 * fused, 8)]
    rules = learn_rules([(network, reported)], "tester")
    patterns = tuple(rule for rule in rules if rule.exact_groups is None)
    assert patterns == ((FusionRule("Conv/dense/4(x0);Relu(0)", 4, fused, "tester"),) if fused else ())
    assert any(rule.holds for rule in patterns) == is_rule
    assert len(cut(network, patterns)) == (4 if is_rule else 8)


@pytest.mark.parametrize("known", [(), (FusionRule("Conv/dense/4(x0);Relu(0)", 9, 9, "examples"),)])
@pytest.mark.parametrize("fused", range(5))
def test_a_reported_network_is_cut_as_reported(fused: int, known: tuple[FusionRule, ...]) -> None:
    """Where patterns do not reproduce what a device reports of a network, its groups are listed for it alone.

    That holds also where the device fuses nothing that other networks show to be fused.
    """
    network, other = blocks(4), blocks(3)
    reported = [frozenset({2 * at, 2 * at + 1}) for at in range(fused)]
    reported += [frozenset({index}) for index in range(2 * fused, 8)]
    rules = learn_rules([(network, reported)], "tester", known)
    assert {frozenset(node.index for node in layer.graph.nodes) for layer in cut(network, rules)} == set(reported)
    assert cut(other, rules) == cut(other, [rule for rule in rules if rule.exact_groups is None])


def test_evidence_is_taken_over_all_networks() -> None:
    """Evidence for and against a rule is summed over all networks."""
    fused, plain = blocks(1), blocks(3)
    reported = [(fused, [frozenset({0, 1})]), (plain, [frozenset({index}) for index in range(6)])]
    rule, listed = learn_rules(reported, "tester")
    assert listed.exact_groups == ((0, 1),)
    assert (rule.matched, rule.fused, rule.holds) == (4, 1, False)


def test_longer_patterns_are_matched_first() -> None:
    """A place that a longer rule matches is not cut by a shorter one, in any order of the rules."""
    network = blocks(2)
    rules = [FusionRule("Conv(x0);Relu(0)"), FusionRule("Conv(x0);Relu(0);Conv(1);Relu(2)")]
    for order in (rules, rules[::-1]):
        assert [layer.op for layer in cut(network, order)] == ["Conv+Relu+Conv+Relu"]


def residual(swapped: bool = False, handed_back: bool = False) -> Network:
    """Return a convolution and a residual add."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        helper.make_node("Add", ["x", "a"] if swapped else ["a", "x"], ["b"]),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    return prepared(model_of(nodes, {"x": IMAGE}, ["y", "a"] if handed_back else ["y"], {"w": WEIGHT}))


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(
    "pattern", ["Conv(x0);Add(0,x0);Relu(1)", "Conv(x0);Add(x0,0);Relu(1)", "Conv(x0);Add(x1,0);Relu(1)"]
)
def test_operands_of_commutative_operators_match_in_any_order(swapped: bool, pattern: str) -> None:
    """An add fuses with the residual on either side."""
    assert [len(layer.graph.nodes) for layer in cut(residual(swapped), [FusionRule(pattern)])] == [3]


def test_equal_labels_are_one_tensor() -> None:
    """A pattern whose residual is the layer's own input does not match another tensor."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4), helper.make_node("Add", ["a", "z"], ["y"])]
    network = network_of(nodes, {"x": IMAGE, "z": IMAGE}, constants={"w": WEIGHT})
    assert len(cut(network, [FusionRule("Conv(x0);Add(0,x0)")])) == 2
    assert len(cut(network, [FusionRule("Conv(x0);Add(0,x1)")])) == 1


def test_results_handed_back_are_not_fused_away() -> None:
    """A tensor that is an output of the network ends its layer."""
    layers = cut(
        residual(handed_back=True), [FusionRule("Conv(x0);Add(0,x1);Relu(1)"), FusionRule("Add(x0,x1);Relu(0)")]
    )
    assert [layer.op for layer in layers] == ["Conv", "Add+Relu"]


KINDS = {
    "Conv/dense/4": (1, 4, 4),
    "Conv/dense/16": (1, 4, 32),
    "Conv/dense/1": (1, 4, 7),
    "Conv/depthwise/4": (4, 1, 4),
    "Conv/grouped/2": (2, 2, 4),
}


@pytest.mark.parametrize("variant", KINDS)
def test_convolutions_carry_kind_and_alignment(variant: str) -> None:
    """Rules learnt from depthwise or unaligned convolutions do not apply to others; a plain rule applies to all."""
    group, read, channels = KINDS[variant]
    kernel = np.ones((channels, read, 1, 1), np.float32)
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"], group=group), helper.make_node("Relu", ["a"], ["y"])]
    network = network_of(nodes, {"x": IMAGE}, constants={"w": kernel})
    assert pattern_of(network, network.nodes) == f"{variant}(x0);Relu(0)"
    for other in (*KINDS, "Conv"):
        layers = cut(network, [FusionRule(f"{other}(x0);Relu(0)")])
        assert len(layers) == (1 if other in (variant, "Conv") else 2)


def test_default_rules_fold_what_most_devices_fold() -> None:
    """Default rules fuse convolution, batch norm and activation; a product and its bias; and a decomposed Gelu."""
    ones = np.ones(4, np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        helper.make_node("BatchNormalization", ["a", *["one"] * 4], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("MatMul", ["c", "m"], ["d"]),
        helper.make_node("Add", ["bias", "d"], ["e"]),
        helper.make_node("Div", ["e", "root"], ["f"]),
        helper.make_node("Erf", ["f"], ["g"]),
        helper.make_node("Add", ["g", "unit"], ["h"]),
        helper.make_node("Mul", ["e", "h"], ["i"]),
        helper.make_node("Mul", ["i", "half"], ["y"]),
    ]
    constants = {"w": WEIGHT, "one": ones, "m": np.ones((6, 6), np.float32), "bias": np.ones(6, np.float32)}
    scalars = {name: np.float32(value) for name, value in (("root", 1.4142135), ("unit", 1), ("half", 0.5))}
    layers = cut(network_of(nodes, {"x": IMAGE}, constants=constants | scalars), DEFAULT_RULES)
    assert [layer.op for layer in layers] == ["Conv+BatchNormalization+Relu", "MatMul+Add", "Div+Erf+Add+Mul+Mul"]


@pytest.mark.parametrize(
    ("rule", "holds"),
    [
        (FusionRule("Conv(x0);Relu(0)"), True),
        (FusionRule("Conv(x0);Relu(0)", 4, 2), True),
        (FusionRule("Conv(x0);Relu(0)", 4, 4, "probed", 1.0, 0.01), True),
        (FusionRule("Conv(x0);Relu(0)", 4, 4, "probed", 1.0, 0.02), False),
        (FusionRule("Conv(x0);Relu(0)", 4, 1, "probed", 1.0, 1e-9), False),
    ],
)
def test_what_probes_found_holds_where_it_is_significant(rule: FusionRule, holds: bool) -> None:
    """A rule holds if most places were fused and its p-value, if it has one, is small."""
    assert rule.holds == holds
