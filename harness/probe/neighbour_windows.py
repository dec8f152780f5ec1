"""Windows of neighbouring layers, for networks of many small layers on processors.

A layer of a microsecond costs more in its own probe than in a network. There its code, and what the runtime keeps of
it, are in the caches because its neighbours use the same. So they are in windows of a dozen neighbours. They tile the
network, and none is longer than two thirds of it, so that a network is still the sum of parts.

Where the weights exceed the caches that a core has to itself, a window of twice the length loses more of them between
two runs, as the network does. There, two neighbouring windows are also measured as one, which shows the cost of their
border.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from harness.network.assemble import ModelBuilder
from harness.network.layers import place_of
from harness.network.network import FLOATS, Network, Node
from harness.network.operator_kinds import CONVOLUTIONS
from harness.probe.auxiliary import AuxiliaryKind, Layout, attach_all, is_quantised_picture
from harness.probe.chain_plan import CHECKED, ChainProbes
from harness.probe.probe import Probe, finish, left_by
from harness.probe.probe_plan import CutNetwork
from harness.probe.producer import ProducerKind, produce_as

MOST_LAYERS = 12
FEWEST_WINDOWS = 3
FEWEST_CHECKED = 6
FEWEST_LAYERS = 6
"""Networks of fewer layers have none: their windows would be single layers."""
_KEEPING_LAYOUTS = frozenset({"MatMul", "Gemm", "AveragePool", "GlobalAveragePool"})
"""Operators of quantised networks past which a runtime moves no conversion of a layout."""


def with_neighbours(
    cut: CutNetwork, auxiliary: AuxiliaryKind, cache_bytes: int, most_weight_bytes: float
) -> CutNetwork:
    """Return the network with windows of neighbours; without any if it has few layers, or more weights than these.

    `cache_bytes` is the size of a core's cache. The difference between two windows together and apart is what their
    border costs. Where there are many, windows of three show how well these add up; see `chain_plan`.
    """
    weight_bytes = cut.network.constant_bytes(cut.network.nodes)
    if len(cut.layers) < FEWEST_LAYERS or weight_bytes > most_weight_bytes:
        return cut
    count = max(FEWEST_WINDOWS, -(-len(cut.layers) // MOST_LAYERS))
    bounds = _bounds(cut, count)
    moved = _before_reorders(cut)

    def window(start: int, stop: int) -> tuple[Probe, Probe]:
        return _window(cut, bounds[start], bounds[stop], auxiliary, moved)

    alone = [window(at, at + 1) for at in range(count)]
    has_borders = not cut.runs_warm(cache_bytes)
    pairs = [window(at, at + 2) for at in range(count - 1 if has_borders else 0)]
    checks = {at: window(at, at + 3) for at in range(0, count - 2, CHECKED) if has_borders and count >= FEWEST_CHECKED}
    digest = cut.network.sha256[:16]
    places = [(layer.key.digest, place_of(cut.network, cut.layers, at)) for at, layer in enumerate(cut.layers)]
    chains = []
    for at, one in enumerate(alone):
        held = tuple(places[bounds[at] : bounds[at + 1]])
        meeting = _ids(pairs[at]) if at < len(pairs) else ("", "")
        check = _ids(checks[at]) if at in checks else ("", "")
        chains.append(ChainProbes(held, digest, *_ids(one), *meeting, True, *check))
    probes = {probe.id: probe for one in (*alone, *pairs, *checks.values()) for probe in one}
    return replace(cut, chains=tuple(chains), windows=tuple(probes.values()))


def _bounds(cut: CutNetwork, count: int) -> list[int]:
    """Return the indices of the layers at which windows begin, then the number of layers.

    They are evenly spaced, except in networks of quantised pictures. Operators on floats in these keep the layout of
    their neighbours, which a probe does not show if a picture of floats crosses its border. So each bound moves by up
    to half a window, to where the fewest such pictures cross it.
    """
    size = len(cut.layers)
    even = [round(at * size / count) for at in range(count + 1)]
    types = cut.network.types
    if not any(is_quantised_picture(types[name]) for layer in cut.layers for name in layer.graph.outputs):
        return even
    crossing = [0] * (size + 1)
    last = {name: at for at, layer in enumerate(cut.layers) for name in layer.graph.inputs}
    for at, layer in enumerate(cut.layers):
        for name in layer.graph.outputs:
            if types[name].dtype in FLOATS and len(types[name].shape) == 4:
                for place in range(at + 1, last.get(name, at) + 1):
                    crossing[place] += 1
    near = size // count // 2
    inner = [min(range(at - near + 1, at + near), key=lambda one: (crossing[one], abs(one - at))) for at in even[1:-1]]
    return [0, *inner, size]


def _ids(window: tuple[Probe, Probe]) -> tuple[str, str]:
    return window[0].id, window[1].id


def _before_reorders(cut: CutNetwork) -> frozenset[str]:
    """Return the quantised pictures in the plain layout in front of a convolution that takes the device's own."""
    network = cut.network
    reordered = {name for name in cut.blocked if is_quantised_picture(network.types[name])}

    def is_passed(node: Node) -> bool:
        """Return whether conversions move past a node: past a convolution only if its result is in the device's own."""
        if node.op not in CONVOLUTIONS:
            return node.op not in _KEEPING_LAYOUTS
        name = node.results[0]
        while network.types[name].dtype in FLOATS and len(readers := network.readers(name)) == 1:
            name = readers[0].results[0]
        return name in cut.blocked

    for node in reversed(network.nodes):
        if not reordered.isdisjoint(node.results) and is_passed(node):
            reordered.update(network.activations(node))
    return frozenset(name for name in reordered - cut.blocked if is_quantised_picture(network.types[name]))


def _window(
    cut: CutNetwork, start: int, stop: int, auxiliary: AuxiliaryKind, moved: Collection[str]
) -> tuple[Probe, Probe]:
    """Return the probe of producers, layers and auxiliary layers, and that of producers and auxiliary layers.

    The auxiliary layers of `moved` tensors end in a conversion of their layout.
    """

    def layout_of(name: str) -> Layout:
        return "reordered" if name in moved else cut.layout_of(name)

    network, layers = cut.network, cut.layers[start:stop]
    nodes = {node.index: node for layer in layers for node in layer.graph.nodes}
    inside = [nodes[index] for index in sorted(nodes)]
    written = dict.fromkeys(name for node in inside for name in node.results)
    read = dict.fromkeys(name for node in inside for name in network.activations(node) if name not in written)
    left = [name for name in written if name not in network.fixed and network.is_read_outside(name, nodes.keys())]
    producers = cut.producers_of(list(read), inside)
    builder, front = _in_front(network, producers)
    names = builder.subgraph(network, inside, front)
    behind, returned = left_by(network, left, nodes.keys(), auxiliary)
    results, terms = attach_all(builder, ((names[name], layout_of(name)) for name in behind), auxiliary)
    label = f"{layers[0].name} .. {layers[-1].name}"
    whole = finish("window", label, builder.build([*results, *(names[name] for name in returned)]), terms, auxiliary)
    layouts = cut.layouts_in_front(read, auxiliary)
    builder, front = _in_front(network, {name: producers[name] for name in layouts})
    results, terms = attach_all(builder, ((front[name], layout) for name, layout in layouts.items()), auxiliary)
    return whole, finish("window-null", f"in front of {label}", builder.build(results), terms, auxiliary)


def _in_front(network: Network, producers: Mapping[str, ProducerKind]) -> tuple[ModelBuilder, dict[str, str]]:
    """Return a model of the producers of tensors, and the tensors that they write by the names in the network."""
    builder = ModelBuilder(network.opset)
    return builder, {name: produce_as(kind, builder, network, name) for name, kind in producers.items()}
