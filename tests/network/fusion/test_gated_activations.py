"""Swish and HardSwish, written as a product with a gate, belong to the operator in which the runtime computes them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from load_requests import request_of
from onnx import NodeProto, helper
from onnx_models import IMAGE, model_of
from sent_networks import SentNetwork

from device_agents.backends.onnxruntime.onnxruntime_backend import OnnxRuntimeBackend

CHANNELS = 16
WEIGHT = np.linspace(-1, 1, CHANNELS * CHANNELS * 9, dtype=np.float32).reshape(CHANNELS, CHANNELS, 3, 3)
GATES: dict[str, dict[str, Any]] = {"HardSigmoid": {"alpha": 1 / 6, "beta": 0.5}, "Sigmoid": {}}


def gated(gate: str, before: str, after: str, place: int) -> Iterator[NodeProto]:
    """Yield a convolution and the product of its result with a gate of it; the operands alternate by place."""
    yield helper.make_node("Conv", [before, "w"], [f"c{place}"], f"conv{place}", pads=[1, 1, 1, 1])
    yield helper.make_node(gate, [f"c{place}"], [f"g{place}"], f"gate{place}", **GATES[gate])
    factors = [f"c{place}", f"g{place}"]
    yield helper.make_node("Mul", factors[:: 1 if place % 2 else -1], [after], f"mul{place}")


@pytest.mark.parametrize("gate", sorted(GATES))
@pytest.mark.parametrize("reads_gate", [False, True])
def test_every_operator_of_the_runtime_is_one_layer(
    gate: str, reads_gate: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No layer holds two convolutions, and each convolution has its gate unless the runtime, too, keeps them apart."""
    monkeypatch.chdir(tmp_path)
    nodes = [*gated(gate, "x", "a", 0), *gated(gate, "a", "b", 1)]
    nodes.append(helper.make_node("Conv", ["b", "w"], ["y"], "conv2", pads=[1, 1, 1, 1]))
    outputs = ["y", "g1"] if reads_gate else ["y"]
    image = (1, CHANNELS, *IMAGE[2:])
    sent = SentNetwork(model_of(nodes, {"x": image}, outputs, {"w": WEIGHT}), "onnxruntime")
    revealed = OnnxRuntimeBackend({}).load(request_of(sent.sent, reveal=True))
    assert revealed is not None
    groups = sent.named(sent.read(revealed.content))
    assert all(len([name for name in group if name.startswith("conv")]) <= 1 for group in groups), groups
    in_one = frozenset({"conv0", "gate0", "mul0"}) in groups
    optimised = revealed.content.decode("latin1")
    assert in_one == ("HardSwish" in optimised or "Swish" in optimised.replace("HardSwish", "")), groups
    assert (frozenset({"conv1", "gate1", "mul1"}) in groups) == (in_one and not reads_gate), groups
