"""Models that are contradictory or exceed limits are refused with the node's name, or computed correctly."""

from typing import Any

import numpy as np
import pytest
from networks_on_npu import TOLERANCE, execute, network_of, relative_error
from onnx import ModelProto, NodeProto, TensorProto, helper
from small_models import Array, imported, model, node, values

from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.emulator_errors import EmulatorError, InvalidModel, UnsupportedOperator
from device_agents.emulated_npu.machine import find_machine

MAP = values((1, 4, 8, 8))
WEIGHTS = {"w": values((4, 4, 3, 3), 1)}


def refusal(proto: ModelProto, kind: type[EmulatorError] = UnsupportedOperator) -> str:
    """Return the reason for refusing a model; its message names the node y and the operator."""
    with pytest.raises(kind, match="'y'") as caught:
        import_model(proto)
    assert f"({proto.graph.node[-1].op_type})" in caught.value.what
    return caught.value.why


def assert_runs(nodes: list[NodeProto], inputs: dict[str, Array], constants: dict[str, Array]) -> None:
    """Check that the graph and the compiled program compute what ONNX Runtime does."""
    imported(model(nodes, inputs, constants), inputs)
    network = network_of(nodes, inputs, constants, ["y"])
    compiled = compile_model(network.model, find_machine("edge"), Options())
    assert relative_error(execute(compiled, network), network.expected) <= TOLERANCE


def test_tensors_without_axes() -> None:
    """Tensors without axes pass through layers, and as the third input of Gemm."""
    assert_runs([node("Relu", "x", "y")], {"x": values((), 3)}, {})
    feeds = {"a": values((3, 4)), "b": values((4, 5), 1), "c": values((), 2)}
    assert_runs([node("Gemm", "a b c", "y", beta=2.0)], feeds, {})


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.int64])
@pytest.mark.parametrize("op", ["Gemm", "MatMul"])
@pytest.mark.parametrize("constant", [False, True])
def test_products_in_other_types(op: str, dtype: type, constant: bool) -> None:
    """Products of other types are refused with the type, for a constant or computed second factor."""
    a: Array = values((3, 4)).astype(dtype)
    b: Array = values((4, 5), 1).astype(dtype)
    feeds, constants = ({"a": a}, {"b": b}) if constant else ({"a": a, "b": b}, {})
    assert np.dtype(dtype).name in refusal(model([node(op, "a b", "y")], feeds, constants))


@pytest.mark.parametrize("groups", [1, 4])
def test_convolutions_in_other_types(groups: int) -> None:
    """Dense and depthwise convolutions of other types are refused with the name of the type."""
    weights = values((4, 4 // groups, 3, 3)).astype(np.float64)
    proto = model([node("Conv", "x w", "y", group=groups)], {"x": MAP.astype(np.float64)}, {"w": weights})
    assert "float64" in refusal(proto)


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"group": 0}, "group is 0"),
        ({"group": -1}, "group is -1"),
        ({"group": 3}, "3 groups"),
        ({"group": 2}, "2 groups"),
        ({"kernel_shape": [5, 5]}, "kernel_shape"),
        ({"auto_pad": "SAME"}, "auto_pad"),
        ({"strides": [2**40, 1]}, "stride"),
        ({"dilations": [2**21, 1], "pads": [2**21, 0, 2**21, 0], "strides": [2**21, 1]}, "is 2097152"),
    ],
)
def test_convolutions_that_contradict_themselves_or_instructions(attributes: dict[str, Any], words: str) -> None:
    """Contradictory groups, kernels and automatic padding, and windows that no instruction can encode, are refused."""
    assert words in refusal(model([node("Conv", "x w", "y", **attributes)], {"x": MAP}, WEIGHTS))


def test_biases_and_parameters_of_another_length() -> None:
    """Parameters that do not have one element for every channel are refused."""
    three = {"b": np.ones(3, np.float32)}
    assert "bias" in refusal(model([node("Conv", "x w b", "y")], {"x": MAP}, WEIGHTS | three))
    normalised = model([node("BatchNormalization", "x b b b b", "y")], {"x": MAP}, three, opset=9)
    assert "parameters" in refusal(normalised)
    feeds = {"a": values((3, 4)), "b": values((4, 5))}
    assert "third input" in refusal(model([node("Gemm", "a b c", "y")], feeds, {"c": np.ones(2, np.float32)}))


@pytest.mark.parametrize(("kernel", "pads"), [(1, (1, 1, 1, 1)), (3, (3, 0, 0, 5)), (3, (30, 40, 20, 50))])
@pytest.mark.parametrize("groups", [1, 4])
def test_convolution_windows_of_padding_alone(kernel: int, pads: tuple[int, ...], groups: int) -> None:
    """Convolution windows that hold only padding yield the bias."""
    constants = {"w": values((4, 4 // groups, kernel, kernel), 1), "b": values((4,), 2)}
    assert_runs([node("Conv", "x w b", "y", pads=pads, group=groups)], {"x": MAP}, constants)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_pooling_windows_of_padding_alone_are_refused(op: str) -> None:
    """Pooling windows that hold only padding are refused."""
    proto = model([node(op, "x", "y", kernel_shape=[2, 2], pads=[3, 3, 3, 3])], {"x": MAP})
    assert "only padding" in refusal(proto)


def test_a_pad_larger_than_the_window_of_the_pooling_behind_it() -> None:
    """A Pad with windows of only zeros stays a layer of its own."""
    nodes = [node("Pad", "x pads", "p"), node("AveragePool", "p", "y", kernel_shape=[2, 2])]
    assert_runs(nodes, {"x": MAP}, {"pads": np.array([0, 0, 3, 3, 0, 0, 3, 3], np.int64)})


@pytest.mark.parametrize("index", [99, 4, -5])
def test_constant_indices_out_of_range(index: int) -> None:
    """Constant indices outside the axis are refused; those inside, also negative ones, are accepted."""
    for indices in (np.array(index), np.array([0, 2, index])):
        proto = model([node("Gather", "x i", "y", axis=1)], {"x": MAP}, {"i": indices.astype(np.int64)})
        assert f"index {index}" in refusal(proto)
    assert_runs([node("Gather", "x i", "y", axis=1)], {"x": MAP}, {"i": np.array([-4, 3, 0], np.int64)})


def test_views_of_more_than_six_axes() -> None:
    """Views with more than six axes are refused if no axis can be dropped, and so are inputs and outputs."""
    shapes = {"s": np.full(7, 2, np.int64), "back": np.array([-1], np.int64)}
    nodes = [node("Reshape", "x s", "t"), node("Transpose", "t", "u", perm=[0, 2, 4, 6, 1, 3, 5])]
    proto = model([*nodes, node("Reshape", "u back", "y")], {"x": values((128,))}, shapes)
    assert "more than 6 axes" in refusal(proto)
    for shape in ((1, 2, 1, 2, 1, 2, 2), (2,) * 7):
        assert "more than 6 axes" in refusal(model([node("Relu", "x", "y")], {"x": values(shape)}))


def test_views_of_more_than_six_axes_some_of_one_element() -> None:
    """Elementwise layers drop axes of one element, and merge others."""
    nodes = [node("Reshape", "x s", "t"), node("Transpose", "t", "u", perm=[0, 2, 3, 1, 4, 5, 6, 7])]
    nodes += [node("Exp", "u", "e"), node("Add", "e c", "a"), node("Reshape", "a back", "y")]
    constants = {
        "s": np.array([1, 3, 4, 1, 2, 1, 2, 2], np.int64),
        "c": values((4, 1, 1, 2, 1, 2, 2), 5),
        "back": np.array([-1], np.int64),
    }
    assert_runs(nodes, {"x": values((96,))}, constants)


@pytest.mark.parametrize(("shape", "repeats"), [((2, 3, 2, 3, 2), (3, 2, 2, 1, 2)), ((2, 3, 2, 2), (2, 3, 2, 2))])
def test_repeats_along_many_axes(shape: tuple[int, ...], repeats: tuple[int, ...]) -> None:
    """Tile uses as many copies as the axes of a command require."""
    assert_runs([node("Tile", "x r", "y")], {"x": values(shape)}, {"r": np.array(repeats, np.int64)})


def test_enlarging_three_spatial_axes() -> None:
    """A nearest Resize along all axes repeats elements in several copies."""
    sizes = np.array([1, 2, 6, 6, 8], np.int64)
    nodes = [node("Resize", "x - - s", "y", coordinate_transformation_mode="asymmetric", nearest_mode="floor")]
    assert_runs(nodes, {"x": values((1, 2, 3, 2, 4))}, {"s": sizes})


@pytest.mark.parametrize("shape", [(1, 300), (1, 4, 8), (3, 5, 7), (1,), ()])
def test_shapes_of_other_sizes_than_what_they_reshape(shape: tuple[int, ...]) -> None:
    """A reshape to a wrong size is refused with both shapes and their numbers of elements."""
    proto = model([node("Reshape", "x s", "y")], {"x": MAP}, {"s": np.array(shape, np.int64)})
    why = refusal(proto)
    assert "[1, 4, 8, 8] has 256 elements" in why
    assert f"{list(shape)} would have {int(np.prod(shape))}" in why


@pytest.mark.parametrize(
    ("op", "attributes", "constants", "words"),
    [
        ("DepthToSpace", {"blocksize": 3}, {}, "would have 0"),
        ("SpaceToDepth", {"blocksize": 3}, {}, "would have 144"),
        ("Tile", {}, {"r": np.array([1, 2, 0, 1])}, "would have 0"),
        ("Transpose", {"perm": [0, 1, 2]}, {}, "not a permutation of 4 axes"),
        ("InstanceNormalization", {}, {"s": values((3,)), "b": values((3,))}, "3 elements"),
        ("GroupNormalization", {"num_groups": 3}, {"s": values((4,)), "b": values((4,))}, "3 groups"),
        ("GroupNormalization", {"num_groups": 0}, {"s": values((4,)), "b": values((4,))}, "0 groups"),
        ("GroupNormalization", {"num_groups": 2}, {"s": values((3,)), "b": values((3,))}, "3 elements"),
        ("LayerNormalization", {"axis": 9}, {"s": values((8,))}, "axis is 9"),
        ("PRelu", {}, {"s": values((5,))}, "does not broadcast"),
        ("PRelu", {}, {"s": values((2, 1, 4, 1, 1))}, "does not broadcast"),
        ("RMSNormalization", {}, {"s": values((7,))}, "does not broadcast"),
        ("Clip", {}, {"s": values((2,))}, "2 elements"),
        ("Pad", {}, {"p": np.array([0, 0, 1, 0, 0, 0, 0, 0]), "v": values((2,))}, "2 elements"),
        ("Pad", {}, {"p": np.array([0, 0, -9, 0, 0, 0, 0, 0])}, "all 8 elements of axis 2"),
        ("LRN", {"size": 0}, {}, "0 channels"),
        ("Conv", {}, {"w": values((4, 4, 9, 9))}, "without elements"),
        ("MaxPool", {"kernel_shape": [9, 9]}, {}, "without elements"),
    ],
)
def test_parameters_that_do_not_fit_their_input(
    op: str, attributes: dict[str, Any], constants: dict[str, Array], words: str
) -> None:
    """Contradictions that shape inference accepts are refused with the contradicting numbers."""
    proto = model([node(op, " ".join(["x", *constants]), "y", **attributes)], {"x": MAP}, constants, opset=23)
    assert words in refusal(proto)


def test_a_part_that_goes_beyond_what_is_split() -> None:
    """A Split with a negative size is refused even if the sum of the sizes is right."""
    sizes = {"s": np.array([5, -1], np.int64)}
    assert "from 0 to 5 of 4" in refusal(model([node("Split", "x s", "y z", axis=1)], {"x": MAP}, sizes))


@pytest.mark.parametrize(("op", "rank"), [("LRN", 1), ("InstanceNormalization", 2)])
def test_inputs_of_too_few_axes(op: str, rank: int) -> None:
    """Layers across channels refuse inputs with too few axes, and name their number."""
    constants = {"s": values((4,)), "b": values((4,))} if op == "InstanceNormalization" else {}
    nodes = [node(op, " ".join(["x", *constants]), "y", **({"size": 3} if op == "LRN" else {}))]
    assert f"{rank} axes" in refusal(model(nodes, {"x": values((4,) * rank)}, constants))


def test_tensors_without_elements() -> None:
    """Models with empty tensors are refused before any instruction is generated."""
    assert "without elements" in refusal(model([node("Relu", "x", "y")], {"x": np.zeros((1, 0, 3), np.float32)}))


def test_constants_that_cannot_be_computed() -> None:
    """A node of constants that cannot be computed is named with the reason."""
    nodes = [node("Gather", "c i", "t"), node("Add", "x t", "y")]
    proto = model(nodes, {"x": values((3, 4))}, {"c": values((12,)), "i": np.array([50])})
    with pytest.raises(InvalidModel, match="'t'") as caught:
        compile_model(proto.SerializeToString(), find_machine("edge"), Options())
    assert "index 50" in caught.value.why


@pytest.mark.parametrize("kind", [TensorProto.UINT32, TensorProto.BFLOAT16])
def test_other_element_types_are_named(kind: int) -> None:
    """Unsupported element types are refused for inputs, constants and tensors between nodes."""
    name = TensorProto.DataType.Name(kind).lower()
    x = helper.make_tensor_value_info("x", kind, [4])
    y = helper.make_empty_tensor_value_info("y")
    opsets = [helper.make_opsetid("", 17)]
    added = helper.make_model(helper.make_graph([node("Add", "x x", "y")], "g", [x], [y]), opset_imports=opsets)
    assert name in refusal(added, InvalidModel)
    between = [node("Cast", "x", "t", to=kind), node("Cast", "t", "y", to=TensorProto.FLOAT)]
    with pytest.raises(InvalidModel, match="'t'") as caught:
        import_model(model(between, {"x": values((4,))}))
    assert name in caught.value.why
