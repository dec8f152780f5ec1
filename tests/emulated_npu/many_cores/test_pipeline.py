"""Random networks on small machines compute the right values in any order of the queues, or are refused."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings, strategies as st
from networks_on_npu import ORDERS, TOLERANCE, NetworkCase, execute, network_of, relative_error, small_machine
from random_networks import WINDOWS, all_options, machines_for, random_networks
from small_models import node, values

from device_agents.emulated_npu.compiler.compiled import Compiled
from device_agents.emulated_npu.compiler.options import HaloChoice, Options
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.machine import Machine, find_machine

PARAMETERS = re.compile(r"Raise (nb_bytes|sb_bytes|halo_bytes|bytes of \[ddr\]) of the machine")


def _compiled(network: NetworkCase, machine: Machine, options: Options) -> Compiled | None:
    """Return the program, or None after an error with demand, limit and next step."""
    try:
        return compile_model(network.model, machine, options)
    except DoesNotFit as error:
        if options.chains != "whole":  # else the network may not be one chain in any memory
            demand, limit = re.search(r"needs (\d+) bytes", error.what), re.search(r"(\d+)", error.why)
            assert demand is not None, error.what
            assert limit is not None, error.why
            assert int(demand[1]) > int(limit[1])
            assert PARAMETERS.fullmatch(error.next_step), error.next_step
        event("does not fit")
        return None


def _check(network: NetworkCase, compiled: Compiled) -> None:
    outputs = execute(compiled, network)
    assert relative_error(outputs, network.expected) <= TOLERANCE
    for order in ORDERS[1:]:
        for name, array in execute(compiled, network, order).items():
            assert array.tobytes() == outputs[name].tobytes(), order


def _check_drawn(data: st.DataObject, networks: st.SearchStrategy[NetworkCase]) -> None:
    network = data.draw(networks)
    compiled = _compiled(network, data.draw(machines_for(network)), data.draw(all_options()))
    if compiled is None:
        return
    event("several passes" if any(plan.passes > 1 for plan in compiled.plans) else "one pass")
    _check(network, compiled)


@given(st.data())
@settings(max_examples=12)
def test_random_networks_on_random_machines(data: st.DataObject) -> None:
    """A network has ONNX Runtime's values in any order of the queues, or an error with demand and limit."""
    _check_drawn(data, random_networks())


@given(st.data())
@settings(max_examples=10)
def test_random_chains_of_windows(data: st.DataObject) -> None:
    """Networks of convolutions, pools, residuals and concatenations on larger maps have ONNX Runtime's values."""
    _check_drawn(data, random_networks(WINDOWS, 7, 40))


@pytest.mark.long
@given(st.data())
@settings(max_examples=1500, suppress_health_check=list(HealthCheck))
def test_many_random_networks(data: st.DataObject) -> None:
    """The same at length."""
    _check_drawn(data, random_networks(most_nodes=9, most_pixels=40))


# --- particular networks ---------------------------------------------------------------------------------------------


def _one(operator: str, shape: Sequence[int], weights: Sequence[int] = (), **attributes: Any) -> NetworkCase:
    constants = {"w": values(weights, 1)} if weights else {}
    given_ = "x w" if weights else "x"
    return network_of([node(operator, given_, "y", **attributes)], {"x": values(shape)}, constants, ["y"])


def test_a_product_of_a_tensor_with_itself() -> None:
    """One tensor can be both factors of a product, as in attention without projections."""
    nodes = [node("Transpose", "x", "t", perm=[0, 1, 3, 2]), node("MatMul", "x t", "y")]
    network = network_of(nodes, {"x": values((1, 2, 5, 3))}, {}, ["y"])
    _check(network, compile_model(network.model, small_machine()))


@pytest.mark.parametrize("shape", [(1, 4, 9, 1), (1, 4, 1, 9), (1, 4, 1, 1), (2, 4, 9, 9)])
def test_tiles_of_maps_that_have_one_row_or_column(shape: tuple[int, ...]) -> None:
    """A forced tile has height and width; a map with one row or column has tiles of one row or column."""
    network = _one("Conv", shape, (3, 4, 1, 1))
    compiled = compile_model(network.model, small_machine(), Options(tile=(4, 3)))
    assert max(plan.passes for plan in compiled.plans) >= math.prod(
        -(-size // tile) for size, tile in zip(shape[2:], (4, 3), strict=True)
    )
    _check(network, compiled)


def test_tiles_of_other_layers_are_left_to_the_compiler() -> None:
    """A network with layers of one axis compiles with a forced tile."""
    nodes = [
        node("Conv", "x w", "t"),
        node("GlobalAveragePool", "t", "p"),
        node("Flatten", "p", "f"),
        node("Gemm", "f g", "y"),
    ]
    constants = {"w": values((4, 2, 3, 3)), "g": values((4, 5), 1)}
    network = network_of(nodes, {"x": values((1, 2, 12, 12))}, constants, ["y"])
    _check(network, compile_model(network.model, small_machine(), Options(tile=(4, 3))))


@pytest.mark.parametrize("sb_bytes", [8192, 2048, 1024, 640])
def test_products_in_parts_of_the_channels(sb_bytes: int) -> None:
    """Weights that do not fit SB are loaded in parts, down to parts of the sum over input channels."""
    network = _one("Conv", (1, 40, 6, 6), (12, 40, 3, 3))
    compiled = compile_model(network.model, small_machine(nb_bytes=32 << 10, sb_bytes=sb_bytes))
    assert compiled.program.footprint.sb_bytes <= sb_bytes
    _check(network, compiled)


def test_one_submission_per_inference() -> None:
    """Weights are loaded once; repeated runs with other inputs compute correct values."""
    from device_agents.emulated_npu.execution.functional import FunctionalMachine, memories_for, run

    network = _one("Conv", (1, 4, 12, 12), (4, 4, 3, 3))
    compiled = compile_model(network.model, small_machine(nb_bytes=2048, halo_bytes=1024))
    machine = FunctionalMachine(memories_for(compiled.machine, compiled.program.footprint))
    first = run(compiled.program, machine, compiled.image(network.weights), network.inputs)["y"]
    other = run(compiled.program, machine, (), {"x": -network.inputs["x"]})["y"]
    again = run(compiled.program, machine, (), network.inputs)["y"]
    assert np.allclose(other, -first, atol=1e-5)
    assert again.tobytes() == first.tobytes()


# --- what does not fit -----------------------------------------------------------------------------------------------


def _problem(network: NetworkCase, machine: Machine, options: Options | None = None) -> DoesNotFit:
    with pytest.raises(DoesNotFit) as caught:
        compile_model(network.model, machine, options or Options())
    return caught.value


def test_a_window_that_does_not_fit_nb() -> None:
    """If one output pixel needs more input than NB holds, the error names nb_bytes."""
    error = _problem(_one("Conv", (1, 64, 9, 40), (8, 64, 3, 3)), small_machine(nb_bytes=2048, halo_bytes=512))
    demand = re.fullmatch(r"y needs (\d+) bytes of NB", error.what)
    assert demand is not None
    assert int(demand[1]) >= 64 * 9 * 4
    assert error.why == "there are 2048"
    assert error.next_step == "Raise nb_bytes of the machine"


def test_a_layer_that_does_not_fit_nb_beside_the_halo_of_another() -> None:
    """If one layer needs halo and another all of NB, the error has the demand, and what the halo buffer leaves."""
    nodes = [
        node("Conv", "x k0", "t1"),
        node("MaxPool", "t1", "t2", kernel_shape=[1, 2], strides=[1, 2]),
        node("Conv", "t2 k1", "t3"),
        node("Add", "t1 x", "t4"),
        node("Conv", "t4 k2", "t5"),
    ]
    constants = {"k0": values((1, 1, 1, 1)), "k1": values((1, 1, 1, 2)), "k2": values((2, 1, 1, 1))}
    network = network_of(nodes, {"x": values((1, 1, 2, 20))}, constants, ["t3", "t5"])
    machine = small_machine(nb_bytes=384, sb_bytes=320, halo_bytes=192)
    error = _problem(network, machine, Options(halo="retain", tile=(1, 1)))
    assert error.what == "t4 needs 384 bytes of NB"
    assert error.why == "there are 320 beside 64 of halo buffer"
    assert error.next_step == "Raise nb_bytes of the machine"
    _check(network, compile_model(network.model, replace(machine, nb_bytes=448), Options(halo="retain", tile=(1, 1))))


def test_a_row_of_softmax_that_does_not_fit_nb() -> None:
    """If a row that must be complete does not fit NB, the error names nb_bytes."""
    error = _problem(_one("Softmax", (4, 4000), axis=1), small_machine(nb_bytes=2048, halo_bytes=0))
    assert "bytes of NB" in error.what
    assert error.next_step == "Raise nb_bytes of the machine"


def test_a_column_of_weights_that_does_not_fit_sb() -> None:
    """If SB does not hold two windows of one channel, the error names sb_bytes."""
    error = _problem(_one("Conv", (1, 8, 9, 9), (8, 8, 7, 7)), small_machine(sb_bytes=256))
    demand = re.search(r"needs (\d+) bytes of SB", error.what)
    assert demand is not None
    assert int(demand[1]) == 7 * 7 * 4  # taps, bytes
    assert error.next_step == "Raise sb_bytes of the machine"


def test_a_network_that_does_not_fit_ddr() -> None:
    """A network whose weights and features do not fit DDR is refused."""
    ddr = replace(find_machine("edge").ddr, bytes=10_000)
    error = _problem(_one("Conv", (1, 8, 20, 20), (8, 8, 3, 3)), small_machine(ddr=ddr))
    demand = re.fullmatch(r"The network needs (\d+) bytes of DDR", error.what)
    assert demand is not None
    assert int(demand[1]) >= 4 * (8 * 20 * 20 + 8 * 18 * 18 + 8 * 8 * 9)
    assert error.why == "there are 10000"
    assert "[ddr]" in error.next_step


def test_a_halo_that_is_to_be_kept_and_has_no_room() -> None:
    """A forced halo without an auxiliary buffer is refused with its parameter; the automatic choice fits."""
    network = _one("Conv", (1, 4, 40, 40), (8, 4, 3, 3))
    machine = small_machine(nb_bytes=4096, halo_bytes=0)
    error = _problem(network, machine, Options(halo="retain"))
    assert "halo buffer" in error.what
    assert error.next_step == "Raise halo_bytes of the machine"
    _check(network, compile_model(network.model, machine))


@pytest.mark.parametrize(
    ("network", "halo"),
    [
        (_one("Conv", (1, 32, 5, 9), (4, 32, 3, 3)), "retain"),
        (_one("Conv", (1, 32, 5, 9), (4, 32, 3, 3)), "auto"),
        (_one("Conv", (1, 32, 9, 9), (32, 1, 5, 5), group=32), "recompute"),
        (_one("MaxPool", (1, 30, 16, 16), kernel_shape=[9, 9]), "refetch"),
        (_one("MaxPool", (1, 30, 16, 16), kernel_shape=[9, 9]), "retain"),
        (_one("GlobalAveragePool", (1, 4, 30, 30)), "auto"),
        (_one("MatMul", (3, 900), (900, 7)), "auto"),
    ],
    ids=("conv-retain", "conv", "depthwise", "pool", "pool-retain", "global", "product"),
)
def test_following_the_advice_mends_it(network: NetworkCase, halo: HaloChoice) -> None:
    """Raising the parameters of errors to their demands leads to a machine on which the network runs.

    A halo that need not be kept is never what is missing. Where it must, NB grows with it: it is carved out of NB.
    """
    machine = small_machine(nb_bytes=512, sb_bytes=512, halo_bytes=64)
    for _ in range(12):
        try:
            compiled = compile_model(network.model, machine, Options(halo=halo))
        except DoesNotFit as error:
            advice = PARAMETERS.fullmatch(error.next_step)
            assert advice is not None, error.next_step
            name = advice[1]
            demand = re.search(r"needs (\d+) bytes", error.what)
            assert demand is not None
            assert name != "halo_bytes" or halo == "retain", f"{error.what} although it may be recomputed"
            wanted = max(int(demand[1]), 2 * getattr(machine, name))
            more_bytes = wanted if name == "halo_bytes" else 0
            machine = replace(machine, **{"nb_bytes": machine.nb_bytes + more_bytes, name: wanted})
        else:
            _check(network, compiled)
            return
    raise AssertionError("the advice does not help")
