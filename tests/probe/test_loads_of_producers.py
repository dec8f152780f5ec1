"""On a device with a memory of its own, what producers load does not hide a layer."""

import pytest

from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.machine import find_machine
from device_agents.emulated_npu.timing.simulation import simulate_program
from harness.network.fusion.fusion_rules import DEFAULT_RULES
from harness.network.layers import FEATURE_MAP, cut
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.probe_plan import CutNetwork, plan_probes
from harness.space.configuration import Configuration, Convolution, Product
from harness.space.layer_network import network_of, own_layers

EDGE = find_machine("edge")


def makespan_s(model: bytes) -> float:
    """Return the seconds of a model on the machine of npu01, without a host."""
    return simulate_program(compile_model(model, EDGE).program, EDGE).makespan_ps / 1e12


@pytest.mark.parametrize(
    "layer",
    [
        Product("MatMul", 0, 1024, 1056, 96, "none"),
        Convolution(1, 32, 32, (240, 240), 1, 1, 1, "none", batch_norm=False, residual=False, context=FEATURE_MAP),
        Convolution(1, 64, 64, (28, 28), 3, 1, 1, "none", batch_norm=False, residual=False, context=FEATURE_MAP),
    ],
    ids=["product", "large map", "small map"],
)
def test_no_layer_is_faster_than_the_machine_multiplies(layer: Configuration) -> None:
    """The context probe takes at least the layer's multiply-adds at the machine's peak longer than the null probe."""
    network = network_of([layer], "one")
    ((one,),) = own_layers(cut(network, DEFAULT_RULES)).values()
    blocked = frozenset(name for name, kind in network.types.items() if len(kind.shape) == 4)
    plan = plan_probes([CutNetwork(network, (one,), blocked)], DEFAULT_RULES, AuxiliaryKind.ROWPOOL)
    (probes,) = plan.layers
    with_s, without_s = (makespan_s(plan.probes[name].model.content) for name in (probes.in_context, probes.null))
    assert isinstance(layer, Product | Convolution)
    peak = EDGE.mfu.rows * EDGE.mfu.columns * EDGE.clock_hz
    assert with_s - without_s >= layer.macs / peak
