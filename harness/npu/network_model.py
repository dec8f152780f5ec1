"""A network as the emulated NPU compiles it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer
from harness.network.assemble import ArraySpec


@dataclass(frozen=True)
class NetworkModel:
    """A network without its weights, with the tensor and node names of its file.

    `operators` maps each node's name to its ONNX operator. `free_nodes` counts the nodes of the file that were removed
    before compilation because they are constant, unused or an identity. `constants` maps the names of weights to those
    of the file's constants, which follow from the values of symbolic dimensions and inputs in `dims`. `file_outputs`
    maps the outputs of the file to tensors: results of nodes, inputs, or constants of the file.
    """

    name: str
    content: bytes
    weights: tuple[ArraySpec, ...]
    inputs: tuple[ArraySpec, ...]
    operators: Mapping[str, str]
    free_nodes: int
    constants: Mapping[str, str] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    file_outputs: Mapping[str, str] = field(default_factory=dict)

    def operators_of(self, layer: HardwareLayer) -> str:
        """Return the ONNX operators of a layer, joined by +; the machine's function for a layer without a node."""
        return "+".join(self.operators[node] for node in layer.nodes) or layer.function.name.lower()
