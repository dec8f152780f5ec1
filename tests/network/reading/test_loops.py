"""A Loop or Scan whose length is known is read as its iterations, with the values that ONNX Runtime gives it."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx_models import FLOAT, model_of, prepared, run_assembled, run_plain

from harness.errors import InvalidNetwork, UnsupportedNetwork
from harness.network.assemble import assemble_network
from harness.network.reading.unrolling import MAX_UNROLLED

SHAPE = (2, 3)
OPSETS = (11, 13, 17)


def body_of(
    nodes: list[NodeProto], states: list[str], results: list[str], rank: int = 0, label: str = ""
) -> GraphProto:
    """Return the body of a Loop: `states` are those that it reads, `results` all that it writes but the condition.

    `label` begins the names of its number and its conditions.
    """
    head = [(f"{label}number", TensorProto.INT64), (f"{label}go", TensorProto.BOOL)]
    inputs = [helper.make_tensor_value_info(name, kind, (1,) * rank) for name, kind in head]
    inputs += [helper.make_tensor_value_info(name, FLOAT, SHAPE) for name in states]
    outputs = [helper.make_tensor_value_info(f"{label}again", TensorProto.BOOL, ())]
    outputs += [helper.make_tensor_value_info(name, FLOAT, SHAPE) for name in results]
    return helper.make_graph(nodes, "body", inputs, outputs)


@st.composite
def looping_models(draw: st.DrawFn) -> ModelProto:
    """Draw a Loop of up to four iterations, with states that change places, rows, a stop in between, a Loop inside."""
    times, stop = draw(st.integers(0, 4)), draw(st.none() | st.integers(1, 3))
    states = ["one", "two"][: draw(st.integers(1, 2))]
    rank = draw(st.integers(0, 1))
    steps = [
        helper.make_node("Cast", ["number"], ["at"], to=FLOAT),
        helper.make_node(draw(st.sampled_from(("Add", "Mul"))), ["one", "at"], ["moved"]),
        helper.make_node(draw(st.sampled_from(("Sub", "Max"))), ["moved", draw(st.sampled_from(("h", "c")))], ["new"]),
        helper.make_node("Add", ["h", "at"], ["row"]),
        helper.make_node("Identity", ["h"], ["held"]),
    ]
    if draw(st.booleans()):
        inside = [
            helper.make_node("Identity", ["deep go"], ["deep again"]),
            helper.make_node("Add", ["deep", "new"], ["sum"]),
        ]
        body = body_of(inside, ["deep"], ["sum"], label="deep ")
        steps.append(helper.make_node("Loop", ["twice", "", "h"], ["last"], "inside", body=body))
    else:
        steps.append(helper.make_node("Neg", ["new"], ["last"]))
    if stop is None:
        steps.append(helper.make_node("Identity", ["go"], ["again"]))
    else:
        steps.append(helper.make_node("Less", ["number", "stop"], ["before"]))
        steps.append(helper.make_node("Reshape", ["before", "scalar"], ["again"]))
    written = [draw(st.sampled_from(("last", "new", "held", *states))) for _ in states]
    rows = draw(st.lists(st.sampled_from(("row", "new", "held", "one")), max_size=2)) if times else []
    results = [f"end{at}" for at in range(len(states) + len(rows))]
    limit = "times" if stop is None or draw(st.booleans()) else ""
    nodes = [
        helper.make_node("Abs", ["x"], ["h"]),
        helper.make_node(
            "Loop",
            [limit, "", *["h", "x"][: len(states)]],
            results,
            "loop",
            body=body_of(steps, states, [*written, *rows], rank),
        ),
        *(helper.make_node("Neg", [name], [f"y{at}"]) for at, name in enumerate(results)),
    ]
    constants: dict[str, Any] = {"times": np.array(times), "twice": np.array(2), "stop": np.array([stop or 0])}
    constants |= {"c": np.full(SHAPE, 0.5, np.float32), "scalar": np.zeros(0, np.int64)}
    outputs = [f"y{at}" for at in range(len(results))]
    return model_of(nodes, {"x": SHAPE}, outputs, constants, opset=draw(st.sampled_from(OPSETS)))


@st.composite
def scanning_models(draw: st.DrawFn) -> ModelProto:
    """Draw a Scan of one state over two tensors along any axes in both directions, which collects two results."""
    steps, sizes = draw(st.integers(1, 4)), [2, 3]
    axes, turned = draw(st.tuples(*[st.integers(0, 2)] * 2)), draw(st.tuples(*[st.integers(0, 1)] * 2))
    shapes = {name: [*sizes[:axis], steps, *sizes[axis:]] for name, axis in zip(("x", "z"), axes, strict=True)}
    nodes = [
        helper.make_node("Mul", ["state", "one"], ["scaled"]),
        helper.make_node("Sub", ["scaled", "two"], ["next"]),
        helper.make_node("Identity", ["two"], ["part"]),
    ]
    inputs = [helper.make_tensor_value_info(name, FLOAT, sizes) for name in ("state", "one", "two")]
    outputs = [helper.make_tensor_value_info(name, FLOAT, sizes) for name in ("next", "scaled", "part")]
    attributes = {
        "scan_input_axes": axes,
        "scan_input_directions": turned,
        "scan_output_axes": draw(st.tuples(*[st.integers(-3, 2)] * 2)),
        "scan_output_directions": draw(st.tuples(*[st.integers(0, 1)] * 2)),
    }
    if not any(map(any, attributes.values())):
        attributes = {}
    body = helper.make_graph(nodes, "body", inputs, outputs)
    results = ["end", "scaled rows", "parts"]
    scan = helper.make_node("Scan", ["c", "x", "z"], results, "scan", body=body, num_scan_inputs=2, **attributes)
    behind = [helper.make_node("Neg", [name], [f"y{at}"]) for at, name in enumerate(results)]
    constants = {"c": np.full(sizes, 0.5, np.float32)}
    return model_of([scan, *behind], shapes, ["y0", "y1", "y2"], constants, opset=draw(st.sampled_from((11, 17))))


@given(looping_models() | scanning_models())
def test_iterations_have_the_values_of_the_loop(model: ModelProto) -> None:
    """The iterations of a Loop or Scan give the values that ONNX Runtime computes from it."""
    network = prepared(model)
    assert {"Loop", "Scan"}.isdisjoint(node.op for node in network.nodes)
    inputs, outputs = run_assembled(assemble_network(network))
    expected = run_plain(model, dict(zip(network.inputs, inputs, strict=True)), network.outputs)
    for name, value in zip(network.outputs, outputs, strict=True):
        np.testing.assert_array_equal(value, expected[name])


def looping(condition: str, times: int) -> ModelProto:
    """Return a model of one Loop that adds its input, and goes on while the tensor `condition` of its body is true."""
    body = body_of(
        [helper.make_node("Add", ["one", "x"], ["new"]), helper.make_node("Identity", [condition], ["again"])],
        ["one"],
        ["new"],
    )
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["any"], to=9),
        helper.make_node("Loop", ["times", "", "x"], ["y"], "sum", body=body),
    ]
    return model_of(nodes, {"x": SHAPE}, constants={"times": np.array(times)})


def test_a_loop_that_the_data_ends_is_refused() -> None:
    """A Loop has no latency of its own if a condition that depends on the inputs ends it."""
    with pytest.raises(UnsupportedNetwork, match="depends on the data"):
        prepared(looping("any", 3))


def test_a_loop_of_too_many_iterations_is_refused() -> None:
    """A Loop is not unrolled beyond a number of nodes, however many iterations its file states."""
    with pytest.raises(UnsupportedNetwork, match=f"{MAX_UNROLLED:,} nodes"):
        prepared(looping("go", 1 << 40))


def test_the_condition_behind_the_last_iteration_does_not_matter() -> None:
    """A Loop of one iteration runs once, whatever its condition says afterwards."""
    assert [node.op for node in prepared(looping("any", 1)).nodes].count("Add") == 1


def test_loops_in_loops_count_together() -> None:
    """Iterations of a Loop inside another one count for each iteration of the outer one."""
    inner = body_of(
        [helper.make_node("Add", ["deep", "deep"], ["sum"]), helper.make_node("Identity", ["deep go"], ["deep again"])],
        ["deep"],
        ["sum"],
        label="deep ",
    )
    steps = [
        helper.make_node("Loop", ["times", "", "one"], ["new"], "inside", body=inner),
        helper.make_node("Identity", ["go"], ["again"]),
    ]
    nodes = [helper.make_node("Loop", ["times", "", "x"], ["y"], "outside", body=body_of(steps, ["one"], ["new"]))]
    with pytest.raises(UnsupportedNetwork, match=f"{MAX_UNROLLED:,} nodes"):
        prepared(model_of(nodes, {"x": SHAPE}, constants={"times": np.array(300)}))


def scanning(shapes: dict[str, tuple[int, ...]]) -> ModelProto:
    """Return a model of a Scan whose body gives its inputs the names that the scanned tensors have outside."""
    values = [helper.make_tensor_value_info(name, FLOAT, SHAPE) for name in ("state", *shapes)]
    results = [helper.make_tensor_value_info(name, FLOAT, SHAPE) for name in ("next", "row")]
    nodes = [helper.make_node("Sum", ["state", *shapes], ["next"]), helper.make_node("Neg", ["next"], ["row"])]
    body = helper.make_graph(nodes, "body", values, results)
    scan = helper.make_node("Scan", ["c", *shapes], ["end", "y"], "scan", body=body, num_scan_inputs=len(shapes))
    return model_of([scan], shapes, constants={"c": np.ones(SHAPE, np.float32)})


def test_a_body_may_use_the_names_of_what_is_scanned() -> None:
    """A step reads its own part of a tensor, also if the body gives the part the name of the whole."""
    model = scanning({"x": (4, *SHAPE), "z": (4, *SHAPE)})
    network = prepared(model)
    inputs, outputs = run_assembled(assemble_network(network))
    expected = run_plain(model, dict(zip(network.inputs, inputs, strict=True)), ["y"])
    np.testing.assert_array_equal(outputs[network.outputs.index("y")], expected["y"])


def test_scanned_tensors_of_different_lengths_are_refused() -> None:
    """Tensors that a Scan reads together have as many parts each."""
    with pytest.raises(InvalidNetwork, match="differ in length"):
        prepared(scanning({"x": (4, *SHAPE), "z": (3, *SHAPE)}))


@pytest.mark.parametrize("is_scan", [False, True])
def test_bodies_have_sparse_weights(is_scan: bool) -> None:
    """A sparse tensor of a body is a constant, which the iterations share."""
    steps = [helper.make_node("MatMul", ["one", "w"], ["new"]), helper.make_node("Identity", ["go"], ["again"])]
    body = body_of(steps, ["one"], ["new"])
    inputs = ["times", "", "x"]
    if is_scan:
        values = [helper.make_tensor_value_info(name, FLOAT, SHAPE) for name in ("one", "part", "new")]
        body, inputs = helper.make_graph(steps[:1], "body", values[:2], values[2:]), ["x", "z"]
    elements, places = helper.make_tensor("w", FLOAT, [1], [1.0]), helper.make_tensor("i", 7, [1], [2])
    body.sparse_initializer.append(helper.make_sparse_tensor(elements, places, [SHAPE[1]] * 2))
    attributes = {"num_scan_inputs": 1} if is_scan else {}
    nodes = [helper.make_node("Scan" if is_scan else "Loop", inputs, ["y"], "loop", body=body, **attributes)]
    network = prepared(model_of(nodes, {"x": SHAPE, "z": (5, 1)}, constants={"times": np.array(5)}))
    assert [node.op for node in network.nodes] == ["MatMul"] * 5
    assert network.constant_bytes(network.nodes) == 4 * SHAPE[1] ** 2


def test_iterations_share_the_weights_of_their_body() -> None:
    """The weights that a body holds count once, however often the Loop runs."""
    steps = [helper.make_node("MatMul", ["one", "w"], ["new"]), helper.make_node("Identity", ["go"], ["again"])]
    body = body_of(steps, ["one"], ["new"])
    body.initializer.append(numpy_helper.from_array(np.eye(SHAPE[1], dtype=np.float32), "w"))
    nodes = [helper.make_node("Loop", ["times", "", "x"], ["y"], "loop", body=body)]
    network = prepared(model_of(nodes, {"x": SHAPE}, constants={"times": np.array(5)}))
    assert [node.op for node in network.nodes] == ["MatMul"] * 5
    assert network.constant_bytes(network.nodes) == 4 * SHAPE[1] ** 2
