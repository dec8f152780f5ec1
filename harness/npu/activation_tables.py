"""Activations given as tables: as one operator of the compiler, and in ONNX's own operators for the check."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper, numpy_helper

from device_agents.emulated_npu.compiler.graph.operators.elementwise import (
    DOMAIN,
    FEWEST_POINTS,
    MOST_POINTS,
    PIECEWISE_LINEAR,
)
from harness.errors import InputError, UsageError
from harness.files import read_input_text
from harness.npu.network_model import NetworkModel
from harness.npu.npu_options import named_files
from harness.text import printable

_RECTIFIERS = ("Celu", "Clip", "Elu", "LeakyRelu", "Relu", "Selu", "ThresholdedRelu")
_SMOOTH = ("Gelu", "HardSigmoid", "HardSwish", "Mish", "Sigmoid", "Softplus", "Softsign", "Swish", "Tanh")
ACTIVATIONS = frozenset((*_RECTIFIERS, *_SMOOTH, "Erf", "Exp", "Log", "Sqrt"))
"""The operators that a table can replace: functions of their first input."""
_MOST_BYTES = 1 << 16


@dataclass(frozen=True)
class ActivationTable:
    """A piecewise linear function for the node or the operators of this name."""

    name: str
    breakpoints: tuple[float, ...]
    values: tuple[float, ...]


def read_tables(options: Sequence[str]) -> tuple[ActivationTable, ...]:
    """Read tables given as NAME=FILE.csv; raises UsageError, or InputError for a file that has no table."""
    return tuple(_read_table(*one) for one in named_files("--activation", options, "Sigmoid=sigmoid.csv"))


def _read_table(name: str, path: Path) -> ActivationTable:
    """Return the table of a CSV file: a breakpoint and a value on each line."""
    lines = read_input_text(path, _MOST_BYTES).splitlines()
    points = [_point(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not FEWEST_POINTS <= len(points) <= MOST_POINTS:
        what, why = f"{path} has {len(points)} points", f"A table has from {FEWEST_POINTS} to {MOST_POINTS}"
        raise InputError(what, why=why, next_step="Write a breakpoint and a value on each line")
    if not all(first < second for (first, _), (second, _) in pairwise(points)):
        step = "Sort the lines by their first number"
        raise InputError(f"The breakpoints of {path} do not ascend as float32", next_step=step)
    breakpoints, values = zip(*points, strict=True)
    return ActivationTable(name, breakpoints, values)


def _point(path: Path, number: int, line: str) -> tuple[float, float]:
    """Return breakpoint and value of a line, as float32 holds them."""
    try:
        at, value = (float(np.float32(float(part))) for part in line.split(","))
        if not (math.isfinite(at) and math.isfinite(value)):
            raise ValueError
    except ValueError:
        what, why = f"Line {number} of {path} is {printable(line, 80)!r}", "A line has a breakpoint and a value"
        raise InputError(what, why=why, next_step="Write two finite numbers, such as 0.5, 0.25") from None
    return at, value


def with_tables(model: NetworkModel, tables: Sequence[ActivationTable]) -> NetworkModel:
    """Return a network with the activations of some tables; raises UsageError for a name that it does not have."""
    if not tables:
        return model
    if any(spec.dtype == "float16" for spec in (*model.inputs, *model.weights)):
        raise UsageError("--activation needs a float32 network", why="The network has tensors of float16")
    proto = onnx.load_model_from_string(model.content)
    operators = dict(model.operators)
    for table in tables:
        for node in _chosen(proto, table.name):
            operators[node.name] = PIECEWISE_LINEAR
            made = helper.make_node(
                PIECEWISE_LINEAR,
                node.input[:1],
                node.output,
                node.name,
                domain=DOMAIN,
                breakpoints=table.breakpoints,
                values=table.values,
            )
            node.CopyFrom(made)
    proto.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return replace(model, content=proto.SerializeToString(deterministic=True), operators=operators)


def _chosen(proto: ModelProto, name: str) -> list[NodeProto]:
    """Return the activation of this name, or all of this operator."""
    possible = [node for node in proto.graph.node if node.op_type in ACTIVATIONS]
    found = [node for node in possible if node.name == name] or [node for node in possible if node.op_type == name]
    if not found:
        known = ", ".join(sorted({node.op_type for node in possible})) or "none"
        what = f"The network has no activation {printable(name, 80)}"
        raise UsageError(what, why=f"It has these: {known}", next_step="Name a node or an operator")
    return found


def in_standard_operators(proto: ModelProto) -> None:
    """Replace PiecewiseLinear by ONNX's own operators: the first segment, and at each breakpoint a change of slope."""
    nodes = list(proto.graph.node)
    if all(node.op_type != PIECEWISE_LINEAR for node in nodes):
        return
    del proto.graph.node[:]
    for node in nodes:
        proto.graph.node.extend(_standard(proto, node) if node.op_type == PIECEWISE_LINEAR else [node])
    imports = [one for one in proto.opset_import if one.domain != DOMAIN]
    del proto.opset_import[:]
    proto.opset_import.extend(imports)


def _standard(proto: ModelProto, node: NodeProto) -> list[NodeProto]:
    """Return the nodes that compute a PiecewiseLinear; their constants become initializers."""
    (source,), (result,) = node.input, node.output
    points = {one.name: np.array(one.floats, np.float64) for one in node.attribute}
    breakpoints, values = points["breakpoints"], points["values"]
    slopes = np.diff(values) / np.diff(breakpoints)
    made: list[NodeProto] = []

    def step(op: str, *operands: str | float, output: str = "") -> str:
        names = []
        for place, operand in enumerate(operands):
            name = operand if isinstance(operand, str) else f"{result}.table{len(made)}.{place}"
            if not isinstance(operand, str):
                proto.graph.initializer.append(numpy_helper.from_array(np.array(operand, np.float32), name))
            names.append(name)
        output = output or f"{result}.table{len(made)}"
        made.append(helper.make_node(op, names, [output]))
        return output

    total = step("Mul", step("Sub", source, float(breakpoints[0])), float(slopes[0]))
    for at, change in zip(breakpoints[1:-1], np.diff(slopes), strict=True):
        beyond = step("Relu", step("Sub", source, float(at)))
        total = step("Add", total, step("Mul", beyond, float(change)))
    step("Add", total, float(values[0]), output=result)
    return made
