"""Activations that a user gives as tables."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from onnx import TensorProto, helper

from harness.errors import HarnessError, InputError, UsageError
from harness.host_runtime import open_session, session_options
from harness.npu.activation_tables import in_standard_operators, read_tables, with_tables
from harness.npu.loading import load
from harness.npu.npu_options import DEFAULT, MachineChoice, RunOptions
from harness.npu.run.core_run import run_on_one_core


def _model(folder: Path) -> str:
    nodes = [helper.make_node("Relu", ["x"], ["a"], "first"), helper.make_node("Sigmoid", ["a"], ["y"], "second")]
    value = helper.make_tensor_value_info
    x, y = (value(name, TensorProto.FLOAT, [1, 4, 6, 6]) for name in "xy")
    proto = helper.make_model(
        helper.make_graph(nodes, "two", [x], [y]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    path = folder / "two.onnx"
    path.write_bytes(proto.SerializeToString())
    return str(path)


def _table(folder: Path, text: str = "-1, 0.25\n0, 0.5\n\n2,1\n") -> Path:
    path = folder / "table.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["second", "Sigmoid"])
def test_the_values_of_a_table_are_those_of_the_reference(tmp_path: Path, name: str) -> None:
    """A table for a node or for an operator replaces the activation, in the run and in its reference."""
    reference, table = _model(tmp_path), f"{name}={_table(tmp_path)}"
    run = run_on_one_core(
        load(reference, MachineChoice(), DEFAULT, {}, [table]), RunOptions(output_dir=tmp_path), pytest.fail
    )
    assert run.checked is not None and run.checked.max_rel_error < 1e-6
    assert run.operators == ("Relu", "PiecewiseLinear") and "first" in run.rows[0].name
    assert not np.load(tmp_path / "y.npy").min() < 0.5  # the table at 0, where the sigmoid has 0.5, too


@given(values=st.lists(st.floats(-4, 4, width=32), min_size=2, max_size=30))
@settings(max_examples=15)
def test_standard_operators_compute_the_same_function(values: list[float]) -> None:
    """In ONNX's own operators a table has the values of linear interpolation."""
    breakpoints = [float(place) / 4 for place in range(len(values))]
    made = helper.make_node("PiecewiseLinear", ["x"], ["y"], domain="harness", breakpoints=breakpoints, values=values)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [64]) for name in "xy")
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("harness", 1)]
    proto = helper.make_model(helper.make_graph([made], "one", [x], [y]), opset_imports=imports, ir_version=8)
    in_standard_operators(proto)
    given_x = np.linspace(0, breakpoints[-1], 64, dtype=np.float32)
    session = open_session(proto.SerializeToString(), session_options(threads=1))
    (found,) = session.run(None, {"x": given_x})
    np.testing.assert_allclose(found, np.interp(given_x, breakpoints, values), rtol=0, atol=2e-3)


@pytest.mark.parametrize(
    ("text", "kind", "mentions"),
    [
        ("0, 1\n", InputError, "1 points"),
        ("0, 1\n0, 2\n", InputError, "ascend"),
        ("0, 1\n1, nan\n", InputError, "Line 2"),
        ("0\n1, 2\n", InputError, "Line 1"),
    ],
)
def test_a_file_without_a_table_is_refused(tmp_path: Path, text: str, kind: type[HarnessError], mentions: str) -> None:
    """A table has at least two finite points with ascending breakpoints, one on each line."""
    with pytest.raises(kind) as error:
        read_tables([f"Relu={_table(tmp_path, text)}"])
    assert mentions in error.value.what


def test_a_name_that_the_network_does_not_have_is_refused(tmp_path: Path) -> None:
    """The error lists the activations of the network."""
    with pytest.raises(UsageError) as error:
        load(_model(tmp_path), MachineChoice(), DEFAULT, {}, [f"Tanh={_table(tmp_path)}"])
    assert "Relu, Sigmoid" in error.value.why
    with pytest.raises(UsageError) as error:
        read_tables(["Relu"])
    assert "NAME=FILE" in error.value.what


def test_a_network_without_tables_stays_as_it_is(tmp_path: Path) -> None:
    """Without a table the compiled network is the same object."""
    source = load(_model(tmp_path), MachineChoice(), DEFAULT, {}).source
    assert source is not None and with_tables(source.model, ()) is source.model
