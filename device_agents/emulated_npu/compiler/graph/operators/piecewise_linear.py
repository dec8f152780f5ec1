"""PiecewiseLinear, the operator of an activation that a user gives as a table.

It is not of ONNX: its domain is `harness`. Its attributes `breakpoints` and `values` have one number for each point.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from device_agents.emulated_npu.compiler.graph.constants import FLOATS, known
from device_agents.emulated_npu.compiler.graph.drafts import Builder, Handler
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import OnnxNode, unsupported
from device_agents.emulated_npu.numpy_types import NUMPY_TYPES
from device_agents.emulated_npu.unit_commands import Function

DOMAIN, PIECEWISE_LINEAR = "harness", "PiecewiseLinear"
FEWEST_POINTS, MOST_POINTS = 2, 1024


def _piecewise_linear(build: Builder, node: OnnxNode) -> None:
    """Add a TABLE, which reads its points from NB; raises UnsupportedOperator for points that define no function."""
    source, dtype = build.view(node.inputs[0]), build.type(node.outputs[0]).dtype
    breakpoints, values = (list(node.attribute(name) or ()) for name in ("breakpoints", "values"))
    if dtype not in FLOATS:
        raise unsupported(node, f"It is a function of {dtype.name.lower()}; only floating point is supported")
    if len(breakpoints) != len(values) or not FEWEST_POINTS <= len(values) <= MOST_POINTS:
        why = f"It has {len(breakpoints)} breakpoints and {len(values)} values"
        raise unsupported(node, f"{why}; as many of both are needed, from {FEWEST_POINTS} to {MOST_POINTS}")
    points = np.array([breakpoints, values], NUMPY_TYPES[dtype])
    if not np.isfinite(points).all() or not (np.diff(points[0]) > 0).all():
        raise unsupported(node, f"Its points are not finite, or its breakpoints do not ascend in {dtype.name.lower()}")
    table = build.constant_view(known(f"{node.outputs[0]}.table", points, dtype))
    build.layer(Function.TABLE, [source, table], build.result())


HANDLERS: Mapping[str, Handler] = {PIECEWISE_LINEAR: _piecewise_linear}
