"""Attention keeps keys and values of a head on chip and its scores inside the chain, and batches run item by item."""

from collections import Counter
from collections.abc import Container
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st
from networks_on_npu import ORDERS, TOLERANCE, NetworkCase, execute, network_of, relative_error, small_machine
from onnx import NodeProto
from small_models import node, values

from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.execution.interleaving import Order
from device_agents.emulated_npu.inference import time_program
from device_agents.emulated_npu.machine import find_machine
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import Command, Function, Space

EDGE = find_machine("edge")
EXTRAS = ("scale", "mask", "projection")
WAYS = (
    Options(),
    Options(chains="layers"),
    Options(chains="whole"),
    Options(halo="retain"),
    Options(halo="recompute"),
    Options(residency="weights"),
    Options(residency="features"),
    Options(reorder=False),
    Options(fences=True),
)


def _split(source: str, result: str, heads: int, order: list[int]) -> list[NodeProto]:
    """Return the nodes that divide (items, tokens, heads * depth) into heads, with permuted axes."""
    shape = node("Constant", "", f"{result}_shape", value_ints=[0, 0, heads, -1])
    divided = node("Reshape", f"{source} {result}_shape", f"{result}_4")
    return [shape, divided, node("Transpose", f"{result}_4", result, perm=order)]


def attention(items: int, heads: int, queries: int, keys: int, depth: int, extras: Container[str] = ()) -> NetworkCase:
    """Return attention of (items, queries, heads * depth) to (items, keys, heads * depth), heads merged behind it.

    `extras` may hold a "scale" of the scores, a computed "mask" of keys, and a "projection" with a residual.
    """
    width = heads * depth
    inputs = {"q": values((items, queries, width), 1), "k": values((items, keys, width), 2)}
    inputs["v"] = values((items, keys, width), 3)
    constants: dict[str, Array] = {}
    nodes = [*_split("q", "qh", heads, [0, 2, 1, 3]), *_split("k", "kh", heads, [0, 2, 3, 1])]
    nodes += [*_split("v", "vh", heads, [0, 2, 1, 3]), node("MatMul", "qh kh", "s0")]
    scores = "s0"
    if "scale" in extras:
        constants["scale"] = values((1,), 4, 0.1, 0.5)
        nodes.append(node("Mul", f"{scores} scale", "s1"))
        scores = "s1"
    if "mask" in extras:
        inputs["m"] = values((items, 1, 1, keys), 6)
        nodes += [node("Neg", "m", "n"), node("Add", f"{scores} n", "s2")]
        scores = "s2"
    nodes += [node("Softmax", scores, "p", axis=-1), node("MatMul", "p vh", "c")]
    nodes += [node("Transpose", "c", "t", perm=[0, 2, 1, 3]), node("Constant", "", "merged", value_ints=[0, 0, -1])]
    projected = "projection" in extras
    nodes.append(node("Reshape", "t merged", "r" if projected else "y"))
    if projected:
        constants["w"] = values((width, width), 5)
        nodes += [node("MatMul", "r w", "o"), node("Add", "o q", "y")]
    return network_of(nodes, inputs, constants, ["y"])


def traffic(network: NetworkCase) -> Counter[tuple[Function, Space]]:
    """Return the bytes that a program for the edge preset loads into each memory, and stores to each."""
    moved: Counter[tuple[Function, Space]] = Counter()
    for step in time_program(compile_model(network.model, EDGE).program, EDGE).steps:
        if isinstance(step.item, Command) and step.item.function in (Function.LOAD, Function.STORE):
            target = step.item.target.descriptor
            moved[step.item.function, target.space] += target.elements * target.dtype.bytes
    return moved


@st.composite
def attentions(draw: st.DrawFn) -> NetworkCase:
    """Draw attention of odd sizes, with any extras."""
    items, heads = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    queries, keys, depth = draw(st.integers(1, 40)), draw(st.integers(1, 40)), draw(st.integers(1, 11))
    return attention(items, heads, queries, keys, depth, draw(st.sets(st.sampled_from(EXTRAS))))


@given(attentions(), st.sampled_from(WAYS), st.sampled_from(ORDERS), st.integers(1, 24), st.integers(1, 24))
@settings(max_examples=18)
def test_values_of_attention_are_right_however_it_is_cut(
    network: NetworkCase, options: Options, order: Order, nb_kib: int, sb_kib: int
) -> None:
    """Any shape of attention, on any size of buffers and with any forced choice, has ONNX Runtime's values."""
    machine = small_machine(nb_bytes=nb_kib << 10, sb_bytes=sb_kib << 10, halo_bytes=nb_kib << 8)
    try:
        compiled = compile_model(network.model, machine, options)
    except DoesNotFit:
        return
    assert relative_error(execute(compiled, network, order), network.expected) <= TOLERANCE


@pytest.mark.parametrize(("items", "heads"), [(1, 6), (2, 3), (1, 1)])
def test_keys_and_values_are_fetched_once_and_scores_stay_on_chip(items: int, heads: int) -> None:
    """If keys and values of a head fit SB together, each is loaded once, and only the result is stored."""
    tokens, depth = 1201, 64
    moved = traffic(attention(items, heads, tokens, tokens, depth))
    tensor_bytes = 4 * items * heads * tokens * depth
    assert moved[Function.LOAD, Space.SB] == 2 * tensor_bytes
    assert moved[Function.LOAD, Space.NB] == tensor_bytes
    assert moved[Function.STORE, Space.DDR] + moved[Function.STORE, Space.LLC] == tensor_bytes


def test_a_batch_takes_as_long_as_its_items() -> None:
    """Eight maps, each of which runs as one chain in several passes, take at most 2 % more than one, eight times."""

    def cycles(items: int) -> float:
        nodes, constants = [], {}
        for at, (read, written) in enumerate(pairwise((3, 24, 24, 24, 16))):
            constants[f"w{at}"] = values((written, read, 3, 3), at)
            source = f"t{at - 1}" if at else "x"
            nodes.append(node("Conv", f"{source} w{at}", f"t{at}" if at < 3 else "y", pads=[1] * 4))
        network = network_of(nodes, {"x": values((items, 3, 112, 160))}, constants, ["y"])
        return time_program(compile_model(network.model, EDGE).program, EDGE).cycles

    assert cycles(8) <= 1.02 * 8 * cycles(1)
