"""Sequences of a known number of tensors are read as what they do with these tensors."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from onnx import ModelProto, TensorProto, helper
from onnx_models import model_of, node, prepared, run_assembled, run_plain

from harness.network.assemble import assemble_network
from harness.network.reading.sequences import MOST_TENSORS

_SHAPE = (2, 6)


def check_values(model: ModelProto) -> None:
    """Assert that the network as it is measured has the values of the file."""
    assembled = assemble_network(prepared(model))
    feeds, ours = run_assembled(assembled)
    names = [value.name for value in model.graph.input]
    expected = run_plain(model, dict(zip(names, feeds, strict=True)), [value.name for value in model.graph.output])
    for one, wanted in zip(ours, expected.values(), strict=True):
        np.testing.assert_array_equal(one, wanted)


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[Any], dict[str, Any]]:
    """Return nodes that change a sequence and join its tensors at the end, and constants."""
    nodes, constants, count = [node("SequenceEmpty", "", "s0")], {}, 0
    for step in range(draw(st.integers(1, 6))):
        nodes.append(node(draw(st.sampled_from(["Relu", "Neg", "Exp"])), f"t{step - 1}" if step else "x", f"t{step}"))
        choice = draw(st.sampled_from(["insert", "insert", "erase"])) if count > 1 else "insert"
        place = ""
        if draw(st.booleans()):
            place = f"p{step}"
            constants[place] = np.array(draw(st.integers(-count, count - (choice == "erase"))))
        read = f"s{step} t{step} {place}" if choice == "insert" else f"s{step} {place}"
        nodes.append(node("SequenceInsert" if choice == "insert" else "SequenceErase", read.strip(), f"s{step + 1}"))
        count += 1 if choice == "insert" else -1
    constants["at"] = np.array(draw(st.integers(-count, count - 1)))
    nodes.append(node("SequenceAt", f"s{step + 1} at", "u"))
    attributes = {"axis": draw(st.sampled_from([-1, 0, 1])), "new_axis": draw(st.integers(0, 1))}
    nodes.append(node("ConcatFromSequence", f"s{step + 1}", "joined", **attributes))
    nodes += [node("Neg", "joined", "y"), node("Neg", "u", "z")]
    return nodes, constants


@given(programs())
@settings(max_examples=40)
def test_changed_sequences(program: tuple[list[Any], dict[str, Any]]) -> None:
    """Tensors that are inserted, erased, chosen and joined give the values of the file."""
    nodes, constants = program
    check_values(model_of(nodes, {"x": _SHAPE}, ["y", "z"], constants=constants))


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize(
    ("keeps", "sizes"),
    [(0, None), (1, None), (1, np.array(4)), (1, np.array([1, 2, 3])), (0, np.array([1, 2, 3]))],
    ids=["without axis", "ones", "four", "list", "list that keeps its axis"],
)
def test_divided_tensors(opset: int, keeps: int, sizes: Any) -> None:
    """A tensor that is divided into parts of one size, or of stated sizes, gives the values of the file."""
    read, constants = ("x", {}) if sizes is None else ("x sizes", {"sizes": sizes})
    nodes = [
        node("SplitToSequence", read, "s", axis=-1, keepdims=keeps),
        node("SequenceAt", "s one", "a"),
        node("Neg", "a", "y"),
    ]
    model = model_of(nodes, {"x": _SHAPE}, ["y"], constants={**constants, "one": np.array(1)}, opset=opset)
    check_values(model)


def test_a_loop_that_appends_to_a_sequence() -> None:
    """A list that a loop of known length appends to has one tensor for each iteration."""
    any_list = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    flag = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            node("Neg", "v", "w"),
            node("SequenceInsert", "list w", "longer"),
            node("Identity", "going", "again"),
        ],
        "body",
        [
            flag("i", TensorProto.INT64, []),
            flag("going", TensorProto.BOOL, []),
            flag("v", TensorProto.FLOAT, _SHAPE),
            helper.make_value_info("list", any_list),
        ],
        [
            flag("again", TensorProto.BOOL, []),
            flag("w", TensorProto.FLOAT, _SHAPE),
            helper.make_value_info("longer", any_list),
        ],
    )
    nodes = [
        node("SequenceEmpty", "", "none"),
        node("Loop", "three _ x none", "last all", body=body),
        node("ConcatFromSequence", "all", "y", axis=0),
    ]
    check_values(model_of(nodes, {"x": _SHAPE}, ["y"], constants={"three": np.array(3)}))


def test_optional_values_that_are_there() -> None:
    """An optional value that the network makes itself is the tensor in it."""
    nodes = [
        node("Neg", "x", "a"),
        node("Optional", "a", "maybe"),
        node("OptionalHasElement", "maybe", "there"),
        node("OptionalGetElement", "maybe", "b"),
        node("Where", "there b x", "y"),
    ]
    check_values(model_of(nodes, {"x": _SHAPE}, ["y"]))


def test_the_tensors_of_a_sequence_are_outputs() -> None:
    """A sequence that the network returns is measured as its tensors."""
    nodes = [node("Neg", "x", "a"), node("Relu", "x", "b"), node("SequenceConstruct", "a b", "y")]
    assert prepared(model_of(nodes, {"x": _SHAPE}, ["y"])).outputs == ("a", "b")


def test_a_tensor_of_a_sequence_may_have_the_name_of_an_output() -> None:
    """An output that is called as the first tensor of a sequence would be hides no tensor and no node."""
    nodes = [node("Relu", "x", "y/0"), node("Neg", "x", "b"), node("Exp", "x", "a")]
    nodes.append(node("SequenceConstruct", "b a", "y"))
    for outputs in (["y", "y/0"], ["y/0", "y"]):
        read = prepared(model_of(nodes, {"x": _SHAPE}, outputs))
        assert set(read.outputs) == {"y/0", "a", "b"} and [one.op for one in read.nodes] == ["Relu", "Neg", "Exp"]
        assert read.file_outputs == {"y/0": "y/0", "y/0'": "b", "y/1": "a"}


def test_long_sequences_are_left_out() -> None:
    """A tensor that is divided into more parts than a sequence may have is no sequence that is known."""
    nodes = [node("Neg", "x", "a"), node("SplitToSequence", "a", "s", axis=0), node("SequenceLength", "s", "y")]
    read = prepared(model_of(nodes, {"x": (MOST_TENSORS + 1,)}, ["a", "y"]))
    assert [one.op for one in read.unmeasured] == ["SplitToSequence", "SequenceLength"]


_LISTS = [node("Relu", "x", "w"), node("SequenceConstruct", "x w", "q")]
_NONE_LEFT = [*_LISTS, node("SequenceErase", "q", "r"), node("SequenceErase", "r", "s")]
_ANY_BODY = helper.make_graph(
    [node("Neg", "each", "turned")],
    "body",
    [helper.make_tensor_value_info("each", TensorProto.FLOAT, _SHAPE)],
    [helper.make_tensor_value_info("turned", TensorProto.FLOAT, _SHAPE)],
)
_CARRIED = helper.make_graph(
    [node("SequenceInsert", "list x", "longer"), node("Identity", "going", "again")],
    "body",
    [
        helper.make_tensor_value_info("number", TensorProto.INT64, []),
        helper.make_tensor_value_info("going", TensorProto.BOOL, []),
        helper.make_empty_tensor_value_info("list"),
    ],
    [helper.make_tensor_value_info("again", TensorProto.BOOL, []), helper.make_empty_tensor_value_info("longer")],
)


@pytest.mark.parametrize(
    "nodes",
    [
        [*_LISTS, node("SequenceAt", "q i", "z")],
        [*_LISTS, node("SequenceInsert", "q x i", "r"), node("SequenceAt", "r i", "z")],
        [*_LISTS, node("SequenceAt", "q nine", "z")],
        [*_NONE_LEFT, node("ConcatFromSequence", "s", "v", axis=0), node("Sum", "v w", "z")],
        [*_LISTS, node("SequenceMap", "q", "r", body=_ANY_BODY), node("SequenceAt", "r i", "z")],
        [*_LISTS, node("Loop", "i _ q", "r", body=_CARRIED), node("ConcatFromSequence", "r", "z", axis=0)],
    ],
    ids=["choice", "insertion", "beyond the end", "no tensors", "map", "loop"],
)
def test_operators_whose_tensors_are_not_known_are_left_out(nodes: list[Any]) -> None:
    """Where it depends on the data which tensors of a sequence are read, the part in front of that is measured."""
    model = model_of(
        [*nodes, node("Abs", "z", "y")],
        {"x": _SHAPE, "i": ()},
        constants={"nine": np.array(9)},
        types={"i": TensorProto.INT64},
    )
    read = prepared(model)
    assert [one.op for one in read.nodes] == ["Relu"]
    assert read.unmeasured[-1].op == "Abs"


def test_one_long_part_beside_a_short_one() -> None:
    """A list of two sizes makes two parts, however unequal."""
    nodes = [node("SplitToSequence", "x sizes", "s", axis=0), node("SequenceAt", "s one", "a"), node("Neg", "a", "y")]
    constants = {"sizes": np.array([1, 2 * MOST_TENSORS]), "one": np.array(1)}
    check_values(model_of(nodes, {"x": (2 * MOST_TENSORS + 1,)}, constants=constants))
