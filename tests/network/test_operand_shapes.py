"""Nodes whose operands do not fit each other are refused by name, as ONNX Runtime refuses to run them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto
from onnx_models import model_of, node, prepared

from harness.errors import InvalidNetwork
from harness.host_runtime import open_session, session_options

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A node that is valid, and the change that makes it invalid: another shape of an operand, or an attribute."""

    op: str
    shapes: Sequence[Shape | None]
    place: int
    wrong: Shape
    why: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    results: int = 1
    opset: int = 17

    def __str__(self) -> str:
        return f"{self.op}-{self.place}-{'x'.join(map(str, self.wrong))}"


_IMAGE = (1, 6, 8, 8)
_LSTM = ((5, 2, 4), (1, 12, 4), (1, 12, 3), (1, 24), None, (1, 2, 3), (1, 2, 3))
_GRU = ((5, 2, 4), (2, 9, 4), (2, 9, 3), (2, 18))
_QUERY = ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6))
CASES = [
    Case("Conv", (_IMAGE, (4, 6, 3, 3)), 1, (4, 5, 3, 3), "6 channels; its weights are for 1 group of 5"),
    Case("Conv", (_IMAGE, (4, 3, 3, 3)), 1, (4, 2, 3, 3), "for 2 groups of 2", {"group": 2}),
    Case("Conv", (_IMAGE, (4, 3, 3, 3)), 1, (5, 3, 3, 3), "5 output channels .* into 2 groups", {"group": 2}),
    Case("Conv", (_IMAGE, (4, 6, 3, 3)), 1, (4, 6, 3), "3 dimensions and its input 4"),
    Case("Conv", (_IMAGE, (4, 6, 3, 3)), 1, (4, 6, 3, 1), r"kernel_shape is \[3, 3\]", {"kernel_shape": [3, 3]}),
    Case("Conv", (_IMAGE, (4, 6, 3, 3), (4,)), 2, (3,), r"bias has shape \[3\]; it must have \[4\]"),
    Case("ConvTranspose", (_IMAGE, (6, 4, 3, 3)), 1, (5, 4, 3, 3), "weights are for 5"),
    Case("ConvTranspose", (_IMAGE, (6, 2, 3, 3), (4,)), 2, (2,), r"bias .* must have \[4\]", {"group": 2}),
    Case("Gemm", ((3, 4), (4, 5), (5,)), 2, (3,), r"C of shape \[3\] cannot be broadcast to \[3, 5\]"),
    Case("Gemm", ((4, 3), (5, 4), (3, 1)), 2, (1, 3), r"cannot be broadcast to \[3, 5\]", {"transA": 1, "transB": 1}),
    Case("MatMul", ((3, 4), (4, 5)), 1, (5, 4), "Incompatible dimensions"),
    Case("BatchNormalization", (_IMAGE, (6,), (6,), (6,), (6,)), 3, (5,), r"mean has shape \[5\]|[Mm]ismatch"),
    Case("InstanceNormalization", (_IMAGE, (6,), (6,)), 1, (8,), r"scale has shape \[8\]; it must have \[6\]"),
    Case("LayerNormalization", ((2, 6, 8), (8,), (8,)), 2, (6,), r"bias of shape \[6\] cannot be broadcast"),
    Case("GroupNormalization", (_IMAGE, (2,), (2,)), 0, (1, 5, 8, 8), "5 .* 2 groups", {"num_groups": 2}, opset=18),
    Case("GroupNormalization", (_IMAGE, (2,), (2,)), 1, (4,), r"must have \[2\]", {"num_groups": 2}, opset=20),
    Case("PRelu", (_IMAGE, (6, 1, 1)), 1, (6,), r"slope of shape \[6\] cannot be broadcast"),
    Case("LSTM", _LSTM, 1, (1, 12, 5), r"weights has shape .* must have \[1, 12, 4\]", {"hidden_size": 3}),
    Case("LSTM", _LSTM, 2, (1, 12, 4), "recurrence weights", {"hidden_size": 3}),
    Case("LSTM", _LSTM, 3, (1, 12), r"bias has shape \[1, 12\]", {"hidden_size": 3}),
    Case("LSTM", _LSTM, 6, (1, 1, 3), "initial cell state", {"hidden_size": 3}),
    Case("GRU", _GRU, 3, (1, 18), "bias", {"hidden_size": 3, "direction": "bidirectional"}),
    Case("Transpose", (_IMAGE,), 0, (6, 8, 8), "perm is .* 3 dimensions", {"perm": [0, 2, 3, 1]}),
    Case("Clip", (_IMAGE, (), ()), 2, (6,), "maximum has shape .* one number"),
    Case("LpNormalization", ((2, 3),), 0, (3,), "axis is 1", {"axis": 1}),
    Case("Attention", _QUERY, 1, (2, 3, 7, 8), "4, 3 and 2 heads", opset=23),
    Case("Attention", _QUERY, 0, (2, 4, 5, 6), "Q and K have sizes of 6 and 8", opset=23),
]


def _nodes(case: Case, shapes: Sequence[Shape | None]) -> tuple[ModelProto, Mapping[str, np.ndarray[Any, Any]]]:
    """Return a model of the node alone and its input; other operands are constants."""
    reads = " ".join("_" if shape is None else f"i{place}" for place, shape in enumerate(shapes))
    writes = " ".join(f"y{place}" for place in range(case.results))
    held = {f"i{place}": np.ones(shape, np.float32) for place, shape in enumerate(shapes) if shape is not None}
    fed = {"i0": held.pop("i0")}
    operator = node(case.op, reads, writes, **case.attributes)
    inputs = {name: value.shape for name, value in fed.items()}
    return model_of([operator], inputs, [f"y{place}" for place in range(case.results)], held, opset=case.opset), fed


def _runs(model: ModelProto, feeds: Mapping[str, Any]) -> bool:
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    model.ir_version = 9
    try:
        open_session(model.SerializeToString(), session_options(1, "DISABLE_ALL")).run(None, dict(feeds))
    except Exception:
        return False
    return True


@pytest.mark.parametrize("case", CASES, ids=str)
def test_operands_that_do_not_fit_are_refused_by_the_name_of_the_node(case: Case) -> None:
    """A node of valid shapes is read and runs; with one operand of another shape it is refused and does not run."""
    valid, feeds = _nodes(case, case.shapes)
    assert [each.op for each in prepared(valid).nodes] == [case.op]
    assert _runs(valid, feeds)
    wrong, feeds = _nodes(case, [case.wrong if at == case.place else shape for at, shape in enumerate(case.shapes)])
    with pytest.raises(
        InvalidNetwork, match=rf"Node '{case.op} of .*' \({case.op}\) has impossible shapes.*({case.why})"
    ):
        prepared(wrong)
    assert not _runs(wrong, feeds)


def _refused(nodes: list[Any], inputs: Mapping[str, Shape], constants: Mapping[str, Any], opset: int = 17) -> str:
    with pytest.raises(InvalidNetwork) as caught:
        prepared(model_of(nodes, inputs, constants=constants, opset=opset))
    return str(caught.value)


def test_indices_beyond_their_axis_are_refused() -> None:
    """Constant indices, which every run would refuse, name the node and the axis."""
    rows = {"at": np.array([[0, 9], [1, 2]])}
    why = _refused([node("Gather", "x at", "y", axis=1)], {"x": (4, 8)}, rows)
    assert "indices, from 0 to 9, exceed axis 1 of size 8" in why
    why = _refused([node("ScatterND", "x at u", "y")], {"x": (4, 8)}, {**rows, "u": np.ones(2, np.float32)})
    assert "exceed axis 1 of size 8" in why
    negative = {"at": np.array([[-5, 0]])}
    assert "exceed axis 0" in _refused([node("GatherElements", "x at", "y", axis=0)], {"x": (4, 8)}, negative)


@pytest.mark.parametrize("attributes", [{}, {"num_groups": "2"}])
def test_an_operator_that_no_checker_reads_needs_its_groups(attributes: Mapping[str, Any]) -> None:
    """ONNX's checker passes over the GroupNormalization of opset 18, and whether its channels have groups."""
    nodes = [node("GroupNormalization", "x s s", "y", **attributes)]
    why = _refused(nodes, {"x": _IMAGE}, {"s": np.ones(2, np.float32)}, 18)
    assert "channels cannot be divided into 0 groups" in why


def test_scattered_values_must_fit_their_indices() -> None:
    """Updates have the shape that the indices address."""
    at = {"at": np.array([[0], [1]])}
    why = _refused([node("ScatterND", "x at u", "y")], {"x": (4, 8)}, {**at, "u": np.ones((2, 7), np.float32)})
    assert "updates has shape [2, 7]; it must have [2, 8]" in why
    why = _refused([node("ScatterElements", "x at u", "y")], {"x": (4, 8)}, {**at, "u": np.ones((1, 2), np.float32)})
    assert "updates has shape [1, 2]; it must have [2, 1]" in why


def test_scales_of_quantised_operators_must_fit() -> None:
    """A scale is one number or one for each place on its axis, with as many zero points."""
    scale = {"s": np.ones(3, np.float32), "z": np.zeros(3, np.uint8)}
    assert "scale has shape [3]; it must have [8]" in _refused(
        [node("QuantizeLinear", "x s z", "y")], {"x": (4, 8)}, scale
    )
    pair = {"s": np.ones(8, np.float32), "z": np.zeros(3, np.uint8)}
    assert "zero point has shape [3]" in _refused([node("QuantizeLinear", "x s z", "y")], {"x": (4, 8)}, pair)


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ([node("GatherND", "x at", "y", batch_dims=-5)], "batch_dims is -5"),
        ([node("Split", "x", "y a b", num_outputs=2, axis=0)], "num_outputs is 2; it has 3 results"),
    ],
)
def test_what_crashes_shape_inference_is_refused_before(nodes: list[Any], why: str) -> None:
    """Attributes for which inference ends the process are checked first, so that the error names the node."""
    assert why in _refused(nodes, {"x": (6, 8)}, {"at": np.zeros((6, 1), np.int64)}, opset=18)


def test_switch_of_several_values_is_refused() -> None:
    """A Dropout whose training mode is a list is an error of the file."""
    constants = {"r": np.array(0.5, np.float32), "t": np.array([True, False])}
    assert "training mode has shape [2]" in _refused([node("Dropout", "x r t", "y")], {"x": (4, 8)}, constants)
