"""Invariants of the time of every program, on random and built-in networks (S2.6)."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import assume, given, settings, strategies as st
from networks_on_npu import builtin_model, with_varied_weights
from random_networks import all_options, machines_for, random_networks

from device_agents.emulated_npu.compiler.codegen.emit import emit
from device_agents.emulated_npu.compiler.compiled import Compiled
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.isa.sequencer import sequence
from device_agents.emulated_npu.machine import Machine, find_machine
from device_agents.emulated_npu.timing.formula import Formula, formula
from device_agents.emulated_npu.timing.simulation import Timing, simulate_program

FAST = ("dscnn", *(pytest.param(name, marks=pytest.mark.long) for name in ("squeezenet", "mobilenetv2")))
_DEFAULT = Options()


@st.composite
def programs(draw: st.DrawFn) -> Compiled:
    """Draw random networks compiled for random small machines under any options."""
    network = draw(random_networks())
    machine = draw(machines_for(network))
    try:
        return compile_model(network.model, machine, draw(all_options()))
    except DoesNotFit:
        assume(False)
        raise


def _check(compiled: Compiled) -> None:
    """Assert the bounds of the makespan, the busiest queue and all queues with control, and that all sums agree."""
    machine = compiled.machine
    timing = simulate_program(compiled.program, machine)
    queues_ps = timing.io_ps, timing.cp_ps, timing.vfu_queue_ps, timing.llc_queue_ps
    assert max(queues_ps) <= timing.makespan_ps <= sum(queues_ps) + timing.control_ps
    assert timing.cp_ps + timing.vfu_queue_ps == timing.mfu_ps + timing.vfu_ps
    assert timing.wait_ps == timing.makespan_ps - max(queues_ps)
    assert sum(wait.ps for wait in timing.waits) == timing.wait_ps
    assert sum(timing.layers) + timing.no_layer_ps == timing.makespan_ps
    assert len(timing.layers) <= len(compiled.program.layers)
    _check_formula(compiled, timing)


def _check_formula(compiled: Compiled, timing: Timing) -> None:
    """Assert that the formula is the simulation with free control, which is no longer and has the same sums.

    With several transfers in flight the sum of the IO queue may differ: late control asks for a transfer later, so less
    of its latency passes while others move their data.
    """
    program, machine = compiled.program, compiled.machine
    found = formula(sequence(program.code, layer_of=program.layer_of), machine)
    free = simulate_program(program, replace(machine, issue_cycles=0))
    assert found == Formula(
        free.io_ps, free.cp_ps, free.wait_ps, free.makespan_ps, free.vfu_queue_ps, free.llc_queue_ps
    )
    assert free.makespan_ps <= timing.makespan_ps
    assert (free.cp_ps, free.vfu_queue_ps) == (timing.cp_ps, timing.vfu_queue_ps)
    if machine.io_outstanding == 1:
        assert (free.io_ps, free.llc_queue_ps) == (timing.io_ps, timing.llc_queue_ps)


def _faster(machine: Machine) -> list[Machine]:
    """Return the machine with more bandwidth, less latency and a faster clock."""
    return [
        replace(machine, ddr=replace(machine.ddr, bytes_per_s=machine.ddr.bytes_per_s * 1.7)),
        replace(machine, ddr=replace(machine.ddr, latency_ns=machine.ddr.latency_ns / 3)),
        replace(machine, llc=replace(machine.llc, bytes_per_s=machine.llc.bytes_per_s * 2)),
        replace(machine, clock_hz=machine.clock_hz * 2),
        replace(machine, clock_hz=machine.clock_hz * 5 // 4),
    ]


def _check_faster(compiled: Compiled) -> None:
    """Assert that the same binary takes no longer with more bandwidth, less latency or a faster clock."""
    before = simulate_program(compiled.program, compiled.machine).makespan_ps
    for machine in _faster(compiled.machine):
        assert simulate_program(compiled.program, machine).makespan_ps <= before


def _check_binary(compiled: Compiled) -> None:
    """Assert that the decoded, unrolled items encode to a program that decodes to the same items."""
    program = compiled.program
    items = [step.item for step in sequence(program.code, layer_of=program.layer_of) if step.item is not None]
    code, layer_of = emit(items)
    again = [step.item for step in sequence(code, layer_of=layer_of) if step.item is not None]
    assert items == again


def _check_buffers(compiled: Compiled) -> None:
    """Assert that the program fits the memories; the auxiliary buffer is part of NB (S3.4)."""
    footprint, machine = compiled.program.footprint, compiled.machine
    assert footprint.nb_bytes + footprint.halo_bytes <= machine.nb_bytes
    assert footprint.sb_bytes <= machine.sb_bytes
    assert footprint.halo_bytes <= machine.halo_bytes
    assert footprint.llc_bytes <= machine.llc.bytes
    assert footprint.ddr_bytes <= machine.ddr.bytes


@given(programs())
@settings(max_examples=15)
def test_random_programs_keep_every_invariant(compiled: Compiled) -> None:
    """Random programs keep bounds and sums, fit the machine, survive encoding, and are no slower on faster machines."""
    _check(compiled)
    _check_faster(compiled)
    _check_binary(compiled)
    _check_buffers(compiled)


@cache
def _model(name: str) -> bytes:
    return with_varied_weights(builtin_model(name))[0]


@cache
def _for_edge(name: str, options: Options = _DEFAULT) -> Compiled:
    return compile_model(_model(name), find_machine("edge"), options)


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("options", [Options(), Options(reorder=False), Options("layers", "refetch")], ids=str)
def test_networks_keep_bounds_and_sums(name: str, options: Options) -> None:
    """Whole networks on the edge preset keep the same bounds and sums."""
    _check(_for_edge(name, options))


@pytest.mark.parametrize("name", FAST)
def test_networks_are_no_slower_on_a_faster_machine(name: str) -> None:
    """The binaries of networks are no slower on faster machines."""
    _check_faster(_for_edge(name))


SLOWER = (
    "squeezenet",
    "resnet18",
    "efficientnet_b0",
    "shufflenet",
    "resnet50",
    "vit_tiny",
    "bert_mini",
    "mobilenetv2",
)
SWEPT = (
    "dscnn",
    *(pytest.param(name, marks=pytest.mark.long) for name in SLOWER),
)


@pytest.mark.parametrize("name", SWEPT)
def test_compiled_for_a_faster_machine_a_network_is_at_most_2_percent_slower(name: str) -> None:
    """A network compiled for a faster machine is at most 2 % slower, because the compiler decides by prediction."""
    compiled = _for_edge(name)
    before = simulate_program(compiled.program, compiled.machine).makespan_ps
    for machine in _faster(compiled.machine):
        after = simulate_program(compile_model(_model(name), machine).program, machine).makespan_ps
        assert after <= 1.02 * before


@pytest.mark.parametrize("name", FAST)
def test_reordering_is_never_slower(name: str) -> None:
    """With re-ordering a network is no slower than without."""
    hoisted, in_order = (_for_edge(name, Options(reorder=reorder)) for reorder in (True, False))
    times = [simulate_program(each.program, each.machine).makespan_ps for each in (hoisted, in_order)]
    assert times[0] <= times[1]
