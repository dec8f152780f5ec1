"""A row becomes the entry that `estimate` looks for: its key is the one that the layer has in a network."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from command_line import Harness
from hypothesis import given, settings, strategies as st
from import_files import CONVOLUTION, row, run_import
from onnx import helper, numpy_helper

from harness.network.fusion.fusion_rules import DEFAULT_RULES
from harness.network.layers import cut
from harness.network.model_references import load_network
from harness.predictor.features.key_parser import KeyOperator, ParsedKey, parse_key
from harness.table_import.cells import BadRow, Row
from harness.table_import.layer_spec import spec_of
from harness.table_import.mapping import OperatorRows
from harness.table_import.one_layer_network import keyed_layer

_WINDOW = {"kernel_shape": "kernel", "strides": "stride", "dilations": "dilation", "pads": "padding"}
_PLAIN = {"Relu", "Sigmoid", "Tanh", "HardSwish", "Clip", "Softmax", "Add", "Mul", "Concat", "Transpose"}


def key_of(section: dict[str, Any], cells: dict[str, str] | None = None, opset: int = 17) -> str:
    """Return the key of the layer that a section makes of a row."""
    return keyed_layer(spec_of(OperatorRows.model_validate(section), Row(1, cells or {})), opset).key


def section_of(parsed: ParsedKey) -> dict[str, Any] | None:
    """Describe a layer of a network in the words of a mapping; None for layers that the words do not have."""
    first, *others = parsed.operators
    inputs: list[Any] = [list(tensor.shape or ()) for tensor in parsed.inputs]
    found: dict[str, Any] = {"op": first.op.removesuffix("-12"), "dtype": parsed.inputs[0].dtype, "inputs": inputs}
    if first.op == "Conv":
        weight = first.tensors[1].shape or ()
        found |= {"channels_out": weight[0], "groups": int(first.attributes["group"]), "inputs": inputs[:1]}
        found |= {"bias": len(first.tensors) > 2, **_windows(first)}
        return found | rest if (rest := _behind(others, len(inputs))) is not None else None
    if first.op in ("MaxPool", "AveragePool"):
        ceil = {"ceil_mode": int(first.attributes["ceil_mode"])}
        return found | _windows(first) | {"attributes": ceil} if not others else None
    if first.op == "Gemm" and len(inputs) == 1:
        found |= {"columns": (first.tensors[1].shape or ())[0]}
        return found | rest if (rest := _behind(others, 1)) is not None else None
    if others or first.op not in (*_PLAIN, "GlobalAveragePool") or any(one.constant for one in first.tensors):
        return None
    numbers = {name: [int(one) for one in text.split(",")] for name, text in first.attributes.items()}
    return found | {"attributes": {name: one[0] if len(one) == 1 else one for name, one in numbers.items()}}


def _windows(operator: KeyOperator) -> dict[str, Any]:
    return {
        name: [int(one) for one in operator.attributes[attribute].split(",")]
        for attribute, name in _WINDOW.items()
        if attribute in operator.attributes
    }


def _behind(others: list[KeyOperator], inputs: int) -> dict[str, Any] | None:
    names = [one.op for one in others]
    found: dict[str, Any] = {"batch_norm": names[:1] == ["BatchNormalization"]}
    names = names[1:] if found["batch_norm"] else names
    found["residual"] = names[:1] == ["Add"] and inputs == 2
    names = names[1:] if found["residual"] else names
    found["activation"] = {(): "none", ("Clip",): "Relu6", ("Sigmoid", "Mul"): "Swish"}.get(
        tuple(names), names[0] if len(names) == 1 else ""
    )
    return found if found["activation"] else None


@pytest.mark.parametrize("name", ["resnet50", "mobilenetv2", "efficientnet_b0", "dscnn", "squeezenet", "vit_tiny"])
def test_layers_of_networks_described_by_rows_have_the_keys_of_the_network(name: str) -> None:
    """Each convolution, pooling, product and elementwise layer of a network, told in a mapping, gets its own key."""
    network = load_network(f"builtin:{name}")
    checked = 0
    for layer in cut(network, DEFAULT_RULES):
        parsed = parse_key(layer.key.text)
        section = parsed and section_of(parsed)
        if section:
            assert key_of(section, opset=max(13, network.opset)) == layer.key.text.replace("Softmax-12", "Softmax")
            checked += 1
    assert checked >= 10


SIZES = st.integers(1, 40)


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a convolution in its own words: rows of it, and a file that an exporter would write."""
    groups = draw(st.sampled_from([1, 1, 2, 4]))
    return {
        "n": draw(st.integers(1, 4)),
        "c": groups * draw(st.integers(1, 8)),
        "h": draw(st.integers(7, 40)),
        "w": draw(st.integers(7, 40)),
        "k": groups * draw(st.integers(1, 8)),
        "size": draw(st.integers(1, 5)),
        "stride": draw(st.integers(1, 3)),
        "dilation": draw(st.integers(1, 2)),
        "groups": groups,
        "activation": draw(st.sampled_from(["none", "Relu", "Sigmoid", "HardSwish"])),
        "bias": draw(st.booleans()),
        "dtype": draw(st.sampled_from(["float32", "float16"])),
    }


def exported(layer: dict[str, Any], folder: Path) -> Path:
    """Write the file of a network with this convolution, with values of its weights, between two other layers."""
    element = helper.np_dtype_to_tensor_dtype(np.dtype(layer["dtype"]))
    shape = (layer["k"], layer["c"] // layer["groups"], layer["size"], layer["size"])
    weights = [numpy_helper.from_array(np.zeros(shape, layer["dtype"]), "w")]
    weights += [numpy_helper.from_array(np.zeros(layer["k"], layer["dtype"]), "b")] * layer["bias"]
    window = {"strides": [layer["stride"]] * 2, "dilations": [layer["dilation"]] * 2, "group": layer["groups"]}
    pads = [layer["size"] // 2] * 4
    nodes = [
        helper.make_node("Abs", ["x"], ["a"], "before"),
        helper.make_node("Conv", ["a", *(one.name for one in weights)], ["c"], "conv", pads=pads, **window),
    ]
    last = "c"
    if layer["activation"] != "none":
        nodes.append(helper.make_node(layer["activation"], ["c"], ["d"], "activation"))
        last = "d"
    nodes.append(helper.make_node("Abs", [last], ["y"], "after"))
    image = helper.make_tensor_value_info("x", element, [layer[name] for name in "nchw"])
    result = helper.make_tensor_value_info("y", element, [None] * 4)
    model = helper.make_model(
        helper.make_graph(nodes, "file", [image], [result], weights),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    path = folder / "network.onnx"
    onnx.save(model, path)
    return path


@settings(max_examples=25)
@given(layer=convolutions())
def test_a_described_convolution_has_the_key_that_it_has_in_a_file(
    layer: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """For any convolution, the key of its row is that of the layer in an exported network, also in NHWC."""
    network = load_network(onnx.load(exported(layer, tmp_path_factory.mktemp("file"))))
    (wanted,) = (one.key.text for one in cut(network, DEFAULT_RULES) if "Conv" in one.op)
    names = ("dilation", "groups", "activation", "bias", "dtype")
    section = {**CONVOLUTION, **{name: f"${name}" for name in names}}
    cells = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in layer.items()}
    assert key_of(section, cells) == wanted
    assert key_of({**section, "input": ["$n", "$h", "$w", "$c"], "layout": "NHWC"}, cells) == wanted
    packed = {**cells, "shape": f"[{layer['n']}, {layer['c']}, {layer['h']}, {layer['w']}]"}
    assert key_of({**section, "input": "$shape"}, packed) == wanted


def test_an_estimate_takes_the_imported_latency(harness: Harness, tmp_path: Path) -> None:
    """A network with an imported layer is estimated with its very latency, and says that it is measured."""
    layer = {"n": 1, "c": 16, "h": 28, "w": 28, "k": 32, "size": 3, "stride": 1, "dilation": 1, "groups": 1}
    path = exported({**layer, "activation": "Relu", "bias": True, "dtype": "float32"}, tmp_path)
    run_import(harness, [row(ms=0.5)], operator=[{**CONVOLUTION, "activation": "relu"}]).assert_ok()
    found = harness("estimate", path, "--device", "board", "--allow-partial", "--json").data
    (network,) = found["networks"]
    by_name = {one["name"]: one for one in network["layers"]}
    assert by_name["conv"]["source"] == "measured"
    assert by_name["conv"]["latency_s"] == pytest.approx(5e-4)
    assert by_name["before"]["source"] == "unknown"


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        ({"op": "Foo", "input": [1, 8]}, "opset 17"),
        ({"op": "Conv", "input": [1, 8]}, "too few axes"),
        ({"op": "Conv", "input": [1, 8, 4, 4]}, "channels_out"),
        ({"op": "Conv", "input": [1, 8, 4, 4], "channels_out": 9, "groups": 4}, "do not divide"),
        ({"op": "Conv", "input": [1, 8, 4, 4], "channels_out": 8, "kernel": 0}, "kernel is 0"),
        ({"op": "Conv", "input": [1, 8, 4, 4], "channels_out": 8, "kernel": [3, 3, 3]}, "2 axes"),
        ({"op": "Conv", "input": [1, 8, 0, 4], "channels_out": 8}, "size of 0"),
        ({"op": "Conv", "input": [1, 8, 4, 4], "channels_out": 8, "dtype": "int8"}, "nodes of their network"),
        ({"op": "Conv", "input": [1, 8, 4, 4], "channels_out": 8, "activation": "=1+1"}, "activation"),
        ({"op": "Conv", "input": [1 << 31, 8, 1 << 31, 4], "channels_out": 8}, "bytes"),
        ({"op": "Reshape", "input": [1, 8], "integers": [[7]]}, "reshapes"),
        ({"op": "Relu", "input": [1, 8], "attributes": {"alpha": 1}}, "alpha"),
        ({"op": "Identity", "input": [1, 8]}, "nothing to measure"),
        ({"op": "NonZero", "input": [1, 8]}, "depends"),
        ({"op": "If", "input": [1, 8]}, "not valid"),
        ({"op": "MatMul", "input": [1, 8]}, "columns"),
    ],
)
def test_what_is_no_layer_is_refused_with_the_reason(section: dict[str, Any], reason: str) -> None:
    """Operators that do not exist, shapes that do not fit and tensors that no device has are no layers."""
    with pytest.raises(BadRow, match=reason):
        key_of(section)


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ({"op": "Resize", "input": [1, 8, 4, 4], "integers": [[1, 8, 8, 8]]}, "t0:float32[1,8,8,8]"),
        ({"op": "Reshape", "input": [1, 8, 4, 4], "integers": [[1, -1]]}, "c:int64[2]=1,-1"),
        ({"op": "MatMul", "inputs": [[4, 9, 16], [4, 16, 9]]}, "MatMul(x0,x1)"),
        ({"op": "LayerNormalization", "input": [1, 9, 16]}, "c:float32[16],c:float32[16]"),
        ({"op": "Gemm", "input": [1, 16], "columns": 8, "bias": False}, "Gemm(x0,c:float32[8,16])"),
        ({"op": "MatMul", "input": [1, 9, 16], "columns": 8, "activation": "Gelu"}, "Erf(t2)"),
        ({"op": "ConvTranspose", "input": [1, 8, 4, 4], "channels_out": 4, "kernel": 2, "stride": 2}, "[1,4,8,8]"),
        ({"op": "Conv", "input": [1, 8, 16], "channels_out": 4, "kernel": 3, "padding": "same"}, "pads=1,1"),
        ({"op": "Add", "input": [1, 8, 4, 4]}, "Add(x0,x1)"),
        ({"op": "AveragePool", "input": [1, 8, 4, 4], "kernel": 2, "stride": 2}, "[1,8,2,2]"),
    ],
)
def test_operators_of_the_page_have_keys(section: dict[str, Any], key: str) -> None:
    """Each operator with words of its own becomes a key with what it reads and writes."""
    assert key in key_of(section)


def test_the_table_keeps_where_its_latencies_come_from(harness: Harness) -> None:
    """`lut show` has the whole provenance, and each entry the lines of its rows."""
    stated = {"tool": "trtexec", "hardware": "X", "date": "2026-01-02", "licence": "MIT", "notes": "n", "source": "s"}
    run_import(harness, [row(), row(k=64), row(ms=0.7)], provenance=stated).assert_ok()
    found = harness("lut", "show", "--device", "board", "--json").data
    assert found["fingerprint"].items() >= stated.items()
    assert {"file", "file_sha256", "mapping_sha256", "unit", "statistic"} <= found["fingerprint"].keys()
    assert found["method"] == "import"
    assert sorted(entry["probe"] for entry in found["entries"]) == ["line 2,4", "line 3"]
    assert {entry["visit"] for entry in found["entries"]} == {"imported"}
    assert "a tool" not in json.dumps(found)
