"""GridSample, AffineGrid, Col2Im and MaxUnpool; DFT and STFT of constant length."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st
from networks_on_npu import execute, network_of, relative_error
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from reference_graph import run_graph
from small_models import by_runtime, functions, imported, model, node, values

from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.emulator_errors import UnsupportedOperator
from device_agents.emulated_npu.machine import find_machine


@given(st.data(), st.integers(0, 1), st.sampled_from(["zeros", "border", "reflection"]), st.booleans())
@settings(max_examples=30)
def test_sampling_by_a_grid(data: st.DataObject, align: int, padding: str, computed: bool) -> None:
    """Every mode and padding over two and three axes, far outside of the map too; the grid is constant or an input."""
    axes = data.draw(st.integers(2, 3))
    mode = data.draw(st.sampled_from(["linear", "nearest", "cubic"] if axes == 2 else ["linear", "nearest"]))
    sizes = [data.draw(st.integers(2, 5)) for _ in range(axes)]
    results = [data.draw(st.integers(1, 4)) for _ in range(axes)]
    batch, channels = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 3))
    grid = values((batch, *results, axes), data.draw(st.integers(0, 99)), -2.5, 2.5)
    made = node("GridSample", "x g", "y", mode=mode, padding_mode=padding, align_corners=align)
    fed, constants = {"x": values((batch, channels, *sizes))}, {"g": grid}
    if computed:
        fed, constants = {**fed, **constants}, {}
    proto = model([made], fed, constants, opset=20)
    found = run_graph(import_model(proto), fed, {})["y"]
    np.testing.assert_allclose(found, by_runtime(proto, fed)[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("padding", ["zeros", "border"])
def test_sampling_of_integers(padding: str) -> None:
    """The nearest integers are picked as numbers are; between integers there is nothing to pick."""
    x, grid = np.arange(40, dtype=np.int32).reshape(1, 2, 4, 5), values((1, 3, 4, 2), 1, -1.5, 1.5)
    fed = {"x": x, "g": grid}
    made = node("GridSample", "x g", "y", mode="nearest", padding_mode=padding)
    found = run_graph(import_model(model([made], fed, opset=20)), fed, {})["y"]
    of_numbers = {**fed, "x": x.astype(np.float32)}
    np.testing.assert_array_equal(found, by_runtime(model([made], of_numbers, opset=20), of_numbers)[0])
    with pytest.raises(UnsupportedOperator) as refusal:
        import_model(model([node("GridSample", "x g", "y", padding_mode=padding)], fed, opset=20))
    assert "int32 in mode 'linear'" in refusal.value.why


@pytest.mark.parametrize("op", ["GridSample", "ScatterND"])
@pytest.mark.parametrize("computed", [False, True])
def test_the_long_name_of_the_domain_of_onnx(op: str, computed: bool) -> None:
    """An operator of domain ai.onnx is that of the domain without a name, by constant or computed places."""
    places = {"GridSample": {"g": values((1, 3, 3, 2))}, "ScatterND": {"g": np.array([[0], [1]])}}[op]
    tensors = {"GridSample": {"x": values((1, 2, 4, 4))}, "ScatterND": {"x": values((3, 2)), "u": values((2, 2), 1)}}[
        op
    ]
    made = node(op, "x g u" if "u" in tensors else "x g", "y")
    made.domain = "ai.onnx"
    fed, constants = (tensors | places, {}) if computed else (tensors, places)
    proto = model([made], fed, constants, opset=20)
    proto.opset_import[0].domain = "ai.onnx"
    imported(proto, fed)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (1, 2, 3, 4, 2)])
def test_affine_grids(size: tuple[int, ...], align: int) -> None:
    """The grid of a constant size is one product of matrices."""
    axes = len(size) - 2
    theta = values((size[0], axes, axes + 1))
    proto = model([node("AffineGrid", "t s", "y", align_corners=align)], {"t": theta}, {"s": np.array(size)}, opset=20)
    assert functions(imported(proto, {"t": theta}, tolerance=1e-5))[0] == "CONVOLVE"


@given(st.data(), st.integers(1, 3))
@settings(max_examples=48)
def test_columns_to_images(data: st.DataObject, count: int) -> None:
    """Blocks of any size, stride, dilation and padding are added where they overlap, as ONNX defines it."""
    image, block, strides, dilations = (
        [data.draw(st.integers(1, most)) for _ in range(count)] for most in (6, 3, 3, 2)
    )
    pads = [data.draw(st.integers(0, 1)) for _ in range(2 * count)]
    rows = list(zip(image, block, strides, dilations, pads[:count], pads[count:], strict=True))
    counts = [
        (size + first + last - (taps - 1) * apart - 1) // step + 1 for size, taps, step, apart, first, last in rows
    ]
    assume(min(counts) > 0)
    x = values((data.draw(st.integers(1, 2)), 2 * int(np.prod(block)), int(np.prod(counts))))
    attributes: dict[str, Any] = {"strides": strides, "dilations": dilations, "pads": pads}
    constants = {"i": np.array(image), "b": np.array(block)}
    proto = model([node("Col2Im", "x i b", "y", **attributes)], {"x": x}, constants, opset=18)
    try:
        import_model(proto)
    except UnsupportedOperator as error:
        assert "leaves out all" in error.why
        return
    # ONNX Runtime adds what lies in trailing padding to the image.
    (wanted,) = ReferenceEvaluator(proto).run(None, {"x": x})
    assert isinstance(wanted, np.ndarray)
    found = run_graph(import_model(proto), {"x": x}, {})["y"]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("output_shape", [None, (1, 2, 7, 9)])
def test_unpooling_by_constant_indices(output_shape: tuple[int, ...] | None) -> None:
    """Elements return to the places where they were the largest; all others are zero."""
    x = values((1, 2, 3, 4))
    places = np.random.default_rng(0).permutation(2 * 6 * 8)[: x.size].reshape(x.shape)
    constants = {"i": places}
    inputs = "x i"
    if output_shape is not None:
        constants["s"], inputs = np.array(output_shape), "x i s"
    proto = model([node("MaxUnpool", inputs, "y", kernel_shape=[2, 2], strides=[2, 2])], {"x": x}, constants)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, output_shape or (1, 2, 6, 8)))
    found = run_graph(import_model(proto), {"x": x}, {})["y"]
    wanted = np.zeros((1, 2, 6, 8), np.float32)
    wanted.reshape(-1)[places.reshape(-1)] = x.reshape(-1)
    np.testing.assert_array_equal(found[:, :, :6, :8], wanted)
    assert not found[:, :, 6:].any()
    assert not found[..., 8:].any()


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
