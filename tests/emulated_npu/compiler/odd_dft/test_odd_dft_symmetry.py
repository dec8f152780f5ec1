"""The commands of a program compute only N + 1 results of each direction, by conjugate symmetry (S4.3, S4.4)."""

from dataclasses import dataclass
from functools import cache

import pytest
from odd_dft_networks import by_dft, commands_of, convolution, setup_commands_of

from device_agents.emulated_npu.compiler.compiled import Compiled
from device_agents.emulated_npu.unit_commands import Command, Function

CHANNELS, OUTPUTS = 3, 5


@dataclass(frozen=True)
class Case:
    """Blocks of `length` for kernels of `kernel`, with the number of blocks in height and width."""

    length: int
    kernel: int
    counts: tuple[int, int]

    @property
    def half(self) -> int:
        """N of the length 2 N + 1."""
        return self.length // 2

    @property
    def valid(self) -> int:
        """Outputs of a block in each direction."""
        return self.length - self.kernel + 1


CASES = [Case(9, 3, (1, 1)), Case(9, 3, (2, 3)), Case(15, 5, (2, 2)), Case(7, 4, (3, 2))]


@cache
def _compiled(case: Case) -> Compiled:
    """Compile a convolution on maps of whole blocks; the search for chains takes longest and changes no result."""
    size = [count * case.valid + case.kernel - 1 for count in case.counts]
    network = convolution((1, CHANNELS, *size), (OUTPUTS, CHANNELS, case.kernel, case.kernel))
    return by_dft(network, case.length, chains="layers")


def _reals(commands: list[Command], layers: tuple[str, ...], part: str) -> int:
    """Return the real numbers that the matrix unit writes in the layers of a part."""
    found = [each for each in commands if part in layers[each.layer] and each.function is Function.CONVOLVE]
    return sum(command.target.descriptor.elements for command in found)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_have_n_plus_one_results(case: Case) -> None:
    """Of each row of each column of blocks 2 (N + 1) real numbers are written: L + 1 in place of 2 L.

    By hand for blocks of 9: 5 complex results of 9. Rows that blocks above each other share are transformed once.
    """
    compiled = _compiled(case)
    rows = case.counts[0] * case.valid + case.kernel - 1
    written = _reals(commands_of(compiled), compiled.program.layers, "(row DFT)")
    assert written == 2 * (case.half + 1) * rows * case.counts[1] * CHANNELS


@pytest.mark.parametrize("case", CASES, ids=str)
def test_columns_have_n_plus_one_results_each(case: Case) -> None:
    """Of each of the L columns of each block N + 1 complex results are written; the product takes (L L + 1) / 2.

    By hand for blocks of 9: 9 columns of 5 are 45 of 81, as the 5 lines of 9 in which they lie; of line 0, which is
    the transform of a real one, 5 are independent: 41 products for each pair of channels.
    """
    compiled = _compiled(case)
    commands, layers = commands_of(compiled), compiled.program.layers
    blocks = case.counts[0] * case.counts[1]
    assert _reals(commands, layers, "(column DFT") == 2 * (case.half + 1) * case.length * blocks * CHANNELS
    # Real and imaginary part of the map by both of the kernel, of each bin and output.
    independent = (case.length**2 + 1) // 2
    assert _reals(commands, layers, "(product of") == 4 * independent * blocks * OUTPUTS


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernels_have_n_plus_one_results(case: Case) -> None:
    """Rows and columns of kernels as those of blocks, of as many rows as a kernel has: the rest of them is zero."""
    compiled = _compiled(case)
    commands, layers = setup_commands_of(compiled), compiled.program.setup.layers
    kernels = CHANNELS * OUTPUTS
    assert _reals(commands, layers, "(kernel row DFT)") == 2 * (case.half + 1) * case.kernel * kernels
    assert _reals(commands, layers, "(kernel DFT)") == 2 * (case.half + 1) * case.length * kernels


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_inverse_has_n_plus_one_lines(case: Case) -> None:
    """The first direction of the inverse writes line 0, which is real, and N complex lines; the second real outputs.

    By hand for blocks of 9 and kernels of 3: 7 valid positions of 1 + 2 * 4 real numbers in place of 2 * 9.
    """
    compiled = _compiled(case)
    commands, layers = commands_of(compiled), compiled.program.layers
    blocks = case.counts[0] * case.counts[1]
    assert _reals(commands, layers, "(inverse DFT of line 0)") == case.valid * blocks * OUTPUTS
    assert _reals(commands, layers, "(inverse DFT of lines)") == 2 * case.half * case.valid * blocks * OUTPUTS
    assert layers[-1] == "y"  # the inverse of the rows bears the convolution's own name
    last = [each for each in commands if each.layer == len(layers) - 1 and each.function is Function.CONVOLVE]
    assert sum(command.target.descriptor.elements for command in last) == case.valid**2 * blocks * OUTPUTS
