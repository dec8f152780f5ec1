"""Spaces whose blocks repeat, estimated from a table that lists layers in their neighbourhoods."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import ModelProto

import harness

CANDIDATES = 20


def _block(kernel: int) -> ModelProto:
    pad = kernel // 2
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        block (float[1, 16, 16, 16] x) => (float[1, 16, 16, 16] y)
        {{
            shape = Constant <value = int64[4] {{16, 16, {kernel}, {kernel}}}> ()
            w = ConstantOfShape <value = float[1] {{0.1}}> (shape)
            a = Conv <kernel_shape = [{kernel}, {kernel}], pads = [{pad}, {pad}, {pad}, {pad}]> (x, w)
            y = Relu (a)
        }}
    """)


@pytest.fixture(scope="module")
def deep() -> ModelProto:
    """Return a super-network of 20 positions with equal choices, one of which leaves the block out."""
    choices = {"k3": _block(3), "k5": _block(5), "k1": _block(1), "skip": None}
    positions = {f"b{at}": choices for at in range(20)}
    return harness.super_network("deep", {"stem": {"conv": _block(3)}, **positions})


def test_twenty_positions_that_may_be_left_out_are_estimated(deep: ModelProto) -> None:
    """Equal blocks at other positions are the same neighbourhood: a deep space needs no more than a shallow one.

    Predicted layers save what the layers in front load ahead for them, as in the network of the candidate.
    """
    found, expected = _estimates(deep)
    assert found == pytest.approx(expected, rel=1e-9)


def test_a_measured_super_network_of_twenty_positions_is_estimated(deep: ModelProto, tmp_path: Path) -> None:
    """A table with layers in their neighbourhoods gives candidates the estimates of their networks.

    Couplings of distant choices are found by sampling and may remain unseen (docs/search.md): here within 0.5 %.
    """
    harness.profile(deep, device="npu01", workspace=tmp_path, policy=harness.RepeatPolicy(runs=5))
    harness.build_lut("npu01", workspace=tmp_path)
    found, expected = _estimates(deep, workspace=tmp_path)
    assert found == pytest.approx(expected, rel=0.005)


def _estimates(model: ModelProto, **table: Any) -> tuple[Any, list[float | None]]:
    """Return the latencies of random candidates from the space, and from their networks."""
    space = harness.SearchSpace.read(model)
    candidates = np.random.default_rng(1).integers(0, 4, (CANDIDATES, 20))
    networks = [space.model(row) for row in candidates]
    found = harness.estimate_space(space, device="npu01", **table).latency_s(candidates)
    return found, [one.latency_s for one in harness.estimate(networks, device="npu01", **table)]


@pytest.mark.parametrize("row", [[0], [0, 2], [0.0, 1.0], [[0, 1], [1, 0]], None, "01", [-1, 0]])
def test_a_row_that_is_no_candidate_is_refused(row: object) -> None:
    """Fractions, tables, text, and rows of another length are refused with the choices that there are."""
    choices = {"k3": _block(3), "skip": None}
    space = harness.SearchSpace.read(harness.super_network("two", {"s": {"c": _block(1)}, "a": choices, "b": choices}))
    with pytest.raises(harness.errors.UsageError, match=r"is not a candidate of two.*2 positions"):
        space.model(row)  # type: ignore[arg-type]
