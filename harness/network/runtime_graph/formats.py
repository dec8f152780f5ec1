"""The formats in which runtimes report their graphs. Adding a runtime takes one module and one line in `READERS`."""

from collections.abc import Callable, Mapping

from harness.errors import ProtocolError
from harness.network.assemble import EmittedNames
from harness.network.network import Network
from harness.network.runtime_graph.emulated_npu import read_npu, read_npu_chains
from harness.network.runtime_graph.onnxruntime import read_onnxruntime
from harness.network.runtime_graph.openvino import read_openvino
from harness.network.runtime_graph.reported import RuntimeGraph

READERS: Mapping[str, Callable[[Network, EmittedNames, bytes], RuntimeGraph]] = {
    "onnxruntime": read_onnxruntime,
    "openvino": read_openvino,
    "emulated-npu": read_npu,
}


def read_runtime_graph(network: Network, names: EmittedNames, format_name: str, content: bytes) -> RuntimeGraph:
    """Return the graph that a runtime reports for a network.

    `names` maps the tensors and nodes of the model that was sent to those of the network. Raises ProtocolError for an
    unknown format and for content that contradicts itself.
    """
    if format_name not in READERS:
        raise ProtocolError(f"The device reports its graph as {format_name[:40]!r}", next_step="Update harness")
    return READERS[format_name](network, names, content)


def read_runtime_chains(names: EmittedNames, format_name: str, content: bytes) -> RuntimeGraph:
    """Return the chains and views of a model that contains some nodes of a network and others.

    `groups` and `blocked` are empty. Only the emulated NPU has chains. Raises ProtocolError for content that
    contradicts itself.
    """
    return read_npu_chains(names, content) if format_name == "emulated-npu" else RuntimeGraph((), frozenset())
