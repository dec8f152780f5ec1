"""Program files with a memory image compute values: those of their network, and others after the program was edited."""

import re
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from command_line import Harness
from test_npu_own_data import _save as save_network

from device_agents.emulated_npu.unit_settings import Activation

_RELU = re.compile(r"(?<=modes, )(0x[0-9a-f]+)(?=  # activation RELU)")
IMAGE = np.random.default_rng(1).normal(size=(1, 3, 8, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Harness:
    """A folder with own.onnx, its program own.npu, its constants own.bin, and an input image.npy."""
    harness = Harness.in_folder(tmp_path_factory.mktemp("compiled"))
    save_network(harness.workspace, sharp=0.01)
    np.save(harness.workspace / "image.npy", IMAGE)
    harness("npu", "compile", "own.onnx", "-o", "own.npu", "--image", "own.bin").assert_ok()
    return harness


def outputs(harness: Harness, program: str) -> np.ndarray:
    """Return what a program writes for the image."""
    given = ("--image", "own.bin", "--input", "image=image.npy", "--output-dir", "out")
    harness("npu", "run", program, *given).assert_ok()
    return np.asarray(np.load(harness.workspace / "out" / "classes_p.npy"))


def test_a_program_file_has_the_values_of_its_network(compiled: Harness) -> None:
    """Code, constants and input from three files give ONNX Runtime's outputs of the network."""
    network = onnxruntime.InferenceSession(compiled.workspace / "own.onnx", providers=["CPUExecutionProvider"])
    (expected,) = network.run(None, {"image": IMAGE})
    assert np.abs(outputs(compiled, "own.npu") - expected).max() < 1e-5


def test_an_edited_program_shows_changed_values(compiled: Harness) -> None:
    """Without the activation of the convolution, the program writes what the network without its Relu computes."""
    listing = compiled("npu", "disassemble", "own.npu").assert_ok().stdout
    edited, changed = _RELU.subn(lambda found: f"{int(found[1], 16) - Activation.RELU:#x}", listing)
    assert changed == 1, listing
    (compiled.workspace / "edited.txt").write_text(edited)
    compiled("npu", "assemble", "edited.txt", "--base", "own.npu", "-o", "edited.npu").assert_ok()
    assert not np.array_equal(outputs(compiled, "own.npu"), outputs(compiled, "edited.npu"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("own.npu", "--input", "image=image.npy"), "need weights"),
        (("own.npu", "--image", "own.bin"), "needs --output-dir"),
        (("own.npu", "--image", "own.bin", "--output-dir", "out"), "has no values"),
        (("own.npu", "--image", "absent.bin", "--input", "image=image.npy", "--output-dir", "out"), "cannot be read"),
        (("own.npu", "--image", "large.bin", "--input", "image=image.npy", "--output-dir", "out"), "larger than"),
        (("own.onnx", "--image", "own.bin", "--output-dir", "out"), "needs a program file"),
    ],
)
def test_files_that_do_not_fit_are_refused(compiled: Harness, given: tuple[str, ...], message: str) -> None:
    """Missing files and inputs, and images larger than the program's memory, are errors with a cause."""
    with Path(compiled.workspace / "large.bin").open("wb") as file:
        file.truncate(1 << 30)
    run = compiled("npu", "run", *given)
    assert run.code in (2, 3) and message in run.stderr, run
