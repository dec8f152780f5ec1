"""The parts of a network under construction, in which each configuration has layers of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper


@dataclass
class Parts:
    """The parts of a graph under construction; each name starts with the index of its configuration."""

    nodes: list[NodeProto] = field(default_factory=list)
    inputs: list[ValueInfoProto] = field(default_factory=list)
    outputs: list[ValueInfoProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)

    def input(self, name: str, shape: Sequence[int]) -> str:
        """Add an input of the network."""
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return name

    def weight(self, name: str, shape: Sequence[int]) -> str:
        """Add a weight without values."""
        self.weights.append(
            TensorProto(name=name, dims=shape, data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
        )
        return name

    def scalar(self, name: str, value: float) -> str:
        """Add a constant of one number."""
        self.weights.append(numpy_helper.from_array(np.array(value, np.float32), name))
        return name

    def numbers(self, name: str, values: Sequence[float], kind: type = np.int64) -> str:
        """Add a constant of several numbers."""
        self.weights.append(numpy_helper.from_array(np.array(values, kind), name))
        return name

    def node(self, op: str, name: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add an operator of one result, and return that."""
        self.nodes.append(helper.make_node(op, list(inputs), [f"{name}.output"], name, **attributes))
        return f"{name}.output"

    def nodes_of(self, op: str, name: str, inputs: Sequence[str], results: int, **attributes: Any) -> list[str]:
        """Add an operator of several results, and return them."""
        names = [f"{name}.output{number}" for number in range(results)]
        self.nodes.append(helper.make_node(op, list(inputs), names, name, **attributes))
        return names
