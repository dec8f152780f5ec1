"""Weights that are inputs of a file as well: a runtime may be given others, so it does not treat them as constants."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto
from onnx_models import IMAGE, WEIGHT, model_of, node, prepared

from device_agents import arrays
from harness.host_runtime import open_session, session_options
from harness.network.assemble import assemble_network
from harness.network.fusion.fusion_rules import DEFAULT_RULES
from harness.network.layers import cut
from harness.network.reading.batch import rebatch
from harness.network.reading.network_codec import decode_network, encode_network

FACTORS = {name: np.full(4, 0.5, np.float32) for name in "smbv"}
TABLE = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)


def convolution(ir_version: int) -> ModelProto:
    """Return a convolution with batch normalisation, all of whose weights are listed as inputs."""
    constants = {"w": WEIGHT, **FACTORS}
    nodes = [node("Conv", "x w", "c", pads=[1] * 4), node("BatchNormalization", "c s b m v", "y")]
    return model_of(nodes, {"x": IMAGE}, constants=constants, ir_version=ir_version, listed=list(constants))


def product(ir_version: int) -> ModelProto:
    """Return a product with a transposed matrix that is listed as an input."""
    nodes = [node("Transpose", "w", "t", perm=[1, 0]), node("MatMul", "x t", "y")]
    return model_of(nodes, {"x": (2, 6)}, constants={"w": TABLE}, ir_version=ir_version, listed=["w"])


def vectors(ir_version: int) -> ModelProto:
    """Return a scaled product of chosen rows in another shape, with scale, indices and shape listed as inputs."""
    constants = {"s": np.float32([2]), "i": np.int64(0), "j": np.int64(1), "to": np.int64([2, 8])}
    nodes = [node("Gather", "x i", "a"), node("Gather", "x j", "b"), node("Transpose", "b", "bt", perm=[1, 0])]
    nodes += [node("Mul", "bt s", "c"), node("MatMul", "a c", "p"), node("Reshape", "p to", "y")]
    return model_of(nodes, {"x": (2, 4, 6)}, constants=constants, ir_version=ir_version, listed=list(constants))


def executed(content: bytes, weights: dict[str, Any], folder: Path) -> list[str]:
    """Return the operators that ONNX Runtime makes of a model, sorted."""
    options = session_options(threads=1, level="ENABLE_ALL")
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "optimised.bin")
    open_session(content, options, weights)
    made = onnx.load(options.optimized_model_filepath, load_external_data=False)
    return sorted(one.op_type for one in made.graph.node)


@pytest.mark.parametrize("build", [convolution, product, vectors])
@pytest.mark.parametrize("ir_version", [3, 8])
def test_the_runtime_optimises_what_is_sent_as_it_optimises_the_file(
    build: Any, ir_version: int, tmp_path: Path
) -> None:
    """What is sent has the operators of the file, also after the optimizers of ONNX Runtime."""
    model = build(ir_version)
    sent = assemble_network(prepared(model))
    weights = {spec.name: arrays.make(spec.wire()) for spec in sent.weights}
    assert executed(sent.content, weights, tmp_path) == executed(model.SerializeToString(), {}, tmp_path)


def test_layers_of_replaceable_weights_have_keys_of_their_own() -> None:
    """Such layers run other kernels, so their latencies are not those of layers with constant weights."""
    keys = {ir: [layer.key.text for layer in cut(prepared(convolution(ir)), ())] for ir in (3, 8)}
    for constant, replaceable in zip(keys[3], keys[8], strict=True):
        assert constant == replaceable.replace("?", "") != replaceable


def test_arithmetic_on_replaceable_weights_takes_time() -> None:
    """A runtime transposes such a matrix in each run; it is a part of the layer that reads it."""
    assert [one.op for one in prepared(product(3)).nodes] == ["MatMul"]
    network = prepared(product(8))
    assert [one.op for one in network.nodes] == ["Transpose", "MatMul"] and network.inputs == ("x",)
    (layer,) = cut(network, DEFAULT_RULES)
    assert "Transpose" in layer.key.text


def test_replaceable_weights_survive_another_process_and_batch() -> None:
    """The process that reads a file hands them back as such, and another batch leaves their sizes alone."""
    network, _ = decode_network(encode_network(prepared(convolution(8))))
    assert network.constants["w"].replaceable
    wider = rebatch(network, 3).network
    assert wider.constants["w"].replaceable and wider.types["x"].shape[0] == 3
    assert wider.types["w"].shape == WEIGHT.shape
