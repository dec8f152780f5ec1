"""Networks on a machine with a queue for the last-level cache: the same values in every order, and no slower."""

from dataclasses import replace

from hypothesis import assume, given, settings, strategies as st
from networks_on_npu import (
    TOLERANCE,
    NetworkCase,
    execute,
    network_of,
    relative_error,
    small_machine,
)
from random_networks import all_options, machines_for, random_networks
from small_models import node, values

from device_agents.emulated_npu.compiler.compiled import Compiled
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.isa.sequencer import sequence
from device_agents.emulated_npu.machine import Machine, find_machine
from device_agents.emulated_npu.timing.simulation import simulate_program
from device_agents.emulated_npu.unit_commands import Command, Queue


@st.composite
def _machines(draw: st.DrawFn, network: NetworkCase) -> Machine:
    """Draw machines with a last-level cache that holds some of the network."""
    machine = draw(machines_for(network))
    return replace(machine, llc=replace(find_machine("edge").llc, bytes=draw(st.sampled_from((1 << 10, 16 << 10)))))


def _compiled(network: NetworkCase, machine: Machine, options: Options) -> Compiled:
    try:
        return compile_model(network.model, machine, options)
    except DoesNotFit:
        assume(False)
        raise


@settings(max_examples=10)
@given(st.data())
def test_a_queue_for_the_cache_makes_no_random_network_slower(data: st.DataObject) -> None:
    """Compiled for two queues of transfers a network takes at most 1 % longer than for one, and no less than each."""
    network = data.draw(random_networks())
    machine, options = data.draw(_machines(network)), data.draw(all_options())
    one, two = (_compiled(network, replace(machine, llc_queue_depth=depth), options) for depth in (0, 16))
    timing = simulate_program(two.program, two.machine)
    assert timing.makespan_ps <= 1.01 * simulate_program(one.program, one.machine).makespan_ps
    assert timing.makespan_ps >= max(timing.transfer_ps, timing.compute_ps)


def test_features_of_the_cache_pass_beside_weights_of_ddr() -> None:
    """Convolutions whose features and weights do not fit on the core use both queues and gain more than 5 %."""
    constants = {f"w{place}": values((16, 16, 3, 3), place) for place in range(6)}
    nodes = [node("Conv", f"x{place} w{place}", f"x{place + 1}", pads=[1] * 4) for place in range(6)]
    network = network_of(nodes, {"x0": values((1, 16, 32, 32))}, constants, ["x6"])
    cache = replace(find_machine("edge").llc, bytes=1 << 20, bytes_per_s=17e9)
    one = small_machine(24 << 10, 16 << 10, 0, (16, 16), llc=cache)
    times_ps = []
    for machine in (one, replace(one, llc_queue_depth=16)):
        compiled = compile_model(network.model, machine)
        assert relative_error(execute(compiled, network), network.expected) <= TOLERANCE
        times_ps.append(simulate_program(compiled.program, machine).makespan_ps)
    queues = {step.item.queue for step in sequence(compiled.program.code) if isinstance(step.item, Command)}
    assert {Queue.IO, Queue.LLC} <= queues
    assert times_ps[1] < 0.95 * times_ps[0]
