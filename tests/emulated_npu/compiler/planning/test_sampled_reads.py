"""Layers with a kernel of one element and a stride fetch only the elements that they read."""

import math
from dataclasses import replace
from typing import Any

from hypothesis import given, settings, strategies as st
from networks_on_npu import TOLERANCE, NetworkCase, execute, network_of, relative_error, small_machine
from small_models import node, values

from device_agents.emulated_npu.compiler.options import DEFAULT, Options
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.inference import time_program
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.unit_commands import Command, Function, Space

SMALL = small_machine()
BY_ELEMENT = replace(SMALL, ddr=replace(SMALL.ddr, burst_bytes=4))


def feature_bytes(network: NetworkCase, machine: Machine, options: Options = DEFAULT) -> int:
    """Return the bytes of features that a network loads; assert that its values are those of ONNX Runtime."""
    compiled = compile_model(network.model, machine, options)
    assert relative_error(execute(compiled, network), network.expected) <= TOLERANCE
    items = [step.item for step in time_program(compiled.program, machine).steps]
    loads = [item for item in items if isinstance(item, Command) and item.function is Function.LOAD]
    return sum(item.target.descriptor.bytes for item in loads if item.target.descriptor.space is Space.NB)


def strided(op: str, shape: tuple[int, ...], strides: tuple[int, int]) -> NetworkCase:
    """Return a convolution or pooling whose kernel has one element."""
    constants = {"w": values((3, shape[1], 1, 1), 1)} if op == "Conv" else {}
    attributes: dict[str, Any] = {"strides": strides, "kernel_shape": (1, 1)}
    made = node(op, f"x {' '.join(constants)}".strip(), "y", **attributes)
    return network_of([made], {"x": values(shape, 2)}, constants, ["y"])


@settings(max_examples=24)
@given(
    st.sampled_from(("Conv", "MaxPool", "AveragePool")),
    st.tuples(st.just(1), st.integers(1, 6), st.integers(1, 40), st.integers(1, 40)),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
def test_only_the_elements_that_windows_read_are_fetched(
    op: str, shape: tuple[int, ...], strides: tuple[int, int]
) -> None:
    """Where a burst is an element, a layer loads every element of its windows once and no other."""
    windows = [-(-size // stride) for size, stride in zip(shape[2:], strides, strict=True)]
    assert feature_bytes(strided(op, shape, strides), BY_ELEMENT) == 4 * shape[1] * math.prod(windows)


def test_a_map_that_another_layer_of_the_chain_reads_is_fetched_once() -> None:
    """A chain with a strided reader and a reader of all elements loads the whole map, and no element twice."""
    nodes = [node("Conv", "x w", "a", strides=(2, 2)), node("MaxPool", "x", "b", kernel_shape=(2, 2), strides=(2, 2))]
    both = [*nodes, node("Add", "a b", "y")]
    network = network_of(both, {"x": values((1, 4, 16, 16))}, {"w": values((4, 4, 1, 1), 1)}, ["y"])
    assert feature_bytes(network, BY_ELEMENT, Options(chains="whole")) == 4 * 4 * 16 * 16


def test_short_runs_are_fetched_together() -> None:
    """Where a burst holds several elements of one channel, a row is fetched from the first to the last of them."""
    machine = replace(SMALL, ddr=replace(SMALL.ddr, burst_bytes=64))
    assert feature_bytes(strided("Conv", (1, 1, 8, 8), (1, 2)), machine) == 4 * 8 * 7
