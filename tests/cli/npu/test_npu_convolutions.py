"""`harness npu` with convolutions by DFT: their report, their setup, and options that contradict each other."""

import re
from pathlib import Path

import npu_inputs
import numpy as np
import pytest
from npu_command import Npu
from onnx import TensorProto, helper, numpy_helper

FORCED = ("--conv-algorithm", "odd-dft")
QUICK = (*FORCED, "--chains", "layers")
"""The choice of chains plays no part in what these commands report of the DFT."""


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A convolution of stride 2, then one of 5 x 5 on 12 x 12."""
    shapes = {"a": (4, 3, 3, 3), "b": (6, 4, 5, 5)}
    source = np.random.default_rng(7)
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["m"], "stem", strides=[2, 2], pads=[1] * 4),
        helper.make_node("Conv", ["m", "b"], ["y"], "wide", pads=[2] * 4),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 24, 24])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 6, 12, 12])],
        [numpy_helper.from_array(source.standard_normal(s).astype(np.float32), name) for name, s in shapes.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return npu_inputs.save(model, tmp_path_factory.mktemp("networks") / "wide.onnx")


def test_convolutions_by_dft_are_reported(npu: Npu, network: Path, tmp_path: Path) -> None:
    """Compiling and running report the same: by hand, 2 x 2 blocks of 11 give 7 x 7 outputs each, of 61 bins."""
    command = (network, *QUICK, "--dft-block", 11, "--dft-kernels", "ddr")
    compiled = npu("compile", *command, "-o", tmp_path / "p", "--json").data
    found = npu("run", *command, "--json").data
    expected = [
        {
            "layer": "wide",
            "block_length": 11,
            "blocks": 4,
            "kernel_level": "ddr",
            "bins": 61,
            "real_multiplications": 4 * 61 * 24 * 4,
            "kernel_dfts": 24,
        }
    ]
    assert compiled["by_dft"] == found["by_dft"] == expected
    assert compiled["stayed_direct"] == found["stayed_direct"] == [{"layer": "stem", "reason": "stride 2 x 2"}]
    assert 0 < found["max_rel_error"] < 1e-4
    program = npu("run", tmp_path / "p", "--json").data
    assert compiled["setup_cycles"] == found["setup_cycles"] == program["setup_cycles"] > 0
    assert program["by_dft"] is program["stayed_direct"] is None


def test_text_of_convolutions_by_dft(npu: Npu, network: Path) -> None:
    """The text has a line for each, one for those that stay direct, and one for the setup; without DFT it has none."""
    for words in (("compile",), ("run", "--no-values")):
        text = npu(*words, network, *QUICK, "--dft-block", 11, "--dft-kernels", "llc").stdout
        assert "wide: 4 blocks of 11, 61 bins each, 23,424 real multiplications, 24 kernel DFTs in LLC" in text
        assert "stay direct  stem (stride 2 x 2)\n" in text
        assert re.search(r"^setup +[0-9,]+ cycles, once when the program is loaded$", text, re.MULTILINE)
        plain = npu(*words, network, "--conv-algorithm", "direct", "--chains", "layers").stdout
        assert not any(word in plain for word in ("by DFT", "stay direct", "setup"))


def test_every_command_takes_the_block(npu: Npu, network: Path, tmp_path: Path) -> None:
    """Listing and trace show the same program."""
    options = (network, *QUICK, "--dft-block", 7)
    assert "wide (kernel DFT)" in npu("disassemble", *options).stdout
    cycles = npu("run", *options, "--no-values", "--json").data["cycles"]
    assert npu("trace", *options, "-o", tmp_path / "t.json", "--json").data["cycles"] == cycles


@pytest.mark.parametrize(
    ("code", "words", "mentions"),
    [
        (2, ("--dft-block", 9, "--conv-algorithm", "direct"), ("--dft-block 9 contradicts", "direct")),
        (2, ("--dft-kernels", "llc", "--conv-algorithm", "direct"), ("--dft-kernels llc contradicts", "direct")),
        (2, ("--dft-block", 9, "--tile", "4x4"), ("--dft-block 9 contradicts --tile", "add --conv-algorithm odd-dft")),
        (
            3,
            (*FORCED, "--dft-block", 3),
            ("wide has a kernel of 5, too large for a block of at most 3", "a block of 5"),
        ),
        (3, (*FORCED, "--dft-block", 8), ("a block of 8", "odd", "choose 9")),
        (3, (*FORCED, "--dft-block", 65), ("a block of 65", "63")),
        (3, (*FORCED, "--preset", "nvdla-256"), ("nvdla-256 computes in int8", "float32")),
    ],
    ids=str,
)
def test_options_that_cannot_be(
    npu: Npu, network: Path, code: int, words: tuple[object, ...], mentions: tuple[str, ...]
) -> None:
    """Contradictions are usage errors; errors of the network or machine name kernel, block, limit or type."""
    npu.refuses(code, "compile", network, *words, mentions=mentions)


def test_the_forced_dft_is_the_first_to_let_go(npu: Npu, network: Path, tmp_path: Path) -> None:
    """If it does not fit, the next step names its options."""
    head, table, rest = npu_inputs.machine_text().partition("[llc]\n")
    text = head + table + re.sub(r"^bytes = .*$", "bytes = 4_096", rest, count=1, flags=re.MULTILINE)
    small = npu_inputs.save(text, tmp_path / "small.toml")
    assert npu("compile", network, "--machine", small, *FORCED).code == 0
    words = ("compile", network, "--machine", small, *FORCED, "--dft-kernels", "llc")
    npu.refuses(3, *words, mentions=("kernel DFTs of wide", "Omit --conv-algorithm and --dft-kernels"))


def test_a_sweep_by_dft(npu: Npu, network: Path) -> None:
    """A sweep uses the choice; a machine of another type stays in the table, with the reason."""
    command = ("sweep", network, "--preset", "edge", "--preset", "nvdla-256", *QUICK, "--json")
    edge, other = npu(*command).data["points"]
    assert edge["cycles"] == npu("run", network, *QUICK, "--no-values", "--json").data["cycles"]
    assert other["cycles"] is None and "int8" in other["reason"]
