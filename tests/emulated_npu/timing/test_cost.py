"""The cost of one command: transfers, the matrix unit, the vector unit."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st
from timed_programs import compute, convolve, load, machine, mfu, operand, store

from device_agents.emulated_npu.emulator_errors import ExecutionFault
from device_agents.emulated_npu.machine import Machine, Memory, Mfu
from device_agents.emulated_npu.machine.parts import Vfu
from device_agents.emulated_npu.timing.cost.command_cost import CostModel, Traffic, external_bytes, macs
from device_agents.emulated_npu.timing.cost.matrix_cost import systolic_cycles
from device_agents.emulated_npu.unit_commands import Command, DataType, Descriptor, Function, Operand, Space
from device_agents.emulated_npu.unit_settings import Activation, Binary, Reduction, Settings


def _view(space: Space, dims: tuple[int, ...], strides: tuple[int, ...]) -> Operand:
    return Operand(Descriptor(space, DataType.INT8, dims, strides), 0)


def duration_ps(described: Machine, command: Command) -> int:
    """Return the time of a command on a machine."""
    return CostModel(described).duration_ps(command)


def _cycles(command: Command, described: Machine) -> float:
    return duration_ps(described, command) / CostModel(described).cycle_ps


# --- IO ---------------------------------------------------------------------------------------------------------


def test_a_transfer_takes_its_latency_and_its_bursts_at_the_bandwidth() -> None:
    """130 bytes in bursts of 64 are 192 bytes, which take 96 ns at 2 GB/s after 100 ns of latency."""
    ddr = Memory(1 << 30, 2e9, 100.0, 64)
    assert duration_ps(machine(ddr=ddr), load(130)) == 196_000


@pytest.mark.parametrize(
    ("dims", "strides", "bursts"),
    [
        ((4, 8, 16), (128, 16, 1), 8),  # one run of 512 bytes
        ((8, 4, 16), (16, 128, 1), 8),  # the same in another order of axes
        ((4, 8, 16), (-128, 16, 1), 8),  # walked backward
        ((4, 8, 16), (256, 16, 1), 8),  # four runs of 128
        ((4, 8, 16), (1024, 128, 1), 32),  # 32 runs of 16
        ((4, 70), (128, 1), 8),  # four runs of 70
        ((4, 64), (0, 1), 1),  # repeated on chip
        ((5, 3, 8), (8, 4, 1), 15),  # windows that overlap are fetched one by one
        ((), (), 1),
    ],
)
def test_runs_are_rounded_up_to_bursts_one_by_one(dims: tuple[int, ...], strides: tuple[int, ...], bursts: int) -> None:
    """Adjacent axes merge into runs in memory order, and each run takes whole bursts."""
    command = Command(Function.LOAD, operand(Space.NB, *dims), _view(Space.DDR, dims, strides))
    described = machine(ddr=Memory(1 << 30, 1e9, 0.0, 64))
    assert duration_ps(described, command) == bursts * 64 * 1000


def test_the_strides_on_chip_cost_nothing() -> None:
    """Only the external side of a transfer takes time."""
    scattered = Command(Function.LOAD, _view(Space.NB, (8, 8), (100, 3)), operand(Space.DDR, 8, 8))
    assert duration_ps(machine(), scattered) == duration_ps(machine(), load(64))


def test_a_gather_pays_row_by_row() -> None:
    """Five rows of 70 bytes take ten bursts, and only the fetched rows count as read."""
    rows = Command(
        Function.GATHER,
        operand(Space.NB, 5, 70),
        operand(Space.DDR, 1000, 70),
        operand(Space.NB, 5, dtype=DataType.INT32),
    )
    assert duration_ps(machine(ddr=Memory(1 << 30, 1e9, 0.0, 64)), rows) == 10 * 64 * 1000
    assert external_bytes(rows) == (Traffic(Space.DDR, 350, 0),)


def test_each_memory_has_its_own_parameters() -> None:
    """The last-level cache of the test machine is four times as fast."""
    assert duration_ps(machine(), load(100)) == 4 * duration_ps(machine(), load(100, space=Space.LLC))


def test_external_bytes_are_the_payload() -> None:
    """Loads read, stores write, and computing touches no external memory."""
    assert external_bytes(load(100)) == (Traffic(Space.DDR, 100, 0),)
    assert external_bytes(load(100, space=Space.LLC)) == (Traffic(Space.LLC, 100, 0),)
    assert external_bytes(store(100)) == (Traffic(Space.DDR, 0, 100),)
    assert external_bytes(compute(100)) == ()


@given(
    size=st.integers(1, 10**6),
    bandwidths=st.tuples(st.floats(1e6, 1e12), st.floats(1e6, 1e12)),
    burst=st.sampled_from((1, 32, 64)),
)
def test_more_bandwidth_is_never_slower(size: int, bandwidths: tuple[float, float], burst: int) -> None:
    """Rounding to whole picoseconds keeps the order."""
    slow, fast = (machine(ddr=Memory(1 << 30, each, 55.5, burst)) for each in sorted(bandwidths))
    assert duration_ps(fast, load(size)) <= duration_ps(slow, load(size))


def test_an_absent_cache_is_a_fault() -> None:
    """The error for a program that uses an absent LLC says so."""
    with pytest.raises(ExecutionFault, match="LLC"):
        duration_ps(machine(llc=Memory(0, 1.0, 0.0, 1)), load(10, space=Space.LLC))


# --- MFU --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("packing", "cycles"),
    [
        ("none", 6 * 9 * 1 * 3),  # 3 channels fill 3 of 16 rows
        ("row", 6 * 3 * 1 * 3),  # 3 x 3 channels of a row of the window fill 9 of 16
        ("stride", math.ceil(6 * 9 * 1 / 4 * 3)),  # 3 x 2 x 2 channels fill 12 of 16
    ],
)
def test_cycles_of_a_dot_product_by_packing(packing: str, cycles: int) -> None:
    """Cycles of six pixels, a 3 x 3 kernel with stride 2, 3 channels on 16 rows and 20 outputs on 8 columns."""
    command = convolve((2, 3), 3, 20, kernel=(3, 3), stride=(2, 2))
    unit = replace(mfu(16, 8), packing=packing, startup_cycles=7)  # type: ignore[arg-type]
    assert _cycles(command, machine(mfu=unit)) == cycles + 7


@pytest.mark.parametrize(
    ("pixels", "channels", "kernels", "kernel", "stride", "cycles"),
    [
        ((112, 112), 3, 64, 7, 2, 153_664),
        ((56, 56), 64, 256, 1, 1, 25_088),
        ((56, 56), 64, 64, 3, 1, 50_176 * 9 // 4),  # the sheet's has Winograd
        ((28, 28), 256, 512, 1, 2, 50_176),
    ],
)
def test_stride_packing_counts_as_the_published_sheet(
    pixels: tuple[int, int], channels: int, kernels: int, kernel: int, stride: int, cycles: int
) -> None:
    """Multiply cycles equal rows of the sheet at 2048 multipliers: 16 rows, 128 columns."""
    command = convolve(pixels, channels, kernels, kernel=(kernel, kernel), stride=(stride, stride))
    assert _cycles(command, machine(mfu=mfu(16, 128, packing="stride"))) == cycles


@pytest.mark.parametrize(
    ("command", "cycles"),
    [
        (convolve((110, 110), 3, 64, kernel=(7, 7), stride=(2, 2)), 121_939),  # ResNet-18 conv1
        (convolve((1, 1), 512, 1000), 48_639),  # its fully connected layer
    ],
)
def test_a_weight_stationary_array_takes_the_closed_form(command: Command, cycles: int) -> None:
    """Cycles at 32 x 32 equal SCALE-Sim's."""
    assert _cycles(command, machine(mfu=mfu(32, 32, "weight-stationary"))) == cycles


@pytest.mark.parametrize("dataflow", ["weight-stationary", "output-stationary", "input-stationary"])
def test_a_systolic_array_fills_and_a_dot_product_does_not(dataflow: str) -> None:
    """`fill_ps` is the start-up of a dot-product array, plus fill and drain on a systolic one."""
    command = convolve((8, 8), 64, 64)
    systolic = CostModel(machine(mfu=Mfu(16, 16, dataflow, "none", 5))).cost(command)  # type: ignore[arg-type]
    plain = CostModel(machine(mfu=mfu(16, 16, startup=5))).cost(command)
    assert plain.fill_ps == 5_000
    assert 5_000 < systolic.fill_ps < systolic.duration_ps


@given(
    pixels=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    channels=st.integers(1, 40),
    columns=st.integers(1, 40),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    packing=st.sampled_from(("none", "row")),
    dataflow=st.sampled_from(("dot-product", "weight-stationary", "output-stationary", "input-stationary")),
)
def test_no_array_exceeds_its_multipliers(
    pixels: tuple[int, int], channels: int, columns: int, kernel: tuple[int, int], packing: str, dataflow: str
) -> None:
    """No dataflow or packing exceeds rows x columns multiply-adds per cycle."""
    command = convolve(pixels, channels, columns, kernel=kernel)
    unit = Mfu(8, 4, dataflow, packing, 0)  # type: ignore[arg-type]
    assert macs(command) == math.prod(pixels) * math.prod(kernel) * channels * columns
    assert _cycles(command, machine(mfu=unit)) * 32 >= macs(command)


def test_the_epilogue_of_the_matrix_unit_is_free() -> None:
    """Sum, scale, shift and activation take no time."""
    plain = convolve((4, 4), 8, 8)
    fused = replace(
        plain,
        third=plain.target,
        fourth=operand(Space.SB, 2, 8),
        settings=replace(plain.settings, activation=Activation.SIGMOID),
    )
    assert duration_ps(machine(), fused) == duration_ps(machine(), plain)


# --- VFU --------------------------------------------------------------------------------------------------------


def _vector(function: Function, dims: tuple[int, ...], sources: int = 1, **settings: object) -> Command:
    view = operand(Space.NB, *dims)
    operands = dict.fromkeys(("first", "second", "third")[:sources], view)
    return replace(Command(function, view, settings=Settings(**settings)), **operands)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("command", "operations"),
    [
        (_vector(Function.COPY, (10, 10)), 100),
        (_vector(Function.FILL, (10, 10), sources=0), 100),
        (_vector(Function.MAP, (10, 10), activation=Activation.RELU), 100),
        (_vector(Function.MAP, (10, 10), activation=Activation.TANH), 800),
        (_vector(Function.BINARY, (10, 10), 2, mode=Binary.ADD), 100),
        (_vector(Function.BINARY, (10, 10), 2, mode=Binary.DIVIDE), 800),
        (_vector(Function.BINARY, (10, 10), 2, mode=Binary.ADD, activation=Activation.RELU), 100),
        (_vector(Function.BINARY, (10, 10), 2, mode=Binary.ADD, activation=Activation.GELU), 900),
        (_vector(Function.AFFINE, (10, 10), 3), 100),
        (_vector(Function.SOFTMAX, (10, 10), axes=0b10), 100 * (4 + 8) + 10 * 8),
        (_vector(Function.NORMALIZE, (10, 10), 3, axes=0b10), 100 * 4 + 10 * 16),
        (_vector(Function.NORMALIZE, (10, 10), 1, axes=0b10), 100 * 3 + 10 * 16),
        (_vector(Function.LRN, (1, 5, 5, 4), mode=5), 100 * (3 + 5 + 16)),
        (_vector(Function.POOL_MAX, (1, 5, 5, 4), kernel=(1, 3, 3), pad=(0, 1, 1)), 13 * 13 * 4),
        (_vector(Function.POOL_AVERAGE, (1, 5, 5, 4), kernel=(1, 3, 3), pad=(0, 1, 1)), 13 * 13 * 4 + 100),
    ],
)
def test_operations_of_the_vector_unit(command: Command, operations: int) -> None:
    """Costs follow the table of vector_cost.py, at 8 cycles per special operation, on one lane and on many."""
    assert _cycles(command, machine(vfu=Vfu(1, 8, 0))) == operations
    assert _cycles(command, machine(vfu=Vfu(64, 8, 3))) == math.ceil(operations / 64) + 3


@given(
    outputs=st.integers(1, 12),
    size=st.integers(1, 12),
    kernel=st.integers(1, 40),
    stride=st.integers(1, 4),
    dilation=st.integers(1, 3),
    pad=st.integers(0, 40),
)
def test_a_pool_takes_the_taps_inside_its_input(
    outputs: int, size: int, kernel: int, stride: int, dilation: int, pad: int
) -> None:
    """A window larger than its map costs what the map has, whatever the padding."""
    inside = sum(
        0 <= output * stride - pad + tap * dilation < size for output in range(outputs) for tap in range(kernel)
    )
    settings = Settings(kernel=(1, 1, kernel), stride=(1, 1, stride), dilation=(1, 1, dilation), pad=(0, 0, pad))
    target, first = operand(Space.NB, 1, 1, outputs, 2), operand(Space.NB, 1, 1, size, 2)
    command = Command(Function.POOL_MAX, target, first, settings=settings)
    assert _cycles(command, machine(vfu=Vfu(1, 8, 0))) == 2 * inside


@pytest.mark.parametrize(
    ("mode", "operations"),
    [(Reduction.SUM, 100), (Reduction.MEAN, 110), (Reduction.ARGMAX, 200), (Reduction.L2, 180)],
)
def test_a_reduction_works_on_its_input(mode: Reduction, operations: int) -> None:
    """A reduction takes one operation per input element, plus those of its mode per output."""
    command = Command(
        Function.REDUCE, operand(Space.NB, 10, 1), operand(Space.NB, 10, 10), settings=Settings(axes=2, mode=mode)
    )
    assert _cycles(command, machine()) == operations


def test_a_depthwise_convolution_works_tap_by_tap() -> None:
    """Each output takes nine taps, a sum and a scale; only the taps are multiply-adds."""
    output, weights = operand(Space.NB, 1, 5, 5, 4, 1), operand(Space.NB, 1, 3, 3, 4, 1)
    plain = Command(Function.DEPTHWISE, output, output, weights, settings=Settings(kernel=(1, 3, 3)))
    assert _cycles(plain, machine()) == macs(plain) == 900
    fused = replace(plain, third=output, fourth=operand(Space.NB, 2, 4, 1))
    assert _cycles(fused, machine()) == 1100


def test_a_clock_that_is_no_whole_number_of_picoseconds_is_rounded() -> None:
    """A cycle at 3 GHz takes 333 ps, and a command a whole number of cycles."""
    described = machine(clock_hz=3 * 10**9)
    assert CostModel(described).cycle_ps == 333
    assert duration_ps(described, compute(10)) == 3330


# --- The model --------------------------------------------------------------------------------------------------


def test_a_cost_does_not_depend_on_addresses() -> None:
    """Equal shapes cost the same at any address."""
    costs = CostModel(machine())
    assert costs.duration_ps(load(64, address=0)) == costs.duration_ps(load(64, address=4096)) == 64_000


@pytest.mark.parametrize(
    "command",
    [
        replace(convolve((2, 2), 4, 4), second=None),
        replace(convolve((2, 2), 4, 4), target=operand(Space.NB, 4)),
        replace(load(10), first=operand(Space.NB, 10)),
        replace(_vector(Function.DEPTHWISE, (1, 1, 1, 1, 1)), second=None),
    ],
)
def test_an_invalid_command_is_a_fault(command: Command) -> None:
    """Missing operands, wrong ranks and transfers without external memory raise an emulator error."""
    with pytest.raises(ExecutionFault):
        duration_ps(machine(), command)


SIZES = st.integers(1, 12)


def _folds(size: int, array: int) -> int:
    return len(range(0, size, array))


@given(SIZES, SIZES, SIZES, SIZES, SIZES)
def test_stationary_weights_take_as_long_as_their_wavefront(m: int, n: int, k: int, rows: int, columns: int) -> None:
    """A fold loads a row per cycle; vector v then meets the weight at (i, j) i + j cycles after it enters."""
    last = max(rows + v + i + j for v in range(m) for i in range(rows) for j in range(columns))
    folds = _folds(k, rows) * _folds(n, columns)
    assert systolic_cycles("weight-stationary", m, n, k, rows, columns) == (folds * (last + 1) - 1, folds * m)


@given(SIZES, SIZES, SIZES, SIZES, SIZES)
def test_stationary_sums_take_as_long_as_their_wavefront(m: int, n: int, k: int, rows: int, columns: int) -> None:
    """Product p of the sum at (i, j) is computed i + j cycles after both operands enter."""
    last = max(p + i + j for p in range(k) for i in range(rows) for j in range(columns))
    folds = _folds(m, rows) * _folds(n, columns)
    assert systolic_cycles("output-stationary", m, n, k, rows, columns) == (folds * (last + 1) - 1, folds * k)


@given(SIZES, SIZES, SIZES, SIZES, SIZES)
def test_stationary_inputs_are_stationary_weights_of_the_transposed_product(
    m: int, n: int, k: int, rows: int, columns: int
) -> None:
    """Holding the inputs of A B is holding the weights of its transpose."""
    transposed = systolic_cycles("weight-stationary", n, m, k, rows, columns)
    assert systolic_cycles("input-stationary", m, n, k, rows, columns) == transposed
