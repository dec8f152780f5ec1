"""Operators that become several layers, on a machine so small that their layers run in tiles."""

from typing import Any

import numpy as np
import pytest
from networks_on_npu import TOLERANCE, NetworkCase, execute, relative_error, small_machine
from onnx import NodeProto
from small_models import by_runtime, model, node, values

from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.isa.assembly import disassemble
from device_agents.emulated_npu.machine import find_machine
from device_agents.emulated_npu.numpy_types import Array

_NUMBERS = np.random.default_rng(0)
_CASES: dict[str, tuple[list[NodeProto], dict[str, Array], dict[str, Array], int]] = {
    "convolution by computed weights": (
        [node("Conv", "x w b", "t", pads=[1, 1, 1, 1]), node("Relu", "t", "y")],
        {"x": values((1, 8, 20, 20)), "w": values((16, 8, 3, 3), 1), "b": values((16,), 2)},
        {},
        17,
    ),
    "elements by computed indices": (
        [node("Relu", "x0", "x"), node("GatherElements", "x i", "y", axis=1)],
        {"x0": values((64, 64)), "i": _NUMBERS.integers(-64, 64, (64, 40))},
        {},
        17,
    ),
    "rows by computed indices": (
        [node("Relu", "x0", "x"), node("GatherND", "x i", "y")],
        {"x0": values((64, 64, 6)), "i": _NUMBERS.integers(-64, 64, (50, 2))},
        {},
        17,
    ),
    "rows scattered": (
        [node("Relu", "x0", "x"), node("ScatterND", "x i u", "y")],
        {"x0": values((64, 64)), "u": values((3, 64), 3)},
        {"i": np.array([[3], [60], [9]])},
        18,
    ),
    "attention": (
        [node("Attention", "q k v", "y", is_causal=1)],
        {name: values((1, 2, 48, 16), seed) for seed, name in enumerate("qkv")},
        {},
        23,
    ),
    "last of the largest": (
        [node("ArgMax", "x", "y", axis=1, select_last_index=1)],
        {"x": np.round(values((40, 300)))},
        {},
        17,
    ),
}


@pytest.mark.parametrize("name", _CASES)
def test_values_in_tiles(name: str) -> None:
    """Six kilobytes of buffers give the values of ONNX Runtime."""
    nodes, inputs, constants, opset = _CASES[name]
    proto: Any = model(nodes, inputs, constants, opset=opset)
    case = NetworkCase(proto.SerializeToString(), constants, inputs, {"y": by_runtime(proto, inputs)[0]})
    machine = small_machine(nb_bytes=6 << 10, sb_bytes=3 << 10, halo_bytes=2 << 10)
    assert relative_error(execute(compile_model(case.model, machine), case), case.expected) < TOLERANCE


@pytest.mark.parametrize("shape", [(600,), (600, 1), (20, 30)])
def test_indices_that_lie_together_are_one_command(shape: tuple[int, ...]) -> None:
    """The shape of computed indices changes nothing: there is no transfer for each of their rows."""
    feeds = {"i": np.zeros(shape, np.int64)}
    proto: Any = model([node("Gather", "w i", "y")], feeds, {"w": values((50, 8))})
    program = compile_model(proto.SerializeToString(), find_machine("edge")).program
    assert disassemble(program.code).count("gather target") == 1
