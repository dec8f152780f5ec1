"""Networks as they are sent to a device, and the graphs that a device reports for them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from onnx import ModelProto, helper
from onnx_models import IMAGE, WEIGHT, model_of, prepared

from harness.network.assemble import AssembledModel, assemble_network
from harness.network.network import Network
from harness.network.runtime_graph.formats import read_runtime_graph
from harness.network.runtime_graph.reported import RuntimeGraph

CONV: Mapping[str, Any] = {"pads": [1, 1, 1, 1]}


class SentNetwork:
    """A network, the model that is sent for it, and the format in which the device reports its graph."""

    def __init__(self, model: ModelProto, format_name: str) -> None:
        self.network: Network = prepared(model)
        self.sent: AssembledModel = assemble_network(self.network)
        self.emitted = {index: name for name, index in self.sent.names.nodes.items()}
        self._format = format_name
        self._names = {node.index: node.name for node in self.network.nodes}

    def emit(self, nodes: Iterable[str]) -> list[str]:
        """Return the names that nodes, given by their names in the file, have in the model that is sent."""
        index = {name: index for index, name in self._names.items()}
        return [self.emitted[index[name]] for name in nodes]

    def read(self, report: bytes | Mapping[str, Any]) -> RuntimeGraph:
        """Return the graph that harness reads from a report."""
        content = report if isinstance(report, bytes) else json.dumps(report).encode()
        return read_runtime_graph(self.network, self.sent.names, self._format, content)

    def named(self, graph: RuntimeGraph) -> set[frozenset[str]]:
        """Return the groups of a graph by the names of the nodes in the file."""
        return {frozenset(self._names[index] for index in group) for group in graph.groups}


def image_model(nodes: Sequence[tuple[Any, ...]], outputs: Sequence[str] = ("y",), **constants: Any) -> ModelProto:
    """Return a model of nodes (operator, name, inputs, outputs, attributes) on one image `x`, with weights `w`."""
    protos = [
        helper.make_node(op, reads.split(), writes.split(), name, **(extra[0] if extra else {}))
        for op, name, reads, writes, *extra in nodes
    ]
    return model_of(protos, {"x": IMAGE}, outputs, {"w": WEIGHT, **constants})
