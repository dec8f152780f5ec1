"""Spaces whose blocks repeat, estimated from a table that lists layers in their neighbourhoods."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from onnx import ModelProto

import harness


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


@pytest.mark.timeout(120)
def test_twenty_positions_that_may_be_left_out_are_estimated() -> None:
    """Equal blocks at other positions are the same neighbourhood: a deep space needs no more than a shallow one."""
    choices = {"k3": _block(3), "k5": _block(5), "k1": _block(1), "skip": None}
    positions = {f"b{at}": choices for at in range(20)}
    model = harness.super_network("deep", {"stem": {"conv": _block(3)}, **positions})
    space = harness.SearchSpace.read(model)
    estimator = harness.estimate_space(space, device="npu01")
    candidates = np.random.default_rng(1).integers(0, 4, (3, 20))
    networks = [space.model(row) for row in candidates]
    expected = [one.latency_s for one in harness.estimate(networks, device="npu01")]
    assert estimator.latency_s(candidates) == pytest.approx(expected, rel=0.1)  # docs/search.md: weights ahead
