"""The halo of a chain competes with a layer that needs all of NB."""

import pytest
from networks_on_npu import TOLERANCE, NetworkCase, execute, network_of, relative_error, small_machine
from small_models import node, values

from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.emulator_errors import DoesNotFit

# Softmax over all of a map of 4 x 40 x 40 floats: 25600 bytes, twice. The halo of a row of tiles: 2 x 40 x 4 floats.
SOFTMAX_BYTES, HALO_BYTES = 51200, 1280


def _network() -> NetworkCase:
    nodes = [node("Conv", "x w", "t", pads=[1, 1, 1, 1]), node("Flatten", "t", "f"), node("Softmax", "f", "y")]
    return network_of(nodes, {"x": values((1, 4, 40, 40))}, {"w": values((4, 4, 3, 3))}, ["y"])


@pytest.mark.parametrize("nb_bytes", [SOFTMAX_BYTES, SOFTMAX_BYTES + HALO_BYTES - 64])
def test_layers_that_fit_alone_and_not_with_the_halo_of_another(nb_bytes: int) -> None:
    """The halo buffer reduces the room of every layer; the error has the demand and the remaining room."""
    machine = small_machine(nb_bytes=nb_bytes, halo_bytes=4096)
    with pytest.raises(DoesNotFit) as caught:
        compile_model(_network().model, machine, Options("layers", halo="retain", tile=(8, 40)))
    assert caught.value.what == f"y needs {SOFTMAX_BYTES} bytes of NB"
    assert caught.value.why == f"there are {nb_bytes - HALO_BYTES}"


def test_a_chain_whose_layers_have_no_room_alone() -> None:
    """A chained convolution that is not cut needs no halo, even if the forced cut would not fit."""
    machine = small_machine(nb_bytes=SOFTMAX_BYTES, halo_bytes=4096)
    network = _network()
    compiled = compile_model(network.model, machine, Options(halo="retain", tile=(8, 40)))
    assert len(compiled.chains) == 1
    assert compiled.decisions[0].singly_ps is None
    assert relative_error(execute(compiled, network), network.expected) <= TOLERANCE
