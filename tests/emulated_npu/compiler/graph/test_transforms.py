"""DFT and STFT of constant length are products by constant matrices."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from networks_on_npu import execute, network_of, relative_error
from onnx import TensorProto, helper
from small_models import functions, imported, model, node, values

from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.emulator_errors import UnsupportedOperator
from device_agents.emulated_npu.machine import find_machine


@given(st.data(), st.integers(1, 2), st.lists(st.integers(2, 7), min_size=2, max_size=4))
@settings(max_examples=48)
def test_fourier_transforms(data: st.DataObject, parts: int, shape: list[int]) -> None:
    """Real and complex elements, along any axis, to any length, and back."""
    axis = data.draw(st.integers(0, len(shape) - 1))
    flags: dict[str, Any] = {"onesided": data.draw(st.integers(0, 1))} if parts == 1 else {}
    flags["inverse"] = 0 if flags.get("onesided") else data.draw(st.integers(0, 1))
    constants = {"a": np.array(axis), "n": np.array(data.draw(st.integers(2, 9)))}
    made = node("DFT", data.draw(st.sampled_from(["x n a", "x - a"])), "y", **flags)
    x = values((*shape, parts))
    imported(model([made], {"x": x}, constants, opset=20), {"x": x})


@given(st.data(), st.integers(1, 3), st.integers(2, 8), st.integers(1, 4))
@settings(max_examples=24)
def test_spectrograms(data: st.DataObject, batch: int, length: int, step: int) -> None:
    """Frames at any step, with a window or without, in one side or two."""
    x = values((batch, data.draw(st.integers(length, 24)), 1))
    constants = {"s": np.array(step), "w": values((length,), 1), "l": np.array(length)}
    inputs = data.draw(st.sampled_from(["x s w", "x s w l", "x s - l"]))
    made = node("STFT", inputs, "y", onesided=data.draw(st.integers(0, 1)))
    imported(model([made], {"x": x}, constants), {"x": x})


def test_a_spectrogram_runs() -> None:
    """A magnitude spectrum of one second of sound on the emulated NPU, with a Hann window that the model computes."""
    constants = {"s": np.array(160), "n": np.array(400)}
    nodes = [
        node("HannWindow", "n", "w"),
        node("STFT", "x s w", "f"),
        node("ReduceSumSquare", "f", "y", axes=[3], keepdims=0),
    ]
    network = network_of(nodes, {"x": values((1, 16000, 1))}, constants, ["y"])
    compiled = compile_model(network.model, find_machine("edge"))
    assert "CONVOLVE" in functions(compiled.graph)
    assert relative_error(execute(compiled, network), network.expected) <= 1e-4


def test_a_length_that_the_network_computes_is_refused() -> None:
    """The matrix depends on the length."""
    feeds = {"x": values((1, 5, 1)), "n": np.array(4)}
    proto = model([node("DFT", "x n", "y")], feeds)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 2]))
    with pytest.raises(UnsupportedOperator) as refusal:
        import_model(proto)
    assert "dft_length is not a constant" in refusal.value.why
