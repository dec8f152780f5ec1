"""Corner cases of the compiler: layers in the middle of a chain, stored weights, fences, footprints, passes."""

from dataclasses import replace
from itertools import pairwise

import pytest
from networks_on_npu import ORDERS, TOLERANCE, NetworkCase, execute, network_of, relative_error, small_machine
from small_models import node, values

from device_agents.emulated_npu.compiler.compiled import Compiled
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.isa.sequencer import sequence
from device_agents.emulated_npu.machine import Machine, find_machine
from device_agents.emulated_npu.unit_commands import Command, Fence


def _right(network: NetworkCase, machine: Machine, options: Options) -> Compiled:
    compiled = compile_model(network.model, machine, options)
    for order in ORDERS:
        assert relative_error(execute(compiled, network, order), network.expected) <= TOLERANCE
    return compiled


def _convolutions() -> NetworkCase:
    nodes = [node("Conv", "x v", "a", strides=[2, 2]), node("Relu", "a", "b"), node("Conv", "b w", "y")]
    constants = {"v": values((16, 8, 3, 3)), "w": values((8, 16, 1, 1), 1)}
    return network_of(nodes, {"x": values((1, 8, 33, 33), 2)}, constants, ["y"])


@pytest.mark.parametrize(
    "inner", [node("Softmax", "x", "a", axis=-1), node("LRN", "x", "a", size=3)], ids=["softmax", "lrn"]
)
def test_a_layer_in_a_chain_is_not_cut_along_the_axis_it_works_over(inner: object) -> None:
    """A layer that needs a whole axis gets it, at any place in a chain and with little memory."""
    network = network_of([inner, node("Mul", "a x", "y")], {"x": values((1, 16, 6, 40), 3)}, {}, ["y"])
    for nb_bytes in (4096, 8192, 12288, 65536):
        try:
            _right(network, small_machine(nb_bytes=nb_bytes, halo_bytes=1024), Options())
        except DoesNotFit as error:
            assert error.memory == "NB"


def test_weights_that_are_stored_with_filling_are_read_without() -> None:
    """Packing by strides stores more weights than it multiplies with, and values are correct."""
    edge = find_machine("edge")
    machine = replace(edge, mfu=replace(edge.mfu, packing="stride"))
    _right(_convolutions(), machine, Options())


def test_fences_stand_between_layers_and_nowhere_else() -> None:
    """With fences, every layer is entered once, with or without re-ordering."""
    for reorder in (True, False):
        compiled = _right(_convolutions(), find_machine("edge"), Options(fences=True, reorder=reorder))
        items = [step.item for step in sequence(compiled.program.code, layer_of=compiled.program.layer_of)]
        entered = [item.layer for item in items if isinstance(item, Command)]
        changes = sum(first != second for first, second in pairwise(entered))
        assert changes == len(compiled.graph.layers) - 1
        assert sum(isinstance(item, Fence) for item in items) == changes


@pytest.mark.parametrize("fences", [True, False])
def test_one_buffer_holds_features_and_weights(fences: bool) -> None:
    """Programs for a machine with one buffer fit it, and compute correct values."""
    edge = find_machine("edge")
    machine = replace(edge, nb_bytes=24 << 10, sb_bytes=24 << 10, shared_buffer=True, halo_bytes=2048)
    compiled = _right(_convolutions(), machine, Options(fences=fences))
    assert 0 < compiled.program.footprint.shared_bytes <= machine.nb_bytes


def test_a_program_takes_no_more_than_it_needs() -> None:
    """The footprint does not grow with the machine, so that a smaller machine can run the program."""
    edge = find_machine("edge")
    large = replace(edge, nb_bytes=1 << 30, sb_bytes=1 << 30)
    footprint = compile_model(_convolutions().model, large).program.footprint
    assert footprint.nb_bytes + footprint.sb_bytes < 1 << 20


def test_without_room_for_the_halo_it_is_computed_again() -> None:
    """If the halo of one cut is larger than NB, the chain is cut in another way."""
    nodes = [node("Conv", "x v", "a", dilations=[8, 8]), node("Relu", "a", "y")]
    network = network_of(nodes, {"x": values((1, 8, 24, 24), 2)}, {"v": values((8, 8, 3, 3))}, ["y"])
    least = None
    for nb_bytes in (1 << 13, 1 << 14, 1 << 15, 1 << 16):
        machine = small_machine(nb_bytes=nb_bytes, halo_bytes=128, sb_bytes=1 << 16)
        try:
            _right(network, machine, Options(chains="layers", halo="recompute"))
        except DoesNotFit:
            continue
        least = machine
        break
    assert least is not None
    _right(network, least, Options(chains="layers"))


def test_a_run_in_countless_passes_is_refused() -> None:
    """Tiles of one element of a large map are refused quickly."""
    network = network_of(
        [node("Conv", "x v", "y")], {"x": values((1, 1, 300, 300))}, {"v": values((1, 1, 1, 1))}, ["y"]
    )
    with pytest.raises(DoesNotFit, match="would run in 90000 passes"):
        compile_model(network.model, find_machine("edge"), Options(tile=(1, 1)))
