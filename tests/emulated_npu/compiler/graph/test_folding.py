"""Folding merges several nodes into one layer where it may, and never changes results."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from onnx import NodeProto
from small_models import Array, functions, imported, model, node, values

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph
from device_agents.emulated_npu.unit_settings import Activation

X = values((1, 4, 6, 5))
CHANNELS = {name: values((4,), seed, 0.5, 1.5) for seed, name in enumerate(("gamma", "beta", "mean", "variance"))}
WEIGHTS = {
    "w": values((4, 4, 3, 3), 7),
    "d": values((4, 1, 3, 3), 8),
    "bias": values((4,), 9),
    "half": np.array(0.5, np.float32),
    "one": np.array(1.0, np.float32),
    "three": np.array(3.0, np.float32),
    "six": np.array(6.0, np.float32),
    "zero": np.array(0.0, np.float32),
    "root2": np.array(math.sqrt(2), np.float32),
    "cubic": np.array(0.044715, np.float32),
    "rootpi": np.array(math.sqrt(2 / math.pi), np.float32),
    "factor": values((4, 1, 1), 10),
    "offset": values((1, 4, 1, 1), 11),
    "row": values((5,), 12),
    "pads": np.array([0, 0, 1, 1, 0, 0, 0, 2], np.int64),
} | CHANNELS
CONV = node("Conv", "x w bias", "c", pads=[1, 1, 1, 1])


def small(*nodes: NodeProto, outputs: tuple[str, ...] = ("y",), x: Array = X) -> Graph:
    """Return the graph of nodes that read x and the constants above, checked against ONNX Runtime."""
    used = {name for item in nodes for name in item.input}
    constants = {name: array for name, array in WEIGHTS.items() if name in used}
    return imported(model(nodes, {"x": x}, constants, outputs), {"x": x})


def batch_norm(source: str, target: str) -> NodeProto:
    """Return a batch normalisation with the constants above."""
    return node("BatchNormalization", f"{source} gamma beta mean variance", target, epsilon=1e-3)


@pytest.mark.parametrize("op", ["Relu", "LeakyRelu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Elu", "Softplus"])
def test_bias_normalisation_factors_and_activation_are_one_layer(op: str) -> None:
    """Conv, BatchNormalization, Mul, Add and an activation become one layer of five nodes."""
    nodes = (CONV, batch_norm("c", "b"), node("Mul", "b factor", "m"), node("Add", "offset m", "a"), node(op, "a", "y"))
    (layer,) = small(*nodes).layers
    assert layer.nodes == ("c", "b", "m", "a", "y")
    assert layer.scale_shift is not None
    assert layer.scale_shift.shape == (2, 4)
    assert layer.settings.activation != Activation.NONE


@pytest.mark.parametrize(
    "steps",
    [
        ("Sub", "t offset"),
        ("Sub", "offset t"),
        ("Div", "t factor"),
        ("Mul", "half t"),
        ("Div", "t root2"),
        ("Sub", "one t"),
        ("Add", "t row"),
        ("Div", "one t"),
    ],
)
@pytest.mark.parametrize("first", ["w", "d"])
def test_arithmetic_with_constants(steps: tuple[str, str], first: str) -> None:
    """Steps per channel or by one number fold; a step along another axis, or a division of a constant, does not."""
    convolution = node("Conv", f"x {first}", "t", group=4 if first == "d" else 1, pads=[1] * 4)
    graph = small(convolution, node(*steps, "y"))
    assert len(graph.layers) == (2 if steps in (("Add", "t row"), ("Div", "one t")) else 1)


def test_matrix_products_take_what_lies_along_their_columns() -> None:
    """MatMul, a bias along the last axis, a factor and GELU are one layer."""
    nodes = (
        node("MatMul", "x k", "p"),
        node("Add", "row p", "s"),
        node("Mul", "s half", "h"),
        node("Sigmoid", "h", "y"),
    )
    graph = imported(
        model(nodes, {"x": X}, {"k": values((5, 5)), "row": WEIGHTS["row"], "half": WEIGHTS["half"]}), {"x": X}
    )
    assert functions(graph) == ["CONVOLVE"]


def test_a_residual_is_added_before_the_activation() -> None:
    """An addition of two convolutions folds into the later one."""
    nodes = (CONV, node("Conv", "x w", "e", pads=[1, 1, 1, 1]), node("Add", "c e", "s"), node("Relu", "s", "y"))
    first, second = small(*nodes).layers
    assert second.nodes == ("e", "s", "y")
    assert second.residual == first.output


def test_only_one_residual_and_none_behind_an_activation() -> None:
    """A second addition, a factor after an addition, and an addition after an activation are layers of their own."""
    twice = (CONV, node("Add", "c x", "s"), node("Add", "s x", "t"), node("Relu", "t", "y"))
    assert functions(small(*twice)) == ["CONVOLVE", "BINARY"]
    scaled = (CONV, node("Add", "c x", "s"), node("Mul", "s factor", "y"))
    assert functions(small(*scaled)) == ["CONVOLVE", "BINARY"]
    behind = (CONV, node("Relu", "c", "r"), node("Add", "r x", "y"))
    assert functions(small(*behind)) == ["CONVOLVE", "BINARY"]


@pytest.mark.parametrize(
    "nodes",
    [
        (CONV, node("Relu", "c", "y"), node("Sigmoid", "c", "z")),
        (CONV, node("Relu", "c", "y")),
    ],
)
def test_what_is_read_elsewhere_or_an_output_stays(nodes: tuple[NodeProto, ...]) -> None:
    """A value with another reader, or that is an output of the network, is kept."""
    outputs = ("y", "z") if len(nodes) == 3 else ("y", "c")
    graph = small(*nodes, outputs=outputs)
    assert functions(graph)[:2] == ["CONVOLVE", "MAP"]


def test_normalisation_alone_is_affine() -> None:
    """A batch normalisation with factors after it is one AFFINE layer if it cannot fold into another."""
    graph = small(node("Relu", "x", "r"), batch_norm("r", "b"), node("Mul", "b factor", "m"), node("Relu", "m", "y"))
    assert functions(graph) == ["MAP", "AFFINE"]
    assert graph.layers[1].nodes == ("b", "m", "y")


ERF = [node("Div", "c root2", "e1"), node("Erf", "e1", "e2"), node("Add", "one e2", "e")]
CUBE = [node("Mul", "c c", "q"), node("Mul", "q c", "t1"), node("Mul", "cubic t1", "t2"), node("Add", "c t2", "t3")]
TANH = [node("Mul", "t3 rootpi", "t4"), node("Tanh", "t4", "t5"), node("Add", "t5 one", "e")]
RELU6 = [node("Add", "c three", "e1"), node("Clip", "e1 zero six", "e")]
PATTERNS: list[tuple[Activation, list[NodeProto]]] = [
    (Activation.SWISH, [node("Sigmoid", "c", "e"), node("Mul", "e c", "y")]),
    (Activation.GELU, [*ERF, node("Mul", "c e", "h"), node("Mul", "h half", "y")]),
    (Activation.GELU, [*ERF, node("Mul", "c half", "h"), node("Mul", "e h", "y")]),
    (Activation.GELU, [*ERF, node("Mul", "e half", "h"), node("Mul", "h c", "y")]),
    (Activation.GELU_TANH, [*CUBE, *TANH, node("Mul", "c e", "h"), node("Mul", "half h", "y")]),
    (
        Activation.GELU_TANH,
        [node("Pow", "c three", "t1"), *CUBE[2:], *TANH, node("Mul", "c half", "h"), node("Mul", "h e", "y")],
    ),
    (Activation.HARD_SWISH, [node("HardSigmoid", "c", "e", alpha=1 / 6, beta=0.5), node("Mul", "c e", "y")]),
    (Activation.HARD_SWISH, [*RELU6, node("Mul", "c e", "h"), node("Div", "h six", "y")]),
    (Activation.HARD_SWISH, [*RELU6, node("Div", "e six", "h"), node("Mul", "h c", "y")]),
]


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern[0].name)
def test_activations_that_files_spell_out(pattern: tuple[Activation, list[NodeProto]]) -> None:
    """GELU, swish and hard-swish in the forms that exporters write are the epilogue of one layer."""
    (layer,) = small(CONV, *pattern[1]).layers
    assert layer.settings.activation == pattern[0]
    assert len(layer.nodes) == 1 + len(pattern[1])


def test_an_activation_that_is_read_halfway_is_not_put_together() -> None:
    """The sigmoid of a swish stays a layer if another node reads it."""
    graph = small(CONV, node("Sigmoid", "c", "e"), node("Mul", "e c", "y"), outputs=("y", "e"))
    assert functions(graph) == ["CONVOLVE", "MAP", "BINARY"]


def test_another_constant_is_another_function() -> None:
    """x * 0.5 * (1 + erf(x / sqrt(2))) with 3 for 0.5 is no GELU."""
    graph = small(CONV, *ERF, node("Mul", "c e", "h"), node("Mul", "h three", "y"))
    assert Activation.GELU not in {layer.settings.activation for layer in graph.layers}


@pytest.mark.parametrize("square", [("Pow", "d two"), ("Mul", "d d")])
@pytest.mark.parametrize("tail", ["none", "scale", "scale and shift", "shift"])
def test_layer_normalisation_that_files_spell_out(square: tuple[str, str], tail: str) -> None:
    """Mean, difference, square, variance, root and division, with scale and shift or without, are one layer."""
    constants = {
        "two": np.array(2.0, np.float32),
        "eps": np.array(1e-5, np.float32),
        "s": values((5,), 1),
        "b": values((5,), 2),
    }
    nodes = [
        node("ReduceMean", "x", "m", axes=[-1]),
        node("Sub", "x m", "d"),
        node(*square, "q"),
        node("ReduceMean", "q", "v", axes=[-1]),
        node("Add", "v eps", "a"),
        node("Sqrt", "a", "r"),
        node("Div", "d r", "n"),
    ]
    if "scale" in tail:
        nodes.append(node("Mul", "n s", "n2"))
    if "shift" in tail:
        nodes.append(node("Add", f"{nodes[-1].output[0]} b", "n3"))
    used = {name for item in nodes for name in item.input}
    proto = model(
        nodes, {"x": X}, {name: array for name, array in constants.items() if name in used}, (nodes[-1].output[0],)
    )
    graph = imported(proto, {"x": X})
    assert functions(graph) == (["NORMALIZE", "BINARY"] if tail == "shift" else ["NORMALIZE"])
    assert len(graph.layers[0].nodes) == (7 if tail == "shift" else len(nodes))


@pytest.mark.parametrize(
    ("op", "attributes", "folds"),
    [
        ("Conv", {"pads": [1, 0, 1, 0]}, True),
        ("Conv", {"auto_pad": "SAME_UPPER"}, False),
        ("AveragePool", {"kernel_shape": [2, 3]}, True),
        ("AveragePool", {"kernel_shape": [2, 2]}, False),
        ("AveragePool", {"kernel_shape": [2, 2], "pads": [1, 1, 1, 1]}, False),
        ("MaxPool", {"kernel_shape": [2, 2]}, False),
    ],
)
def test_padding_by_zeros_is_part_of_the_window(op: str, attributes: dict[str, Any], folds: bool) -> None:
    """A Pad by zeros merges into a window whose own padding counts as zeros."""
    inputs = "p w" if op == "Conv" else "p"
    graph = small(node("Pad", "x pads", "p"), node(op, inputs, "y", **attributes))
    assert (len(graph.layers) == 1) == folds


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[NodeProto], tuple[str, ...]]:
    """Draw networks over maps of one shape, in which any tensor may be read again or be an output."""
    nodes: list[NodeProto] = []
    tensors = ["x"]
    for number in range(draw(st.integers(2, 9))):
        first, second = (draw(st.sampled_from(tensors[-4:])) for _ in range(2))
        nodes.extend(_piece(draw(st.sampled_from(PIECES)), first, second, f"t{number}"))
        tensors.append(f"t{number}")
    extra = draw(st.lists(st.sampled_from(tensors[1:]), max_size=2))
    return nodes, tuple(dict.fromkeys((tensors[-1], *extra)))


PIECES = [
    "conv",
    "depthwise",
    "norm",
    "Relu",
    "Sigmoid",
    "LeakyRelu",
    "swish",
    "Add",
    "Mul",
    "factor",
    "offset",
    "half",
    "concat",
    "join",
    "turn",
    "shuffle",
    "slice",
    "Identity",
    "pad",
    "Softmax",
    "pool",
]


def _piece(kind: str, a: str, b: str, out: str) -> list[NodeProto]:
    pads = {"pads": [1, 1, 1, 1]}
    pieces: dict[str, list[NodeProto]] = {
        "conv": [node("Conv", f"{a} w bias", out, **pads)],
        "depthwise": [node("Conv", f"{a} d", out, group=4, **pads)],
        "norm": [batch_norm(a, out)],
        "swish": [node("Sigmoid", a, f"{out}s"), node("Mul", f"{out}s {a}", out)],
        "Add": [node("Add", f"{a} {b}", out)],
        "Mul": [node("Mul", f"{a} {b}", out)],
        "factor": [node("Mul", f"{a} factor", out)],
        "offset": [node("Add", f"offset {a}", out)],
        "half": [node("Mul", f"half {a}", out)],
        "concat": [node("Concat", f"{a} {b}", f"{out}c", axis=1), node("Slice", f"{out}c two six ones", out)],
        "join": [
            node("Concat", f"{a} {b}", f"{out}c", axis=3),
            node("MaxPool", f"{out}c", out, kernel_shape=[1, 1], strides=[1, 2]),
        ],
        "turn": [
            node("Transpose", a, f"{out}p", perm=[0, 3, 1, 2]),
            node("Relu", f"{out}p", f"{out}r"),
            node("Transpose", f"{out}r", out, perm=[0, 2, 3, 1]),
        ],
        "shuffle": [
            node("Reshape", f"{a} divided", f"{out}d"),
            node("Transpose", f"{out}d", f"{out}p", perm=[0, 2, 1, 3, 4]),
            node("Reshape", f"{out}p merged", out),
        ],
        "slice": [node("Slice", f"{a} last first ones minus", out)],
        "pad": [node("Pad", f"{a} around", f"{out}p"), node("Conv", f"{out}p w", out)],
        "pool": [node("AveragePool", a, out, kernel_shape=[3, 3], **pads)],
    }
    return pieces.get(kind) or [node(kind, a, out)]


NUMBERS = {
    "two": [2],
    "six": [6],
    "ones": [1],
    "last": [-1],
    "first": [-100],
    "minus": [-1],
    "divided": [1, 2, 2, 6, 5],
    "merged": [1, 4, 6, 5],
    "around": [0, 0, 1, 1, 0, 0, 1, 1],
}


@given(networks())
@settings(max_examples=75)
def test_networks_compute_what_they_say(case: tuple[list[NodeProto], tuple[str, ...]]) -> None:
    """Folding, views and writing in place keep the outputs of ONNX Runtime."""
    nodes, outputs = case
    constants = WEIGHTS | {name: np.array(numbers, np.int64) for name, numbers in NUMBERS.items()}
    imported(model(nodes, {"x": X}, constants, outputs), {"x": X})
