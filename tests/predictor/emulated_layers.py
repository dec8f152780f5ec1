"""Layers of a space timed alone by the emulator of npu01: the truth, without a host, overhead or noise."""

from collections.abc import Iterator, Sequence

from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.emulator_errors import EmulatorError
from device_agents.emulated_npu.machine import find_machine
from device_agents.emulated_npu.timing.simulation import simulate_program
from harness.network.assemble import ModelBuilder
from harness.network.fusion.fusion_rules import DEFAULT_RULES
from harness.network.layers import Layer, cut
from harness.network.network import Network
from harness.predictor.features.key_features import describe
from harness.predictor.features.layer_features import LayerFeatures
from harness.space.configuration import Configuration
from harness.space.layer_network import network_of, own_layers

_TOGETHER = 64
_SHORTEST_S = 1e-9


def timed(layers: Sequence[Configuration], preset: str = "edge") -> list[tuple[LayerFeatures, float]]:
    """Return features and seconds of the layers that the machine runs as one layer each and in more than no time."""
    machine = find_machine(preset)
    found = []
    for layer, network in _alone(layers):
        builder = ModelBuilder(network.opset)
        bound = {name: builder.input(network.types[name]) for name in layer.graph.inputs}
        names = builder.subgraph(network, layer.graph.nodes, bound)
        model = builder.build([names[name] for name in layer.graph.outputs])
        features = describe(layer.key.text)
        try:
            makespan_ps = simulate_program(compile_model(model.content, machine).program, machine).makespan_ps
        except EmulatorError:  # a layer that the machine refuses
            continue
        if features is not None and makespan_ps / 1e12 >= _SHORTEST_S:
            found.append((features, makespan_ps / 1e12))
    return found


def _alone(layers: Sequence[Configuration]) -> Iterator[tuple[Layer, Network]]:
    for start in range(0, len(layers), _TOGETHER):
        network = network_of(layers[start : start + _TOGETHER], "space")
        for parts in own_layers(cut(network, DEFAULT_RULES)).values():
            if len(parts) == 1:
                yield parts[0], network
