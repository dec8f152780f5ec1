"""LSTM, GRU and RNN are unrolled in time; their values are those of ONNX Runtime."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st
from networks_on_npu import execute, network_of, relative_error
from reference_graph import run_graph
from small_models import by_runtime, functions, imported, model, node, values

from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.emulator_errors import UnsupportedOperator
from device_agents.emulated_npu.machine import find_machine
from device_agents.emulated_npu.numpy_types import Array

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
PLAIN = ("Relu", "Tanh", "Sigmoid", "Softsign", "Softplus")
WITH_PARAMETERS = ("LeakyRelu", "ThresholdedRelu", "HardSigmoid", "Elu", "Affine", "ScaledTanh")
BETAS = ("HardSigmoid", "Affine", "ScaledTanh")


def _operands(op: str, sizes: tuple[int, int, int, int], directions: int) -> dict[str, Array]:
    """Return X, W, R, B, lengths, initial states and peepholes, for sizes (steps, batch, inputs, hidden)."""
    steps, batch, width, hidden = sizes
    columns = GATES[op] * hidden
    shapes: dict[str, tuple[int, ...]] = {
        "x": (steps, batch, width),
        "w": (directions, columns, width),
        "r": (directions, columns, hidden),
    }
    shapes |= {"b": (directions, 2 * columns), "h": (directions, batch, hidden)}
    if op == "LSTM":
        shapes |= {"c": (directions, batch, hidden), "p": (directions, 3 * hidden)}
    return {name: values(shape, place, -1, 1) for place, (name, shape) in enumerate(shapes.items())}


@st.composite
def _cases(draw: st.DrawFn, op: str) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return attributes and operands of a node."""
    direction = draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    directions = 2 if direction == "bidirectional" else 1
    sizes = draw(st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 4), st.integers(1, 5)))
    operands = _operands(op, sizes, directions)
    attributes: dict[str, Any] = {"hidden_size": sizes[3], "direction": direction}
    if draw(st.booleans()):
        operands["lengths"] = np.array(draw(st.lists(st.integers(1, sizes[0]), min_size=sizes[1], max_size=sizes[1])))
        operands["lengths"] = operands["lengths"].astype(np.int32)
    for name in ("b", "h", "c", "p"):
        if draw(st.booleans()):
            operands.pop(name, None)
    if op == "GRU":
        attributes["linear_before_reset"] = draw(st.integers(0, 1))
    if op == "LSTM" and "c" in operands and "h" not in operands:
        operands.pop("c")
    if draw(st.booleans()):
        count = FUNCTIONS[op] * directions
        names = draw(st.lists(st.sampled_from(PLAIN + WITH_PARAMETERS), min_size=count, max_size=count))
        attributes["activations"] = names
        parameters = {"alpha": [name for name in names if name not in PLAIN], "beta": [n for n in names if n in BETAS]}
        for parameter, several in parameters.items():
            if several:  # without them, runtimes have other defaults than ONNX
                attributes[f"activation_{parameter}"] = [0.25 + 0.125 * at for at in range(len(several))]
    return attributes, operands


def _node(op: str, attributes: dict[str, Any], operands: dict[str, Array], outputs: str) -> Any:
    order = ("x", "w", "r", "b", "lengths", "h", "c", "p")
    inputs = " ".join(name if name in operands else "-" for name in order[: 8 if op == "LSTM" else 6])
    made = node(op, inputs, outputs.replace("-", "absent"), **attributes)
    made.output[:] = ["" if name == "absent" else name for name in made.output]
    return made


@pytest.mark.parametrize("op", GATES)
@given(data=st.data())
@settings(max_examples=36)
def test_recurrent_nodes(op: str, data: st.DataObject) -> None:
    """Directions, lengths, initial states, biases, peepholes and all activations give the runtime's values."""
    attributes, operands = data.draw(_cases(op))
    computed = data.draw(st.sampled_from([{"x"}, {"x", "h", "c"}, {"x", "w", "r", "b", "p"}]))
    outputs = data.draw(st.sampled_from(["y", "y h_last", "- h_last"]))
    if op == "LSTM":
        outputs += " c_last" if outputs != "y" else ""
    made = _node(op, attributes, operands, outputs)
    given_inputs = {name: array for name, array in operands.items() if name in computed}
    constants = {name: array for name, array in operands.items() if name not in computed}
    proto = model([made], given_inputs, constants, outputs=[name for name in made.output if name])
    results = by_runtime(proto, given_inputs)
    assume(all(np.abs(array).max() < 100 for array in results))  # unbounded functions may grow beyond all numbers
    imported(proto, given_inputs, least=1e-3)


@pytest.mark.parametrize("op", GATES)
def test_half_precision(op: str) -> None:
    """A network in float16, with a sequence that ends early, is within a few roundings of the runtime's values."""
    whole = _operands(op, (5, 2, 4, 6), 2)
    operands = {name: whole[name].astype(np.float16) for name in "xwrb"}
    operands["lengths"] = np.array([5, 3], np.int32)
    made = _node(op, {"hidden_size": 6, "direction": "bidirectional"}, operands, "y")
    x = {"x": operands.pop("x")}
    imported(model([made], x, operands), x, 4e-3)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("clip", [0.25, 2.0])
def test_clipping(op: str, clip: float) -> None:
    """The sums of the gates are clipped, the state of an LSTM's cell is not."""
    operands = _operands(op, (4, 2, 3, 4), 1)
    operands.pop("p", None)
    made = _node(op, {"hidden_size": 4, "clip": clip}, operands, "y")
    x = {"x": operands.pop("x") * 3}
    imported(model([made], x, operands), x)


@pytest.mark.parametrize("op", GATES)
def test_a_step_has_few_layers(op: str) -> None:
    """A step adds no more layers than its arithmetic: products take their sum and their activation with them."""
    counts = {}
    for steps in (3, 4):
        operands = _operands(op, (steps, 2, 3, 4), 1)
        operands.pop("p", None)
        made = _node(op, {"hidden_size": 4}, operands, "y")
        x = {"x": operands.pop("x")}
        counts[steps] = len(functions(import_model(model([made], x, operands))))
    assert counts[4] - counts[3] <= {"RNN": 1, "GRU": 6, "LSTM": 7}[op]


def test_the_batch_may_come_first() -> None:
    """With layout 1 the batch is the first axis of inputs and outputs; the values are those of layout 0."""
    for op in GATES:
        operands = _operands(op, (4, 3, 2, 5), 2)
        operands.pop("p", None)
        attributes = {"hidden_size": 5, "direction": "bidirectional"}
        states = [name for name in ("h", "c") if name in operands]
        outputs = "y h_last" + (" c_last" if op == "LSTM" else "")
        x = {"x": operands.pop("x")}
        first = imported(model([_node(op, attributes, {**operands, **x}, outputs)], x, operands, outputs.split()), x)
        assert first.layers
        nodes = [
            *(node("Transpose", name, f"{name}t", perm=[1, 0, 2]) for name in ("x", *states)),
            _node(op, {**attributes, "layout": 1}, {**operands, **x}, " ".join(f"{name}t" for name in outputs.split())),
            node("Transpose", "yt", "y", perm=[1, 2, 0, 3]),
            *(node("Transpose", f"{name}t", name, perm=[1, 0, 2]) for name in outputs.split()[1:]),
        ]
        for each in nodes:
            if each.op_type == op:
                each.input[:] = [f"{name}t" if name in ("x", *states) else name for name in each.input]
        wanted = run_graph(first, x, {})
        found = run_graph(import_model(model(nodes, x, operands, outputs.split())), x, {})
        for name in outputs.split():
            np.testing.assert_allclose(found[name], wanted[name], rtol=0, atol=1e-6)


def test_lengths_that_the_network_computes_are_refused() -> None:
    """Lengths must be constant: they decide which steps there are."""
    operands = _operands("LSTM", (3, 2, 3, 4), 1)
    operands["lengths"] = np.array([2, 3], np.int32)
    made = _node("LSTM", {"hidden_size": 4}, operands, "y")
    given_inputs = {name: operands.pop(name) for name in ("x", "lengths")}
    with pytest.raises(UnsupportedOperator) as refusal:
        import_model(model([made], given_inputs, operands))
    assert "sequence_lens is not a constant" in refusal.value.why


def test_a_long_sequence_runs() -> None:
    """An LSTM in both directions over 12 steps, behind a convolution, computes the runtime's values."""
    operands = _operands("LSTM", (12, 1, 24, 32), 2)
    operands.pop("p")
    nodes = [
        node("Conv", "image k", "features", kernel_shape=[8, 3], pads=[0, 1, 0, 1]),
        node("Squeeze", "features axis", "squeezed"),
        node("Transpose", "squeezed", "x", perm=[2, 0, 1]),
        _node("LSTM", {"hidden_size": 32, "direction": "bidirectional"}, operands, "sequence h_last c_last"),
        node("Relu", "sequence", "y"),
    ]
    operands.pop("x")
    constants = {**operands, "k": values((24, 4, 8, 3), 9, -0.2, 0.2), "axis": np.array([2])}
    network = network_of(nodes, {"image": values((1, 4, 8, 12))}, constants, ["y", "h_last", "c_last"])
    compiled = compile_model(network.model, find_machine("edge"))
    assert relative_error(execute(compiled, network), network.expected) <= 1e-5
