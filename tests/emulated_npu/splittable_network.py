"""A small network whose layers can be split over cores in different ways."""

from small_models import imported, model, node, values

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph


def splittable_network() -> Graph:
    """A wide and a narrow convolution, a depthwise one, a pooling, a product and a softmax."""
    x = {"x": values((1, 16, 24, 24))}
    constants = {
        "w0": values((64, 16, 3, 3), 1),
        "w1": values((8, 64, 1, 1), 2),
        "w2": values((8, 1, 3, 3), 3),
        "w3": values((8, 40), 4),
    }
    nodes = [
        node("Conv", "x w0", "a", pads=[1, 1, 1, 1]),
        node("Relu", "a", "b"),
        node("Conv", "b w1", "c"),
        node("Conv", "c w2", "d", group=8),
        node("GlobalAveragePool", "d", "e"),
        node("Flatten", "e", "f"),
        node("MatMul", "f w3", "g"),
        node("Softmax", "g", "y"),
    ]
    return imported(model(nodes, x, constants), x)
