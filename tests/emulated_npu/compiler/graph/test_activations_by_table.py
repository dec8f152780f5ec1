"""Activations as tables: the operator PiecewiseLinear, which becomes the function TABLE."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from onnx import ModelProto, helper
from small_models import model, node

from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.emulator_errors import UnsupportedOperator
from device_agents.emulated_npu.inference import compute_values, time_program
from device_agents.emulated_npu.isa.assembly import assemble, disassemble
from device_agents.emulated_npu.machine import load_preset
from device_agents.emulated_npu.numpy_types import Array

EDGE = load_preset("edge")
_NUMBERS = st.floats(-8, 8, width=32)


def _network(x: Array, breakpoints: list[float], values: list[float]) -> ModelProto:
    """Return a network of one PiecewiseLinear between two functions that no layer absorbs."""
    table = node("PiecewiseLinear", "a", "b", domain="harness", breakpoints=breakpoints, values=values)
    proto = model([node("Softmax", "x", "a", axis=1), table, node("Softmax", "b", "y", axis=1)], {"x": x})
    proto.opset_import.append(helper.make_opsetid("harness", 1))
    return proto


def _softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def _by_segments(x: Array, at: Array, values: Array) -> Array:
    """Return the function in float64, segment by segment."""
    result = np.empty_like(x)
    for place in range(len(at) - 1):
        slope = (values[place + 1] - values[place]) / (at[place + 1] - at[place])
        inside = (x >= at[place]) | (place == 0)
        result[inside] = (values[place] + slope * (x - at[place]))[inside]
    return result


@st.composite
def _tables(draw: st.DrawFn) -> tuple[list[float], list[float]]:
    steps = draw(st.lists(st.floats(0.0625, 1, width=32), min_size=1, max_size=40))
    breakpoints = np.cumsum(np.array([draw(_NUMBERS) / 8, *steps], np.float32))
    values = draw(st.lists(_NUMBERS, min_size=breakpoints.size, max_size=breakpoints.size))
    return [float(one) for one in breakpoints], values


@given(table=_tables(), shape=st.sampled_from([(1, 3), (1, 5, 7), (2, 3, 9, 4)]), seed=st.integers(0, 99))
@settings(max_examples=15)
def test_a_table_has_the_values_of_its_segments(
    table: tuple[list[float], list[float]], shape: tuple[int, ...], seed: int
) -> None:
    """The values of a compiled table are those of its straight segments, which continue beyond both ends."""
    x = np.random.default_rng(seed).normal(0, 3, shape).astype(np.float32)
    breakpoints, values = table
    compiled = compile_model(_network(x, breakpoints, values).SerializeToString(), EDGE)
    found = compute_values(compiled, {}, {"x": x})["y"]
    inner = _by_segments(_softmax(x.astype(np.float64)), np.array(breakpoints), np.array(values))
    np.testing.assert_allclose(found, _softmax(inner), rtol=0, atol=2e-4)


def test_a_program_with_a_table_survives_assembly() -> None:
    """CONFIG describes the table, TABLE names it, and the text of the program gives the same bytes again."""
    x = np.zeros((1, 3, 8, 8), np.float32)
    program = compile_model(_network(x, [-1.0, 0.0, 2.0], [0.0, 0.5, 1.0]).SerializeToString(), EDGE).program
    text = disassemble(program.code)
    assert "    table target=" in text and ", 0, 2, 12\n" in text and assemble(text) == program.code


def test_a_table_takes_as_long_as_another_special_function() -> None:
    """The vector unit looks a table up in the time of a sigmoid, beside the load of the table."""
    x = np.zeros((1, 8, 64, 64), np.float32)
    proto = _network(x, [-1.0, 1.0], [0.0, 1.0])
    proto.graph.node[1].CopyFrom(node("Tanh", "a", "b"))
    plain, table = (
        time_program(compile_model(one.SerializeToString(), EDGE).program, EDGE)
        for one in (proto, _network(x, [-1.0, 1.0], [0.0, 1.0]))
    )
    assert plain.formula.cp_ps == table.formula.cp_ps


@pytest.mark.parametrize(
    ("breakpoints", "values", "why"),
    [
        ([0.0, 1.0], [0.0], "2 breakpoints and 1 values"),
        ([0.0], [1.0], "1 breakpoints"),
        ([1.0, 0.0], [0.0, 1.0], "ascend"),
        ([0.0, 0.0], [0.0, 1.0], "ascend"),
        ([0.0, float("inf")], [0.0, 1.0], "finite"),
    ],
)
def test_points_that_are_no_function_are_refused(breakpoints: list[float], values: list[float], why: str) -> None:
    """A table has as many values as breakpoints, which are finite and ascend."""
    with pytest.raises(UnsupportedOperator) as error:
        compile_model(_network(np.zeros((1, 3), np.float32), breakpoints, values).SerializeToString(), EDGE)
    assert why in error.value.why
