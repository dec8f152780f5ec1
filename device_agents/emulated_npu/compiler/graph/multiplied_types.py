"""The types that a machine multiplies and stores: those of the network where the network has chosen them."""

from __future__ import annotations

from dataclasses import replace

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph, HardwareLayer
from device_agents.emulated_npu.emulator_errors import UnsupportedOperator
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.unit_commands import DataType


def machine_for(graph: Graph, machine: Machine) -> Machine:
    """Return the machine with the data type in which it stores the float32 values of a network.

    In a float network the data type of the machine replaces float32: there is a time, as if the network had been
    quantised, but no values. A quantised network says itself what is an integer; the rest of it stays float32, which
    the vector unit converts. Raises UnsupportedOperator for factors that the matrix unit cannot multiply.
    """
    if machine.data_type is DataType.FLOAT32:
        return machine
    is_quantised = any(layer.settings.quantises for layer in graph.layers)
    for layer in graph.layers:
        if layer.function.multiplies:
            _check_product(layer, graph, machine, is_quantised)
    is_float32 = any(value.dtype is DataType.FLOAT32 for value in graph.values.values())
    return machine if is_float32 and not is_quantised else replace(machine, data_type=DataType.FLOAT32)


def _check_product(layer: HardwareLayer, graph: Graph, machine: Machine, is_quantised: bool) -> None:
    """Raise UnsupportedOperator unless the matrix unit multiplies the widest factor of a layer."""
    first = graph.values[layer.inputs[0].value].dtype
    widest = max((first, layer.factor_type), key=lambda kind: kind.bytes)
    replaced = widest is DataType.FLOAT32 and not is_quantised
    if not replaced and widest.bytes > machine.data_type.bytes:
        own = machine.data_type.name.lower()
        what = f"Layer {layer.name!r} multiplies in {widest.name.lower()}, and {machine.name} multiplies in {own}"
        why = "Of a quantised network, only what is quantised runs on the matrix unit" if is_quantised else ""
        step = "Quantise this layer as well, or choose a machine that computes in float32, such as edge"
        raise UnsupportedOperator(what, why, step)
