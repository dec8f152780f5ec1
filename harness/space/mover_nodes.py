"""The operators of layers without a product of matrices, in the form in which exporters write them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.network.zoo.network_parts import NetworkParts
from harness.space.movers import ORDERS, Elementwise, Joining, Mover, Resizing, Rowwise


def mover_nodes(parts: NetworkParts, name: str, layer: Mover, sources: Sequence[str]) -> list[str]:
    """Add the operators of a layer, and return its results."""
    if isinstance(layer, Elementwise):
        return [_on_maps(parts, name, layer, sources)]
    if isinstance(layer, Rowwise):
        return [_on_rows(parts, name, layer, sources)]
    if isinstance(layer, Resizing):
        scales = parts.numbers(f"{name}.scales", (1, 1, layer.scale, layer.scale), np.float32)
        places = {"nearest": "asymmetric", "linear": "half_pixel"}[layer.mode]
        modes = {"mode": layer.mode, "coordinate_transformation_mode": places, "nearest_mode": "floor"}
        return [parts.node("Resize", name, [*sources, "", scales], **modes)]
    if isinstance(layer, Joining):
        if layer.op == "Concat":
            return [parts.node("Concat", name, sources, axis=layer.axis)]
        sizes = parts.numbers(f"{name}.sizes", (layer.channels,) * layer.parts)
        return parts.nodes_of("Split", name, [*sources, sizes], layer.parts, axis=layer.axis)
    if layer.order:
        return [parts.node("Transpose", name, sources, perm=ORDERS[layer.order])]
    return [parts.node("Reshape", name, [*sources, parts.numbers(f"{name}.shape", layer.result)])]


def _on_maps(parts: NetworkParts, name: str, layer: Elementwise, sources: Sequence[str]) -> str:
    if layer.op == "BatchNormalization":
        return parts.batch_normalisation(name, sources[0], layer.channels)
    if layer.op == "PRelu":
        return parts.node(layer.op, name, [*sources, parts.weight(f"{name}.slope", (layer.channels, 1, 1))])
    return parts.activation(layer.op, name, sources)


def _on_rows(parts: NetworkParts, name: str, layer: Rowwise, sources: Sequence[str]) -> str:
    if layer.residual:
        sources = [parts.node("Add", f"{name}.add", sources)]
    if layer.op == "LayerNormalization":
        weights = [parts.weight(f"{name}.{part}", (layer.columns,)) for part in ("weight", "bias")]
        return parts.node(layer.op, name, [*sources, *weights], axis=-1)
    if layer.op == "Softmax":
        return parts.node(layer.op, name, sources, axis=-1)
    if layer.op == "ReduceMean":
        return parts.node(layer.op, name, sources, axes=[layer.axis], keepdims=1)
    return parts.activation(layer.op, name, sources)
