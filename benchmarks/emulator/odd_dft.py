"""Compare convolution by DFT of odd blocks with direct convolution on `edge`, and with the compiler's choice.

    python -m benchmarks.emulator.odd_dft

Prints a table in Markdown by kernel size, channels (as many outputs as inputs) and size of the map. It has event-driven
cycles of a single layer, the block length, the choice, and how much slower it is than the better of the two. Exits with
1 if a choice is more than 5 % slower.
"""

import itertools
import sys
import time
from dataclasses import dataclass

from benchmarks.generated_page import print_head, print_row
from benchmarks.topologies.layers import Topology
from device_agents.emulated_npu.compiler.compiled import Compiled
from device_agents.emulated_npu.compiler.options import ConvolutionChoice, Options
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.inference import time_program
from device_agents.emulated_npu.machine import find_machine

EDGE = find_machine("edge")
KERNELS = (3, 5, 7, 11)
CHANNELS = (4, 16, 32, 64, 128)
MAPS = (28, 56, 112)


@dataclass(frozen=True)
class Row:
    """One convolution: cycles of each algorithm and of the choice, and the time of the choice."""

    kernel: int
    channels: int
    size: int
    direct: float
    dft: float
    chosen: float
    length: int
    by_dft: bool
    compile_s: float

    @property
    def loss(self) -> float:
        """The relative time that the choice loses against the better algorithm."""
        return self.chosen / min(self.direct, self.dft) - 1


def _model(kernel: int, channels: int, size: int) -> bytes:
    net = Topology("layer", 0)
    result = net.convolve(net.image(channels, size, size), channels, kernel, bias=False)
    return bytes(net.finished(result, channels, size, size).SerializeToString())


def measure(kernel: int, channels: int, size: int) -> Row:
    """Compile and time one convolution with either algorithm and with the compiler's choice."""
    model = _model(kernel, channels, size)

    def by(algorithm: ConvolutionChoice) -> Compiled:
        return compile_model(model, EDGE, Options(conv_algorithm=algorithm))

    def cycles(compiled: Compiled) -> float:
        return time_program(compiled.program, EDGE).cycles

    direct, dft = by("direct"), by("odd-dft")
    start = time.process_time()
    chosen = by("auto")
    took_s = time.process_time() - start
    length = dft.graph.dft[0].blocks.length
    is_dft = bool(chosen.graph.dft)
    return Row(kernel, channels, size, cycles(direct), cycles(dft), cycles(chosen), length, is_dft, took_s)


def main() -> int:
    """Print the table; return 1 if a choice is more than 5 % slower than the better algorithm."""
    print_head("kernel", "channels", "map", "direct, cycles", "DFT, cycles", "block", "direct / DFT", "chosen", "loss")
    rows = []
    for sizes in itertools.product(KERNELS, CHANNELS, MAPS):
        row = measure(*sizes)
        rows.append(row)
        cycles = f"{row.direct:,.0f}", f"{row.dft:,.0f}"
        choice = "DFT" if row.by_dft else "direct", f"{row.loss:.1%}"
        print_row(*sizes, *cycles, row.length, f"{row.direct / row.dft:.2f}", *choice)
    worst, longest_s = max(row.loss for row in rows), max(row.compile_s for row in rows)
    print(f"\nThe choice is at most {worst:.1%} slower than the better of the two; it took at most {longest_s:.2f} s.")
    return int(worst > 0.05)


if __name__ == "__main__":
    sys.exit(main())
