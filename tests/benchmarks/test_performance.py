"""The benchmark of docs/performance.md: small versions of its parts, fitted exponents, and files for Vela."""

import dataclasses
import math
from pathlib import Path

import onnx
import pytest
from flatbuffers import encode, packer
from flatbuffers.number_types import UOffsetTFlags
from flatbuffers.table import Table
from hypothesis import given, strategies as st

from benchmarks.generated_page import NOT_MEASURED, TARGETS_BLOCK, block
from benchmarks.parts import run_part
from benchmarks.performance.__main__ import PARTS
from benchmarks.performance.measuring import Run, fitted, half_decades
from benchmarks.performance.page import PAGE
from benchmarks.performance.peers.quantised import quantised
from harness.errors import UnsupportedNetwork
from harness.network.model_references import model_path

LIGHT = ("journal", "candidates", "devices", "emulation")
"""Parts whose small version takes a few seconds. Others profile devices, learn predictors or install packages."""


def _runs(part: str, folder: Path) -> None:
    page = dataclasses.replace(PAGE, path=folder / "performance.md")
    empty = "".join(f"<!-- generated: {name} -->\n<!-- end -->\n" for name in (TARGETS_BLOCK, "machine", part))
    page.path.write_text(empty, encoding="utf-8")
    assert run_part(part, PARTS[part], Run(folder, quick=True), page)
    text = page.path.read_text(encoding="utf-8")
    assert "| --- |" in block(text, part)
    assert "load of the machine" in block(text, part)
    rows = [line for line in block(text, TARGETS_BLOCK).splitlines() if line.startswith("| ")]
    assert any(NOT_MEASURED not in row for row in rows[2:])


@pytest.mark.parametrize("part", LIGHT)
def test_a_light_part_writes_its_block_and_its_targets(part: str, tmp_path: Path) -> None:
    """A small version of a part measures, writes its tables and reaches a row of the targets."""
    _runs(part, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("part", [name for name in PARTS if name not in LIGHT])
def test_a_part_writes_its_block_and_its_targets(part: str, tmp_path: Path) -> None:
    """The same for each other part; those of other tools install them into environments of their own."""
    _runs(part, tmp_path)


def test_every_part_has_a_block_on_the_page() -> None:
    """The page has a block for each part."""
    PAGE.check(PARTS)


@given(st.floats(-1, 3), st.floats(1e-6, 1e3), st.integers(1, 50))
def test_a_power_law_has_its_own_exponent(exponent: float, factor_s: float, first: int) -> None:
    """Times on a power law give its exponent over all sizes and over the last decade, with an interval of no width."""
    found = fitted({size: factor_s * size**exponent for size in half_decades(first, 1_000 * first)})
    assert found.exponent == pytest.approx(exponent, abs=1e-6)
    assert found.last == pytest.approx(exponent, abs=1e-6)
    assert found.high - found.low == pytest.approx(0, abs=1e-5)


def test_a_fixed_cost_hides_growth_less_in_the_last_decade() -> None:
    """With a fixed cost, the exponent over the last decade is nearer to the growth than the one over all sizes."""
    found = fitted({size: 1e-2 + 1e-6 * size**2 for size in half_decades(1, 10_000)})
    assert found.exponent < found.last < 2
    assert not found.is_linear


def _vector(table: Table, slot: int) -> tuple[int, int]:
    """The start and the length of a vector of a flatbuffers table."""
    offset = UOffsetTFlags.py_type(table.Offset(4 + 2 * slot))
    return table.Vector(offset), table.VectorLen(offset)


def test_an_int8_file_has_the_operators_and_weights_of_its_network() -> None:
    """The file of DS-CNN has one operator for each layer with its fused nodes, and a byte for each weight."""
    with model_path("builtin:dscnn") as path:
        model = onnx.load(path)
    content = quantised(model)
    assert content[4:8] == b"TFL3"
    root = Table(content, encode.Get(packer.uoffset, content, 0))
    start, _ = _vector(root, 2)
    graph = Table(content, root.Indirect(start))
    kinds = [node.op_type for node in model.graph.node]
    layers = [kind for kind in kinds if kind not in ("BatchNormalization", "Relu", "Constant", "Identity", "Dropout")]
    assert _vector(graph, 3)[1] == len(layers)
    weights = [one for one in model.graph.initializer if len(one.dims) in (2, 4)]
    assert len(content) > sum(math.prod(one.dims) for one in weights)


def test_a_network_without_a_counterpart_is_refused() -> None:
    """An operator that int8 files do not have here is refused by its name."""
    node = onnx.helper.make_node("Erf", ["x"], ["y"])
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (1, 4)) for name in "xy"]
    graph = onnx.helper.make_graph([node], "erf", ends[:1], ends[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(UnsupportedNetwork, match="Erf"):
        quantised(model)
