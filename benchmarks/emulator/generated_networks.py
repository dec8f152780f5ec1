"""Networks drawn from a seed: blocks of published kinds in an order, and of sizes, that nobody chose."""

import random

from onnx import ModelProto

from benchmarks.topologies.layers import Topology

_MOST_ELEMENTS = 1 << 19
"""Elements of a map, so that a network compiles in seconds."""


def build(seed: int) -> ModelProto:
    """Return the network of a seed, always the same."""
    draw = random.Random(seed)
    net = Topology(f"generated-{seed}", seed)
    edge = draw.choice((24, 32, 48, 56, 64, 96, 112, 128))
    x = net.unit(net.image(draw.choice((1, 3, 8)), edge, edge), draw.choice((8, 16, 24, 32)), draw.choice((3, 5)))
    for _ in range(draw.randint(4, 12)):
        x, edge = _block(net, x, edge, draw)
    return net.finished(x, net.channels(x), edge, edge)


def _block(net: Topology, x: str, edge: int, draw: random.Random) -> tuple[str, int]:
    """Append a block to a network, and return its result with the size of the map."""
    channels = net.channels(x)
    kind = draw.choice(("plain", "plain", "separable", "inverted", "branches", "dense", "gated", "smaller", "larger"))
    outputs, kernel = draw.choice((8, 12, 16, 24, 32, 48, 64, 96)), draw.choice((1, 3, 3, 5))
    if kind == "larger" and 4 * edge * edge * channels <= _MOST_ELEMENTS:
        return net.unit(net.upsampled(x, 2.0), outputs, 3), 2 * edge
    if kind == "smaller" and edge % 2 == 0:
        return draw.choice((net.average_pool, lambda y: net.unit(y, outputs, 3, 2)))(x), edge // 2
    if kind == "separable":
        return net.unit(net.depthwise(x, max(3, kernel)), outputs), edge
    if kind == "inverted":
        return net.add(x, net.unit(net.depthwise(net.unit(x, 4 * channels)), channels, act="none")), edge
    if kind == "branches":
        return net.concat(*(net.unit(x, draw.choice((8, 16, 32)), size) for size in (1, 3, 5))), edge
    if kind == "dense":
        return net.concat(x, net.unit(net.unit(x, outputs), 16, 3)), edge
    if kind == "gated":
        return net.squeeze_excite(net.unit(x, outputs, kernel), max(4, outputs // 4)), edge
    return net.unit(x, outputs, kernel), edge
