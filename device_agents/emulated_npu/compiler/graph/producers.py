"""The layers that compute the inputs of each layer, by regions: parts of a concatenation have different producers."""

from __future__ import annotations

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph
from device_agents.emulated_npu.compiler.graph.regions import Region, overlap


def layer_producers(graph: Graph) -> tuple[frozenset[int], ...]:
    """Return for every layer the layers that write some of its inputs."""
    writers: dict[str, list[tuple[int, Region]]] = {}
    for place, layer in enumerate(graph.layers):
        region = layer.output.value_region
        writers.setdefault(layer.output.value, []).append((place, region))
    found = []
    for layer in graph.layers:
        own: set[int] = set()
        for view in layer.reads:
            others = writers.get(view.value, ())
            needed = view.value_region if others else ()
            own.update(place for place, region in others if overlap(needed, region))
        found.append(frozenset(own))
    return tuple(found)
