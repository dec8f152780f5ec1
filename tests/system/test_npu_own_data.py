"""`harness npu run` with a network's own weights, inputs from files, and outputs written to files."""

import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from command_line import Harness
from onnx import TensorProto, helper, numpy_helper

from harness.npu.own_data import write_outputs


def _save(folder: Path, *, sharp: float = 1.0) -> Path:
    """Save a convolution with stored and computed weights, a product, and a softmax of the products times `sharp`."""
    draw = np.random.default_rng(5)
    weights = {
        "w": draw.normal(size=(8, 3, 3, 3)),
        "half": draw.normal(size=(8 * 36, 10)) * sharp,
        "zeros": np.zeros((1, 10)),
    }
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["c"], kernel_shape=[3, 3]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("Add", ["half", "half"], ["twice"]),
        helper.make_node("Gemm", ["f", "twice", "zeros"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["classes/p"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "own",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("classes/p", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    path = folder / "own.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_outputs_are_those_of_the_file_on_the_given_input(harness: Harness, tmp_path: Path) -> None:
    """The written output is ONNX Runtime's, of the file itself, on the input from the .npy file."""
    path = _save(tmp_path, sharp=0.01)
    image = np.random.default_rng(1).normal(size=(1, 3, 8, 8)).astype(np.float32)
    np.save(tmp_path / "image.npy", image)
    out = tmp_path / "a" / "b"
    run = harness("npu", "run", path, "--input", f"image={tmp_path / 'image.npy'}", "--output-dir", out)
    run.assert_ok()
    (expected,) = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"image": image})
    written = np.load(out / "classes_p.npy")
    assert written.shape == (1, 10) and np.abs(written - expected).max() < 1e-5
    assert len(np.unique(written)) > 5


@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.UINT4])
def test_own_weights_of_four_bits_are_computed_with(harness: Harness, tmp_path: Path, kind: int) -> None:
    """Weights that share bytes in the file give the product with their values."""
    rows, columns = 64, 33
    path, image = tmp_path / "four.onnx", np.random.default_rng(1).normal(size=(1, rows)).astype(np.float32)
    np.save(tmp_path / "image.npy", image)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "scale"], ["d"]),
        helper.make_node("MatMul", ["image", "d"], ["y"]),
    ]
    shapes = {"image": [1, rows], "y": [1, columns]}
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    held = np.arange(rows * columns).reshape(rows, columns) % 16 - (8 if kind == TensorProto.INT4 else 0)
    weights = helper.make_tensor("w", kind, held.shape, held)
    scale = numpy_helper.from_array(np.array(0.1, np.float32), "scale")
    graph = helper.make_graph(nodes, "four", values[:1], values[1:], [weights, scale])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    given = f"image={tmp_path / 'image.npy'}"
    harness("npu", "run", path, "--input", given, "--output-dir", tmp_path).assert_ok()
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), image @ (held * np.float32(0.1)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rate", [8000, 16000])
def test_weights_of_the_chosen_branch_are_those_of_the_file(harness: Harness, tmp_path: Path, rate: int) -> None:
    """Where --dim chooses the branch of an If, the branch computes with the weights that it stores and computes."""
    draw, rows, columns = np.random.default_rng(3), 64, 33
    result = helper.make_tensor_value_info("p", TensorProto.FLOAT, [1, columns])

    def branch(name: str) -> onnx.GraphProto:
        nodes = [
            helper.make_node("Add", ["w", "w"], ["twice"]),
            helper.make_node("MatMul", ["image", "twice"], ["m"]),
            helper.make_node("Relu", ["m"], ["p"]),
        ]
        weights = numpy_helper.from_array(draw.normal(size=(rows, columns)).astype(np.float32), "w")
        return helper.make_graph(nodes, name, [], [result], [weights])

    nodes = [
        helper.make_node("Equal", ["rate", "wide"], ["is_wide"]),
        helper.make_node("If", ["is_wide"], ["y"], then_branch=branch("wide"), else_branch=branch("narrow")),
    ]
    inputs = [
        helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, rows]),
        helper.make_tensor_value_info("rate", TensorProto.INT64, []),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, columns])
    graph = helper.make_graph(nodes, "rates", inputs, [output], [numpy_helper.from_array(np.array(16000), "wide")])
    path, image = tmp_path / "rates.onnx", draw.normal(size=(1, rows)).astype(np.float32)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    np.save(tmp_path / "image.npy", image)
    given = ("--dim", f"rate={rate}", "--input", f"image={tmp_path / 'image.npy'}", "--output-dir", tmp_path)
    harness("npu", "run", path, *given).assert_ok()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"image": image, "rate": np.array(rate)})
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected, rtol=1e-4, atol=1e-4)


def test_files_have_the_names_of_the_outputs(harness: Harness, tmp_path: Path) -> None:
    """Every output has its name in the file: copies, inputs, constants, results of a branch, parts of a sequence."""
    shapes = {"image": [1, 8], "copy": [1, 8], "same": [1, 8], "size": [2], "y": [1, 8], "y/z": [1, 8], "y_z": [1, 8]}
    kinds = {"size": TensorProto.INT64}
    values = {name: (kinds.get(name, TensorProto.FLOAT), shape) for name, shape in shapes.items()}
    tensors = {name: helper.make_tensor_value_info(name, *value) for name, value in values.items()}
    result = helper.make_tensor_value_info("r", TensorProto.FLOAT, [1, 8])
    branch = helper.make_graph([helper.make_node("Identity", ["a"], ["r"])], "branch", [], [result])
    nodes = [
        helper.make_node("Relu", ["image"], ["a"]),
        helper.make_node("Neg", ["image"], ["b"]),
        helper.make_node("Identity", ["a"], ["copy"]),
        helper.make_node("Identity", ["image"], ["same"]),
        helper.make_node("Shape", ["image"], ["size"]),
        helper.make_node("If", ["yes"], ["y"], then_branch=branch, else_branch=branch),
        helper.make_node("Identity", ["b"], ["y/z"]),
        helper.make_node("Exp", ["b"], ["y_z"]),
        helper.make_node("SequenceConstruct", ["b", "a"], ["parts"]),
    ]
    parts = helper.make_tensor_sequence_value_info("parts", TensorProto.FLOAT, [1, 8])
    outputs = [*(tensors[name] for name in shapes if name != "image"), parts]
    graph = helper.make_graph(nodes, "g", [tensors["image"]], outputs, [numpy_helper.from_array(np.array(True), "yes")])
    path, image = tmp_path / "named.onnx", np.random.default_rng(1).normal(size=(1, 8)).astype(np.float32)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    np.save(tmp_path / "image.npy", image)
    out = tmp_path / "out"
    harness("npu", "run", path, "--input", f"image={tmp_path / 'image.npy'}", "--output-dir", out).assert_ok()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    *plain, sequence = session.run(None, {"image": image})
    files = ("copy", "same", "size", "y", "y_z_2", "y_z", "parts_0", "parts_1")
    assert {file.stem for file in out.iterdir()} == {*files}
    for file, expected in zip(files, [*plain, *sequence], strict=True):
        np.testing.assert_allclose(np.load(out / f"{file}.npy"), expected, rtol=1e-5, atol=1e-6)


def test_other_inputs_give_other_outputs(harness: Harness, tmp_path: Path) -> None:
    """The input of the file is used, not a generated one."""
    path = _save(tmp_path, sharp=0.01)
    found = []
    for seed in (1, 2):
        np.save(tmp_path / "image.npy", np.random.default_rng(seed).normal(size=(1, 3, 8, 8)).astype(np.float32))
        given = ("--input", f"image={tmp_path / 'image.npy'}", "--output-dir", tmp_path / "out")
        harness("npu", "run", path, *given).assert_ok()
        found.append(np.load(tmp_path / "out" / "classes_p.npy"))
    assert not np.array_equal(*found)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--input", "picture=image.npy"), "no input picture"),
        (("--input", "image"), "not NAME=FILE.npy"),
        (("--input", "image=absent.npy"), "cannot be read"),
        (("--input", "image=pipe.npy"), "not a plain file"),
        (("--input", "image=own.onnx"), "is not a .npy file"),
        (("--input", "image=wide.npy"), "float32[1, 3, 8, 9]"),
        (("--input", "image=double.npy"), "float64[1, 3, 8, 8]"),
        (("--input", "image=image.npy", "--no-values"), "need values"),
        (("--input", "image=image.npy", "--preset", "nvdla-256"), "computes no values"),
        (("--output-dir", "image.npy"), "cannot be written"),
    ],
)
def test_data_that_does_not_fit_is_refused(harness: Harness, given: tuple[str, ...], message: str) -> None:
    """Unknown inputs, other shapes and types, files that are no arrays, and machines without values are errors."""
    _save(harness.workspace)
    os.mkfifo(harness.workspace / "pipe.npy")
    np.save(harness.workspace / "image.npy", np.zeros((1, 3, 8, 8), np.float32))
    np.save(harness.workspace / "wide.npy", np.zeros((1, 3, 8, 9), np.float32))
    np.save(harness.workspace / "double.npy", np.zeros((1, 3, 8, 8)))
    run = harness("npu", "run", "own.onnx", *given)
    assert run.code in (2, 3)
    assert message in " ".join(run.stderr.split())


def test_a_program_file_has_no_data_of_its_own(harness: Harness, tmp_path: Path) -> None:
    """A program file without an image has no weights, so that it takes neither inputs nor a folder for outputs."""
    program = tmp_path / "own.npu"
    harness("npu", "compile", _save(tmp_path), "-o", program).assert_ok()
    run = harness("npu", "run", program, "--output-dir", tmp_path / "out")
    assert run.code == 2 and "need weights" in run.stderr


def test_a_saturated_output_is_compared_in_front_of_its_softmax(harness: Harness, tmp_path: Path) -> None:
    """A softmax with one winner shows nothing of the layers before it, so what it reads is compared, too."""
    for sharp, compared in ((0.01, ["classes/p"]), (100.0, ["classes/p", "logits"])):
        run = harness("npu", "run", _save(tmp_path, sharp=sharp), "--output-dir", tmp_path / "out", "--json")
        found = run.data
        assert found["compared"] == compared
        assert found["max_rel_error"] < 1e-5
    assert found["max_rel_error"] > 0


def test_each_of_many_outputs_has_a_file_of_its_own(tmp_path: Path) -> None:
    """Outputs whose names need no replaced character keep them, and all others have names of their own."""
    outputs = {name: np.array(at) for at, name in enumerate(["a/b", "a:b", "a_b_2", "a/ b", "a_b", "a__b"])}
    write_outputs(tmp_path, outputs)
    found = {file.stem: int(np.load(file)) for file in tmp_path.iterdir()}
    assert found == {"a_b_2": 2, "a_b": 4, "a__b": 5, "a_b_3": 0, "a_b_4": 1, "a_b_5": 3}


def test_inputs_and_constants_share_no_name(harness: Harness, tmp_path: Path) -> None:
    """An input called as a constant of the compiled network keeps its name, also where it is an output of the file."""
    shape, kind = [1, 4], TensorProto.FLOAT
    given = [helper.make_tensor_value_info(name, kind, shape) for name in ("k0", "q/0")]
    results = [helper.make_tensor_value_info(name, kind, shape) for name in ("y", "same", "other")]
    nodes = [
        helper.make_node("Clip", ["k0", "low", "high"], ["r"]),
        helper.make_node("Add", ["r", "q/0"], ["y"]),
        helper.make_node("Neg", ["r"], ["n"]),
        helper.make_node("SequenceConstruct", ["n", "r"], ["q"]),
        helper.make_node("Identity", ["k0"], ["same"]),
        helper.make_node("Identity", ["q/0"], ["other"]),
    ]
    bounds = [numpy_helper.from_array(np.array(value, np.float32), name) for name, value in (("low", 0), ("high", 1))]
    outputs = [*results, helper.make_tensor_sequence_value_info("q", kind, shape)]
    path = tmp_path / "named.onnx"
    graph = helper.make_graph(nodes, "g", given, outputs, bounds)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    values = {name: np.random.default_rng(at).normal(size=shape).astype("f") for at, name in enumerate(("k0", "q/0"))}
    np.save(tmp_path / "k.npy", values["k0"])
    np.save(tmp_path / "q.npy", values["q/0"])
    inputs = ("--input", f"k0={tmp_path / 'k.npy'}", "--input", f"q/0={tmp_path / 'q.npy'}")
    harness("npu", "run", path, *inputs, "--output-dir", tmp_path / "out").assert_ok()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    *plain, parts = session.run(None, values)
    for file, expected in zip(("y", "same", "other", "q_0", "q_1"), [*plain, *parts], strict=True):
        np.testing.assert_allclose(np.load(tmp_path / "out" / f"{file}.npy"), expected, rtol=1e-5, atol=1e-6)
