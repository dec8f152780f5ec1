"""The formats in which runtimes report their graphs. Adding a runtime takes one module and one line in `FORMATS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.errors import ProtocolError
from harness.network.assemble import EmittedNames
from harness.network.network import Network
from harness.network.runtime_graph.emulated_npu import read_npu, read_npu_chains
from harness.network.runtime_graph.onnxruntime import read_onnxruntime
from harness.network.runtime_graph.openvino import read_openvino
from harness.network.runtime_graph.reported import RuntimeGraph


@dataclass(frozen=True)
class GraphFormat:
    """How to read one format.

    `read` reads the graph of a whole network. `read_chains` reads only the chains and views of a model that holds
    part of a network; it is None if the runtime has no chains.
    """

    read: Callable[[Network, EmittedNames, bytes], RuntimeGraph]
    read_chains: Callable[[EmittedNames, bytes], RuntimeGraph] | None = None


FORMATS: Mapping[str, GraphFormat] = {
    "onnxruntime": GraphFormat(read_onnxruntime),
    "openvino": GraphFormat(read_openvino),
    "emulated-npu": GraphFormat(read_npu, read_npu_chains),
}


def read_runtime_graph(network: Network, names: EmittedNames, format_name: str, content: bytes) -> RuntimeGraph:
    """Return the graph that a runtime reports for a network.

    `names` maps the tensors and nodes of the model that was sent to those of the network. Raises ProtocolError for an
    unknown format and for content that contradicts itself.
    """
    if format_name not in FORMATS:
        raise ProtocolError(f"The device reports its graph as {format_name[:40]!r}", next_step="Update harness")
    return FORMATS[format_name].read(network, names, content)


def read_runtime_chains(names: EmittedNames, format_name: str, content: bytes) -> RuntimeGraph:
    """Return the chains and views of a model that holds some nodes of a network and others beside them.

    `groups` and `blocked` are empty. Raises ProtocolError for content that contradicts itself.
    """
    read = FORMATS[format_name].read_chains if format_name in FORMATS else None
    return RuntimeGraph((), frozenset()) if read is None else read(names, content)
