"""What a runtime made of a network: which nodes it executes as one, read from the format of its backend."""

from __future__ import annotations

from dataclasses import dataclass

from harness.errors import ProtocolError
from harness.network.assemble import EmittedNames
from harness.network.graph import Network
from harness.network.told_npu import read_npu
from harness.network.told_onnxruntime import read_onnxruntime


@dataclass(frozen=True)
class ToldGraph:
    """What a runtime made of a network.

    `groups` are indices of nodes executed as one and cover every node; `blocked` are tensors kept in a
    layout of the runtime's own.
    """

    groups: tuple[frozenset[int], ...]
    blocked: frozenset[str]


def read_told(network: Network, names: EmittedNames, form: str, content: bytes) -> ToldGraph:
    """Reads what the runtime revealed of a model.

    `names` tells which tensors and nodes of the network stand behind those of the model that was sent.
    Raises ProtocolError for a format this version does not read, and for content that contradicts itself.
    """
    readers = {"onnxruntime": read_onnxruntime, "emulated-npu": read_npu}
    if form not in readers:
        raise ProtocolError(f"The device describes its graph as {form[:40]!r}", next_step="Update harness")
    return ToldGraph(*readers[form](network, names, content))
