"""Totals of a run: useful multiply-adds, bytes by class of tensor, instructions."""

from dataclasses import replace

import numpy as np
import pytest
from counting_machine import CountingMachine
from small_models import model, node

from device_agents.emulated_npu.compiler.compiled import Compiled
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.emulator_errors import BudgetExceeded, DoesNotFit, ExecutionFault
from device_agents.emulated_npu.execution.functional import memories_for, run
from device_agents.emulated_npu.inference import (
    MOST_ITEMS,
    MOST_ITEMS_OF_FILE,
    check_accesses,
    time_program,
)
from device_agents.emulated_npu.isa.assembly import assemble
from device_agents.emulated_npu.isa.program import Footprint, Program
from device_agents.emulated_npu.machine import load_preset
from device_agents.emulated_npu.reports.accounting import (
    instruction_counts,
    issued_instructions,
    moved_by_class,
    moved_by_memory,
    useful_macs,
)

EDGE = load_preset("edge")
PICTURE = np.linspace(-1, 1, 3 * 18 * 18, dtype=np.float32).reshape(1, 3, 18, 18)
FIRST, SECOND = (
    np.random.default_rng(k).standard_normal(s).astype(np.float32) for k, s in enumerate([(8, 3, 3, 3), (8, 1, 3, 3)])
)


def _compiled(options: Options) -> Compiled:
    """Return 18 x 18 -> 16 x 16 -> depthwise 16 x 16 -> 7 x 7 by pooling that drops the last row and column."""
    nodes = [
        node("Conv", "x first", "a"),
        node("Conv", "a second", "b", pads=[1] * 4, group=8),
        node("MaxPool", "b", "y", kernel_shape=[3, 3], strides=[2, 2]),
    ]
    proto = model(nodes, {"x": PICTURE}, {"first": FIRST, "second": SECOND})
    return compile_model(proto.SerializeToString(), EDGE, options)


def _run(compiled: Compiled) -> CountingMachine:
    functional = CountingMachine(memories_for(compiled.machine, compiled.program.footprint))
    run(compiled.program, functional, compiled.image({}), {"x": PICTURE})
    return functional


def test_outputs_that_no_layer_reads_are_not_useful() -> None:
    """Outputs that pooling drops count layer by layer, which computes them, but not in tiles, which skip them."""
    tiled, single = _compiled(Options(chains="whole", tile=(2, 3))), _compiled(Options(chains="layers"))
    assert sum(useful_macs(single).values()) == 16 * 16 * 8 * (3 * 9 + 9) == _run(single).multiply_adds
    assert sum(useful_macs(tiled).values()) == (16 * 16 * 3 + 15 * 15) * 8 * 9 == _run(tiled).multiply_adds


def test_multiply_adds_beyond_the_useful_ones_are_those_of_the_halo() -> None:
    """For equal tiles the useful multiply-adds are equal, and only recomputing the halo takes more."""
    retained, recomputed = (
        _compiled(Options(chains="whole", tile=(2, 3), halo="retain")),
        _compiled(Options(chains="whole", tile=(2, 3), halo="recompute")),
    )
    assert useful_macs(retained) == useful_macs(recomputed)
    assert _run(recomputed).multiply_adds > sum(useful_macs(recomputed).values()) == _run(retained).multiply_adds


@pytest.mark.parametrize(
    "options", [Options(), Options(chains="layers"), Options(chains="whole", tile=(2, 3))], ids=str
)
def test_classes_and_memories_move_the_same_bytes(options: Options) -> None:
    """The external classes sum to the external memories; outputs are written once, weights never."""
    compiled = _compiled(options)
    timed = time_program(compiled.program, EDGE)
    classes = moved_by_class(timed.steps, compiled, timed.costs)
    memories = moved_by_memory(timed.steps, timed.costs)
    external = classes["weights"] + classes["activations"] + classes["input_output"]
    assert external == sum(memories.values(), start=type(external)())
    assert classes["weights"].written_bytes == 0 < classes["weights"].read_bytes
    assert classes["input_output"].written_bytes == 7 * 7 * 8 * 4
    assert classes["input_output"].read_bytes >= PICTURE.nbytes
    assert (classes["halo_copies"].written_bytes > 0) == (compiled.program.footprint.halo_bytes > 0)


def test_instructions_are_counted_by_class_and_as_issued() -> None:
    """A loop of three rounds has two instructions before it, two in each round, and one after it."""
    source = "set r1, 3\nset r2, 0\nL2:\nadd_immediate r1, r1, -1\nbranch_not_zero r1, L2\nhalt\n"
    program = Program("edge", assemble(source), (), (-1,) * 5, (), (), Footprint(0, 0, 0, 0, 0))
    assert instruction_counts(program) == {"vfu": 0, "mfu": 0, "io": 0, "config": 3, "control": 2}
    assert issued_instructions(time_program(program, EDGE).steps) == 2 + 3 * 2 + 1


def test_accesses_are_checked_without_running() -> None:
    """A sound program passes; with less memory than it touches, the error names the instruction."""
    program = _compiled(Options()).program
    steps = time_program(program, EDGE).steps
    check_accesses(steps, program, EDGE)
    smaller = replace(program, footprint=replace(program.footprint, nb_bytes=program.footprint.nb_bytes // 4))
    with pytest.raises(ExecutionFault, match=r"instruction \d+: bytes"):
        check_accesses(steps, smaller, EDGE)


def test_program_for_more_memory_than_there_is() -> None:
    """A program that needs more memory than the machine has is refused before it is timed."""
    program = _compiled(Options()).program
    larger = replace(program, footprint=replace(program.footprint, sb_bytes=EDGE.sb_bytes + 1))
    with pytest.raises(DoesNotFit, match="SB"):
        time_program(larger, EDGE)


def test_budget_bounds_a_loop_that_issues_nothing() -> None:
    """A loop of control instructions only ends with the cycle budget."""
    code = assemble("L0:\njump L0\n")
    program = Program("edge", code, (), (-1,), (), (), Footprint(0, 0, 0, 0, 0))
    with pytest.raises(BudgetExceeded, match="more than 1000 cycles") as caught:
        time_program(program, EDGE, cycle_budget=1000)
    assert "cycle budget" in caught.value.next_step


def test_the_budget_error_names_cycles() -> None:
    """The error for commands beyond the budget names cycles, the unit of the budget."""
    program = _compiled(Options()).program
    cycles = time_program(program, EDGE).cycles
    for budget in (int(cycles) - 1, int(cycles) // 2):
        with pytest.raises(BudgetExceeded, match=f"{budget} cycles") as caught:
            time_program(program, EDGE, cycle_budget=budget)
        assert " ps" not in caught.value.what + caught.value.why + caught.value.next_step


def test_items_are_limited() -> None:
    """A program with the largest allowed number of items is timed, one with more is refused; files may have fewer."""
    program = _compiled(Options()).program
    items = len(time_program(program, EDGE).steps)
    assert len(time_program(program, EDGE, most_items=items).steps) == items
    with pytest.raises(BudgetExceeded, match=f"after {items - 1} items"):
        time_program(program, EDGE, most_items=items - 1)
    assert 100_000 < MOST_ITEMS_OF_FILE < MOST_ITEMS
