"""Operators of ONNX, a module for each family: what a node becomes in layers and views."""

from __future__ import annotations

from collections.abc import Mapping

from device_agents.emulated_npu.compiler.graph.drafts import Handler
from device_agents.emulated_npu.compiler.graph.operators import (
    convolution,
    elementwise,
    matrix,
    movement,
    normalisation,
    padding,
    pooling,
    reduction,
    resize,
)

FAMILIES = (convolution, pooling, matrix, elementwise, normalisation, reduction, movement, padding, resize)
OPERATORS: Mapping[str, Handler] = {op: handler for family in FAMILIES for op, handler in family.HANDLERS.items()}
