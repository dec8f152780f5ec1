"""Models of scikit-learn, LightGBM and XGBoost: operators of ai.onnx.ml, and results that are not numbers."""

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper
from onnx_models import FLOAT, model_of, node, prepared, run_assembled, run_plain

from harness.errors import UnresolvedDimension, UnsupportedType
from harness.network.assemble import assemble_network
from harness.network.reading.prepare import prepare
from harness.network.reading.read import check_model

CLASSES = 3


def classical(nodes: list[NodeProto], outputs: tuple[str, ...], **options: object) -> ModelProto:
    """Return a model of four features whose nodes outside of ONNX's own domain are those of ai.onnx.ml."""
    model = model_of(nodes, {"x": (1, 4)}, outputs, **options)  # type: ignore[arg-type]
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 2))
    return model


def of_ml(op: str, inputs: str, outputs: str, **attributes: object) -> NodeProto:
    """Return an operator of ai.onnx.ml."""
    return node(op, inputs, outputs, domain="ai.onnx.ml", **attributes)


def forest(**labels: object) -> NodeProto:
    """Return two trees of one decision each, which write `label` and `scores`."""
    return of_ml(
        "TreeEnsembleClassifier",
        "x",
        "label scores",
        nodes_treeids=[0, 0, 0, 1, 1, 1],
        nodes_nodeids=[0, 1, 2] * 2,
        nodes_featureids=[1, 0, 0, 2, 0, 0],
        nodes_values=[0.3, 0.0, 0.0, 0.6, 0.0, 0.0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"] * 2,
        nodes_truenodeids=[1, 0, 0] * 2,
        nodes_falsenodeids=[2, 0, 0] * 2,
        class_treeids=[0, 0, 1, 1],
        class_nodeids=[1, 2, 1, 2],
        class_ids=[0, 1, 1, 2],
        class_weights=[0.5] * 4,
        **labels,
    )


def test_a_forest_is_typed_by_a_run() -> None:
    """ONNX's inference knows no shapes of a forest; its values are those of the file."""
    model = classical([forest(classlabels_int64s=[0, 1, 2]), node("Relu", "scores", "y")], ("label", "y"))
    network = prepared(model)
    assert [network.types[name].shape for name in ("label", "scores")] == [(1,), (1, CLASSES)]
    inputs, outputs = run_assembled(assemble_network(network))
    expected = run_plain(model, dict(zip(network.inputs, inputs, strict=True)), ["label", "y"])
    for name, value in zip(network.outputs, outputs, strict=True):
        np.testing.assert_array_equal(value, expected[name])


def test_maps_of_probabilities_are_left_out() -> None:
    """A ZipMap, which scikit-learn's converter writes by default, is named; what it reads is measured."""
    model = classical(
        [node("Softmax", "x", "scores"), of_ml("ZipMap", "scores", "z", classlabels_int64s=[0, 1, 2, 3])], ("z",)
    )
    maps = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(FLOAT, []))
    model.graph.output[0].type.CopyFrom(helper.make_sequence_type_proto(maps))
    network = prepared(model)
    assert [one.op for one in network.unmeasured] == ["ZipMap"]
    assert network.outputs == ("scores",)


def test_labels_of_text_are_left_out() -> None:
    """Looking up a label of text is named; the products in front of it are measured."""
    nodes = [
        node("MatMul", "x w", "scores"),
        node("ArgMax", "scores", "place", axis=1, keepdims=0),
        of_ml("LabelEncoder", "place", "label", keys_int64s=[0, 1, 2], values_strings=["a", "b", "c"]),
        of_ml("ArrayFeatureExtractor", "names place", "name"),
    ]
    constants = {"w": np.ones((4, CLASSES), np.float32), "names": np.array([["a", "b", "c"]], object)}
    model = classical(nodes, ("label", "name", "scores"), constants=constants)
    for value in model.graph.output[:2]:
        value.type.tensor_type.elem_type = TensorProto.STRING
    network = prepared(model)
    assert [one.op for one in network.unmeasured] == ["LabelEncoder", "ArrayFeatureExtractor"]
    assert network.outputs == ("scores", "place")


def test_a_network_that_multiplies_behind_texts_is_refused() -> None:
    """If weights follow the texts, too much would be left out."""
    nodes = [
        node("Cast", "x", "texts", to=TensorProto.STRING),
        node("Cast", "texts", "numbers", to=FLOAT),
        node("MatMul", "numbers w", "y"),
    ]
    with pytest.raises(UnsupportedType, match="string"):
        prepared(model_of(nodes, {"x": (1, 4)}, constants={"w": np.ones((4, 4), np.float32)}))


def test_numbers_turned_into_texts_are_left_out() -> None:
    """A Cast to text is named like any other operator whose results are not numbers, also one of constants."""
    nodes = [
        node("Relu", "x", "y"),
        node("ArgMax", "y", "place", axis=1, keepdims=0),
        node("Cast", "place", "label", to=TensorProto.STRING),
        node("Cast", "numbers", "names", to=TensorProto.STRING),
        node("Gather", "names place", "name"),
    ]
    network = prepared(model_of(nodes, {"x": (1, 4)}, ("y", "label", "name"), {"numbers": np.arange(4)}))
    assert [one.op for one in network.unmeasured] == ["Cast", "Cast", "Gather"]
    assert network.outputs == ("y", "place")


@pytest.mark.parametrize(
    ("kind", "reader"),
    [
        (TensorProto.FLOAT8E4M3FN, node("DequantizeLinear", "w scale", "d")),
        (TensorProto.BFLOAT16, node("Identity", "w", "d")),
    ],
)
def test_products_with_weights_that_cannot_be_measured_are_refused(kind: int, reader: NodeProto) -> None:
    """A network of 8-bit floats is refused by the name of the type: without its products, little would be left."""
    weights = helper.make_tensor("w", kind, (4, 4), np.ones(16))
    nodes = [node("Relu", "x", "h"), reader, node("MatMul", "h d", "m"), node("Relu", "m", "y")]
    model = model_of(nodes, {"x": (1, 4)}, constants={"scale": np.float32(0.1)}, opset=21, ir_version=10)
    model.graph.initializer.append(weights)
    with pytest.raises(UnsupportedType) as refused:
        prepared(model)
    assert TensorProto.DataType.Name(kind).lower() in str(refused.value)


def test_the_reason_is_that_of_the_product() -> None:
    """Sizes that depend on the data refuse a product, whatever texts there are besides."""
    nodes = [
        node("Gather", "names zero", "name"),
        node("NonZero", "x", "places"),
        node("Cast", "places", "numbers", to=FLOAT),
        node("MatMul", "w numbers", "y"),
    ]
    constants = {"names": np.array(["a", "b"], object), "zero": np.array(0), "w": np.ones((3, 2), np.float32)}
    with pytest.raises(UnresolvedDimension, match="places"):
        prepared(model_of(nodes, {"x": (1, 4)}, ("name", "y"), constants))


def test_a_model_without_operators_of_onnx_states_no_opset() -> None:
    """XGBoost's converter states the operators of ai.onnx.ml alone."""
    model = classical([forest(classlabels_int64s=[0, 1, 2])], ("label", "scores"))
    del model.opset_import[0]
    network = prepare(check_model("file", model, model.SerializeToString()), {})
    assert run_assembled(assemble_network(network))[1][1].shape == (1, CLASSES)
