"""`harness npu` on files: compiling and running have limits on memory and processor time."""

import errno
import itertools
import signal
import threading
from pathlib import Path

import npu_inputs
import numpy as np
import pytest
from npu_command import Npu
from onnx import ModelProto, TensorProto, helper, numpy_helper


def _model(nodes: list[object], size: list[int], constants: dict[str, list[int]] | None = None) -> ModelProto:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name in ("x", "y"))
    held = [numpy_helper.from_array(np.array(value), name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", [x], [y], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _long(count: int) -> ModelProto:
    """A chain of additions, each of which is a layer to compile."""
    names = ["x", *(f"t{index}" for index in range(count - 1)), "y"]
    return _model([helper.make_node("Add", [a, "x"], [b]) for a, b in itertools.pairwise(names)], [1, 8])


def _heavy(width: int) -> ModelProto:
    """A product with a matrix that the file does not hold: a run makes its values."""
    nodes = [helper.make_node("ConstantOfShape", ["size"], ["w"]), helper.make_node("MatMul", ["x", "w"], ["y"])]
    return _model(nodes, [1, width], {"size": [width, width]})


@pytest.fixture(autouse=True)
def without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget threads that other tests have left in this process: a command in a program of its own has none."""
    monkeypatch.setattr(threading, "active_count", lambda: 1)


def test_compiling_too_many_nodes_ends_in_time(npu: Npu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may take the processor time that the environment states; the error names the file and the variable."""
    path = npu_inputs.save(_long(12_000), tmp_path / "long.onnx")
    monkeypatch.setenv("HARNESS_NPU_SECONDS", "1")
    npu.refuses(3, "compile", path, mentions=("long.onnx", "processor time", "HARNESS_NPU_SECONDS=10"))


def test_values_of_large_weights_are_not_made(npu: Npu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of two hundred bytes may not take the memory of the host to run."""
    path = npu_inputs.save(_heavy(10_000), tmp_path / "heavy.onnx")
    monkeypatch.setenv("HARNESS_NPU_MEMORY", "300M")
    npu.refuses(3, "run", path, mentions=("heavy.onnx takes more than 300", "of memory", "HARNESS_NPU_MEMORY=2G"))


def test_variable_that_is_no_size_ends_the_command(npu: Npu, network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that cannot be read is an error, not a missing limit."""
    monkeypatch.setenv("HARNESS_NPU_MEMORY", "plenty")
    npu.refuses(3, "compile", network, mentions=("HARNESS_NPU_MEMORY is not a size",))
    assert npu("compile", "builtin:dscnn").code == 0, "what ships with the program has no limits"


def test_library_that_crashes_is_named_by_its_signal(npu: Npu, network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash while a file is compiled ends the process with limits alone."""
    monkeypatch.setattr("harness.npu.loading.compile_reference", lambda *_: signal.raise_signal(signal.SIGSEGV))
    npu.refuses(3, "compile", network, mentions=("SIGSEGV",))


def test_a_full_disk_is_named_as_elsewhere(npu: Npu, network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process with limits reports which error of the system ended it."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("harness.npu.loading.compile_reference", full)
    npu.refuses(3, "compile", network, mentions=("No space left on device", "Free space on the disk"))
