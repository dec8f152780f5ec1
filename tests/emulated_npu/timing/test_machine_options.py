"""Optional keys of a machine: each changes the time of a command as it says, and none changes it by default."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from small_models import model, node
from timed_programs import compute, convolve, load, machine, mfu, operand, steps_of, store

from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.inference import time_program
from device_agents.emulated_npu.machine import Dataflow, Machine, Memory, load_preset
from device_agents.emulated_npu.timing.cost.command_cost import CostModel
from device_agents.emulated_npu.timing.cost.matrix_cost import SramTraffic, sram_traffic, systolic_cycles
from device_agents.emulated_npu.timing.simulation import simulate
from device_agents.emulated_npu.unit_commands import (
    Command,
    DataType,
    Descriptor,
    Function,
    Operand,
    Post,
    Queue,
    Space,
    Wait,
)
from device_agents.emulated_npu.unit_settings import Settings

SIZES = st.integers(1, 40)


def _cycles(command: Command, described: Machine) -> float:
    model = CostModel(described)
    return model.duration_ps(command) / model.cycle_ps


def _depthwise(pixels: tuple[int, int], channels: int, kernel: int, ratio: int = 1) -> Command:
    height, width = (size + kernel - 1 for size in pixels)
    return Command(
        Function.DEPTHWISE,
        operand(Space.NB, 1, *pixels, channels, ratio),
        operand(Space.NB, 1, height, width, channels, ratio),
        operand(Space.NB, 1, kernel, kernel, channels, ratio),
        settings=Settings(kernel=(1, kernel, kernel)),
    )


def _packed(size: int, space: Space = Space.DDR) -> Command:
    """Return the load of a block of packed weights, as the compiler writes it."""
    there, here = (Descriptor(place, DataType.UINT8, (size,), (1,)) for place in (space, Space.SB))
    return Command(Function.LOAD, Operand(here, 0), Operand(there, 0))


# --- Pixels side by side -----------------------------------------------------------------------------------------


@given(SIZES, SIZES, st.integers(1, 4), st.integers(1, 4), SIZES, SIZES)
def test_pixels_side_by_side_divide_the_map_into_blocks(
    height: int, width: int, rows: int, columns: int, channels: int, outputs: int
) -> None:
    """Each block of pixels takes the cycles of one pixel; a map is rounded up along both axes."""
    command = convolve((height, width), channels, outputs, (3, 3))
    one = _cycles(convolve((1, 1), channels, outputs, (3, 3)), machine())
    blocks = -(-height // rows) * -(-width // columns)
    assert _cycles(command, machine(mfu=replace(mfu(4, 4), pixel_rows=rows, pixel_columns=columns))) == blocks * one


def test_a_matrix_product_puts_all_pixels_side_by_side() -> None:
    """With 2 x 2 pixels, 64 rows of a matrix take 16 blocks, not 32; a kernel of two rows keeps the blocks."""
    described = machine(mfu=replace(mfu(4, 4), pixel_rows=2, pixel_columns=2))
    assert _cycles(convolve((1, 64), 4, 4), described) == 16
    assert _cycles(convolve((1, 64), 4, 4, (2, 1)), described) == 2 * 32


def test_multipliers_count_pixels() -> None:
    """A machine of 4 x 4 elements for each of 2 x 3 pixels does 96 multiply-adds in a cycle."""
    unit = replace(mfu(4, 4), pixel_rows=2, pixel_columns=3)
    assert unit.multipliers == 96
    command = convolve((4, 6), 4, 4)
    model = CostModel(machine(mfu=unit))
    assert model.cost(command).macs == 96 * model.duration_ps(command) / model.cycle_ps


@given(SIZES, SIZES, st.integers(1, 5), st.integers(1, 8))
def test_a_step_takes_channels_or_positions_whichever_are_fewer(
    channels: int, outputs: int, kernel: int, step: int
) -> None:
    """A step of s cycles holds 4 s channels of one position, or 4 channels of s positions of the window."""
    taps = kernel * kernel
    steps = min(taps * -(-channels // (4 * step)), -(-taps // step) * -(-channels // 4))
    command = convolve((5, 3), channels, outputs, (kernel, kernel))
    assert _cycles(command, machine(mfu=replace(mfu(4, 4), step_cycles=step))) == 15 * -(-outputs // 4) * steps * step


# --- Depthwise convolutions on the matrix unit -------------------------------------------------------------------


@given(SIZES, SIZES, st.integers(1, 3), st.integers(1, 5))
def test_depthwise_on_the_matrix_unit_has_channels_on_the_columns(
    pixels: int, channels: int, ratio: int, kernel: int
) -> None:
    """One position of the window takes a cycle for each block of columns; with packing "row" a row of it does."""
    command, unit = _depthwise((pixels, 2), channels, kernel, ratio), replace(mfu(8, 4), depthwise="mfu")
    blocks = 2 * pixels * -(-channels * ratio // 4)
    assert _cycles(command, machine(mfu=unit)) == blocks * kernel * kernel
    assert _cycles(command, machine(mfu=replace(unit, packing="row"))) == blocks * kernel


def test_depthwise_on_the_matrix_unit_is_its_busy_time() -> None:
    """The unit that the machine names is busy, and no other."""
    steps = steps_of(_depthwise((4, 4), 8, 3))
    on_vfu, on_mfu = (simulate(steps, machine(mfu=replace(mfu(4, 4), depthwise=unit))) for unit in ("vfu", "mfu"))
    assert on_vfu.mfu_ps == 0 < on_vfu.vfu_ps
    assert on_mfu.vfu_ps == 0 < on_mfu.mfu_ps


def test_a_stationary_array_computes_depthwise_channel_by_channel() -> None:
    """Eight channels are eight products of m pixels by nine weights, one column each."""
    unit = replace(mfu(16, 16, "weight-stationary"), depthwise="mfu")
    expected, _ = systolic_cycles("weight-stationary", 12, 1, 9, 16, 16, products=8)
    assert _cycles(_depthwise((3, 4), 8, 3), machine(mfu=unit)) == expected


# --- Weights loaded behind the fold before ------------------------------------------------------------------------


@given(st.sampled_from(("weight-stationary", "input-stationary")), SIZES, SIZES, SIZES, st.integers(1, 16))
def test_preloading_hides_all_but_the_first_load_and_the_last_skew(
    dataflow: Dataflow, m: int, n: int, k: int, side: int
) -> None:
    """Folds follow each other at the pace of streaming or loading; one fold takes as long as without preloading."""
    plain, streamed = systolic_cycles(dataflow, m, n, k, side, side)
    ahead, again = systolic_cycles(dataflow, m, n, k, side, side, preloads_weights=True)
    assert streamed == again
    folds = (plain + 1) // (3 * side - 2 + (vectors := m if dataflow == "weight-stationary" else n))
    assert ahead == 3 * side - 3 + vectors + (folds - 1) * max(side, vectors)
    assert ahead == plain if folds == 1 else ahead < plain or side == 1


def test_the_key_preloads_weights_reaches_the_cost() -> None:
    """A product of several folds is faster on an array that preloads."""
    plain = mfu(4, 4, "weight-stationary")
    command = convolve((4, 4), 16, 16)
    assert _cycles(command, machine(mfu=replace(plain, preloads_weights=True))) < _cycles(command, machine(mfu=plain))


# --- The output path ---------------------------------------------------------------------------------------------


def test_the_output_path_limits_the_array_only_if_it_is_slower() -> None:
    """64 outputs of one product each take 64 cycles at one a cycle, and 4 without a limit; long sums hide the path."""
    short, long = convolve((4, 4), 4, 4), convolve((4, 4), 4, 4, (5, 5))
    limited = machine(mfu=replace(mfu(4, 4), output_lanes=1))
    assert (_cycles(short, machine()), _cycles(short, limited)) == (16, 64)
    assert _cycles(long, machine()) == _cycles(long, limited) == 16 * 25
    assert _cycles(short, machine(mfu=replace(mfu(4, 4), output_lanes=0.5))) == 128


def test_a_residual_costs_what_the_machine_says() -> None:
    """The addition of 64 elements is free, or takes 16 cycles at four a cycle."""
    plain = convolve((4, 4), 4, 4)
    added = replace(plain, third=operand(Space.NB, 1, 4, 4, 4))
    costly = machine(mfu=replace(mfu(4, 4), residual_lanes=4))
    assert _cycles(added, machine()) == _cycles(plain, machine()) == _cycles(plain, costly) == 16
    assert _cycles(added, costly) == 32


# --- Ports of the buffers ----------------------------------------------------------------------------------------


def test_bytes_of_the_buffers_are_read_once_for_each_group_of_columns() -> None:
    """Features are read once for `held_columns` output channels, weights once, and results are written once."""
    command = convolve((2, 2), 8, 12)
    assert sram_traffic(mfu(4, 4), command) == SramTraffic(3 * 32, 48, 96, 0)
    assert sram_traffic(replace(mfu(4, 4), held_columns=16), command) == SramTraffic(32, 48, 96, 0)
    assert sram_traffic(mfu(4, 4), replace(command, accumulate=True)) == SramTraffic(3 * 32 + 48, 48, 96, 0)
    assert sram_traffic(mfu(4, 4), compute(10)) == SramTraffic(10, 10, 0, 0)
    assert sram_traffic(mfu(4, 4), load(10)) == SramTraffic(0, 10, 0, 0)
    assert sram_traffic(mfu(4, 4), _packed(10)) == SramTraffic(0, 0, 0, 10)


def test_a_narrow_port_limits_both_units() -> None:
    """A convolution that moves 144 bytes of NB and 96 of SB takes the cycles of the port that needs more."""
    command = convolve((2, 2), 8, 12)
    assert _cycles(command, machine()) == 24
    assert _cycles(command, machine(nb_port_bytes=2)) == 72
    assert _cycles(command, machine(sb_port_bytes=2)) == 48
    assert _cycles(command, machine(nb_port_bytes=2, sb_port_bytes=1)) == 96
    assert _cycles(compute(10), machine(nb_port_bytes=1)) == 20


# --- Compressed weights ------------------------------------------------------------------------------------------


def test_compressed_weights_are_read_with_fewer_bytes() -> None:
    """Only packed weights on their way to SB are compressed, each memory by its own ratio."""
    ddr = Memory(1 << 30, 1e9, 0.0, 1, 4.0)
    described = machine(ddr=ddr)
    assert _cycles(_packed(1000), described) == 250
    assert _cycles(_packed(1000), machine()) == 1000
    assert _cycles(_packed(1000, Space.LLC), described) == 250 == _cycles(_packed(1000, Space.LLC), machine())
    assert _cycles(load(1000), described) == 1000
    (traffic,) = CostModel(described).cost(_packed(1000)).traffic
    assert traffic.read_bytes == 250


def test_a_computed_second_factor_is_not_compressed() -> None:
    """A LOAD of typed elements into SB reads all of them."""
    factor = Command(Function.LOAD, operand(Space.SB, 10, 10), operand(Space.DDR, 10, 10))
    assert _cycles(factor, machine(ddr=Memory(1 << 30, 1e9, 0.0, 1, 4.0))) == 100


def test_a_computed_second_factor_of_bytes_is_not_compressed() -> None:
    """A product of two uint8 tensors takes as long on a machine that holds weights compressed."""
    shapes = {"a": (2, 64, 300), "b": (2, 300, 64)}
    inputs = {name: np.zeros(shape, np.uint8) for name, shape in shapes.items()}
    proto = model([node("MatMulInteger", "a b", "y")], inputs).SerializeToString()
    plain = load_preset("edge")
    described = replace(plain, ddr=replace(plain.ddr, weight_compression=4.0))
    cycles = [time_program(compile_model(proto, one).program, one).cycles for one in (plain, described)]
    assert cycles[0] == cycles[1]


# --- Latency behind transfers ------------------------------------------------------------------------------------


def _with_latency(outstanding: int, latency_ns: float = 100.0, depth: int = 16) -> Machine:
    ddr = Memory(1 << 30, 1e9, latency_ns, 1)
    return machine(ddr=ddr, io_outstanding=outstanding, io_queue_depth=depth)


@pytest.mark.parametrize(("outstanding", "cycles"), [(1, 3 * 140), (2, 140 + 100 + 40), (3, 220), (8, 220)])
def test_latency_passes_behind_the_transfers_before(outstanding: int, cycles: int) -> None:
    """Three transfers of 40 cycles after 100 of latency: with two in flight, the third is asked for after the first."""
    timing = simulate(steps_of(load(40), load(40), load(40)), _with_latency(outstanding))
    assert timing.makespan_ps == cycles * 1000
    assert timing.io_ps == timing.makespan_ps and timing.wait_ps == 0


def test_a_wait_holds_the_request_back_and_a_post_does_not() -> None:
    """The latency of a transfer behind a WAIT counts from the end of the wait; behind a POST it is hidden."""
    described = _with_latency(8)
    posted = steps_of(load(200), Post(Queue.IO, 0), load(40))
    assert simulate(posted, described).makespan_ps == (100 + 200 + 40) * 1000
    waiting = steps_of(compute(300), Post(Queue.CP, 1), load(200), Wait(Queue.IO, 1), load(40))
    assert simulate(waiting, described).makespan_ps == (300 + 100 + 40) * 1000


def test_stores_are_hidden_alike() -> None:
    """A store between two loads takes its place in the queue."""
    timing = simulate(steps_of(load(40), store(40), load(40)), _with_latency(8))
    assert timing.makespan_ps == 220_000
