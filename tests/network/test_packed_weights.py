"""Weights of four bits: two in a byte, generated on the device."""

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx_models import FLOAT, prepared, run_assembled

from device_agents import arrays
from harness.errors import UnsupportedType
from harness.network.assemble import assemble_network
from harness.network.network import PACKED

ROWS, COLUMNS, BLOCK = 64, 33, 16


def quantised(kind: int, domain: str = "", *, blocks: bool = False) -> ModelProto:
    """Return a product with a matrix of a type, with a scale for each block of rows or one for all."""
    name = TensorProto.DataType.Name(kind).lower()
    weights = helper.make_tensor("w", kind, (ROWS, COLUMNS), np.arange(ROWS * COLUMNS) % 7)
    scale = numpy_helper.from_array(np.full((ROWS // BLOCK, COLUMNS) if blocks else (), 0.1, np.float32), "s")
    attributes = {"axis": 0, "block_size": BLOCK} if blocks else {}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], f"{name} to numbers", domain=domain, **attributes),
        helper.make_node("MatMul", ["x", "d"], ["y"], "product"),
    ]
    values = [helper.make_tensor_value_info(*each) for each in (("x", FLOAT, (1, ROWS)), ("y", FLOAT, (1, COLUMNS)))]
    graph = helper.make_graph(nodes, "file", values[:1], values[1:], [weights, scale])
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.UINT4])
@pytest.mark.parametrize(("domain", "blocks"), [("", False), ("", True), ("com.microsoft", False)])
def test_weights_of_four_bits_are_generated(kind: int, domain: str, blocks: bool) -> None:
    """They are sent as their type and shape, take half a byte each, and the runtime computes with them."""
    sent = assemble_network(prepared(quantised(kind, domain, blocks=blocks)))
    assert sent.weight_bytes == ROWS * COLUMNS // 2
    assert len(sent.content) < sent.weight_bytes
    _, (result,) = run_assembled(sent, "ENABLE_ALL")
    assert np.isfinite(result).all() and np.ptp(result) > 0


def test_host_and_device_pack_alike() -> None:
    """The agent runs without the host's code, so both list the packed types."""
    assert arrays.PACKED == PACKED


def test_results_of_four_bits_are_refused() -> None:
    """A device neither takes nor hands back elements of less than a byte."""
    model = quantised(TensorProto.INT4)
    model.graph.node[0].CopyFrom(helper.make_node("Cast", ["x"], ["four"], "cast", to=TensorProto.INT4))
    model.graph.node.insert(1, helper.make_node("Cast", ["four"], ["back"], "back", to=FLOAT))
    model.graph.node[2].input[:] = ["back", "m"]
    model.graph.initializer.append(numpy_helper.from_array(np.ones((ROWS, COLUMNS), np.float32), "m"))
    with pytest.raises(UnsupportedType, match="int4"):
        prepared(model)
