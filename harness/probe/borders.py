"""Tensors that a group of layers exchanges with other layers."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from harness.network.layers import Layer
from harness.network.network import Network


def border_bytes(
    network: Network, layers: Sequence[Layer], group: Collection[int], views: Collection[int]
) -> tuple[tuple[int, ...], ...]:
    """Return, for each layer of a group in order, the sizes of the tensors that it exchanges with other layers.

    `group` and `views` are places of layers. Views take no time on the device: a tensor passes through them from the
    layer in front of them to the layers behind them. Sizes are in bytes, of tensors read first.
    """
    maker = {name: place for place, layer in enumerate(layers) for name in layer.graph.outputs}
    readers: dict[str, list[int]] = {}
    for place, layer in enumerate(layers):
        for name in layer.graph.inputs:
            readers.setdefault(name, []).append(place)

    def written_within(name: str) -> bool:
        place = maker.get(name)
        while place is not None and place in views and layers[place].graph.inputs:
            place = maker.get(layers[place].graph.inputs[0])
        return place in group

    def read_beyond(name: str) -> bool:
        if name in network.outputs:
            return True
        seen = readers.get(name, ())
        through = (result for place in seen if place in views for result in layers[place].graph.outputs)
        return any(place not in views and place not in group for place in seen) or any(map(read_beyond, through))

    return tuple(
        tuple(
            network.types[name].bytes
            for name in (
                *(name for name in layers[place].graph.inputs if not written_within(name)),
                *(name for name in layers[place].graph.outputs if read_beyond(name)),
            )
        )
        for place in sorted(group)
    )
