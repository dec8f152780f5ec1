"""What a runtime made of a network: which nodes it executes as one, read from the format of its backend."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.errors import ProtocolError
from harness.network.assemble import EmittedNames
from harness.network.network import Network
from harness.network.runtime_graph.emulated_npu import read_chains, read_npu
from harness.network.runtime_graph.onnxruntime import read_onnxruntime
from harness.network.runtime_graph.openvino import read_openvino

_TELLS_CHAINS = "emulated-npu"


@dataclass(frozen=True)
class RuntimeGraph:
    """What a runtime made of a network.

    `groups` are indices of nodes executed as one and cover every node; `blocked` are tensors kept in a
    layout of the runtime's own. `chains` are indices of nodes whose layers hand over on chip, empty where the device
    tells none, and `views` indices of nodes that it executes for nothing.
    """

    groups: tuple[frozenset[int], ...]
    blocked: frozenset[str]
    chains: tuple[frozenset[int], ...] = ()
    views: frozenset[int] = frozenset()


def read_runtime_graph(network: Network, names: EmittedNames, form: str, content: bytes) -> RuntimeGraph:
    """Reads what the runtime revealed of a model.

    `names` tells which tensors and nodes of the network stand behind those of the model that was sent.
    Raises ProtocolError for a format this version does not read, and for content that contradicts itself.
    """
    readers = {"onnxruntime": read_onnxruntime, "openvino": read_openvino, "emulated-npu": read_npu}
    if form not in readers:
        raise ProtocolError(f"The device describes its graph as {form[:40]!r}", next_step="Update harness")
    groups, blocked = readers[form](network, names, content)
    return replace(read_runtime_chains(names, form, content), groups=groups, blocked=blocked)


def read_runtime_chains(names: EmittedNames, form: str, content: bytes) -> RuntimeGraph:
    """Reads the chains of a model that holds some of the network's nodes and others beside them.

    `groups` and `blocked` are left empty. Raises ProtocolError for content that contradicts itself.
    """
    chains, views = read_chains(names, content) if form == _TELLS_CHAINS else ((), frozenset[int]())
    return RuntimeGraph((), frozenset(), chains, views)
