"""Compare a queue for the VFU, or for the last-level cache, with a shared one: tables of docs/emulator_compiler.md.

    python -m benchmarks.emulator.queues vfu|llc [NAME ...] [--bandwidths 1 4]

Each network is compiled and timed on `edge` and on the same machine with a multiple of the bandwidth of DDR and
last-level cache, without and with a queue of 16 entries (`vfu_queue_depth`, `llc_queue_depth`).
"""

import argparse
from dataclasses import replace

from benchmarks.generated_page import print_head, print_row
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.machine import Machine, find_machine
from device_agents.emulated_npu.timing.simulation import Timing, simulate_program
from harness.npu.loading import load_model

NAMES = ("dscnn", "mobilenetv2", "shufflenet", "efficientnet_b0", "squeezenet", "resnet18", "vit_tiny", "bert_mini")
HEADS = ("network", "bandwidth", "one queue ms", "two queues ms", "gain")
BUSY = {
    "vfu": {"IO ms": "io_ps", "MFU ms": "mfu_ps", "VFU ms": "vfu_ps"},
    "llc": {"IO ms": "io_ps", "LLC ms": "llc_queue_ps", "compute ms": "compute_ps"},
}
_DEPTH = 16
_PS_PER_MS = 1e9


def _machine(factor: float) -> Machine:
    """Return `edge` with a multiple of its bandwidths."""
    edge = find_machine("edge")
    ddr, llc = (replace(each, bytes_per_s=factor * each.bytes_per_s) for each in (edge.ddr, edge.llc))
    return replace(edge, ddr=ddr, llc=llc)


def _with_queue(machine: Machine, queue: str, depth: int) -> Machine:
    """Return the machine with so many entries of a queue; 0: without it."""
    if queue == "vfu":
        return replace(machine, vfu_queue_depth=depth)
    return replace(machine, llc_queue_depth=depth)


def _timed(model: bytes, machine: Machine) -> Timing:
    return simulate_program(compile_model(model, machine).program, machine)


def main() -> None:
    """Time the networks and print a row for each and each bandwidth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("queue", choices=tuple(BUSY), help="the queue that the machine has or lacks")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"built-in networks; default: {', '.join(NAMES)}")
    parser.add_argument("--bandwidths", type=float, nargs="+", default=(1.0, 4.0), metavar="FACTOR")
    options = parser.parse_args()
    print_head(*HEADS, *BUSY[options.queue])
    for name in options.names or NAMES:
        for factor in options.bandwidths:
            model, machine = load_model(f"builtin:{name}", {}).content, _machine(factor)
            one, two = (_timed(model, _with_queue(machine, options.queue, depth)) for depth in (0, _DEPTH))
            times = (one.makespan_ps, two.makespan_ps), [getattr(two, each) for each in BUSY[options.queue].values()]
            spans, busy = ([f"{ps / _PS_PER_MS:.3f}" for ps in each] for each in times)
            gain = 1 - two.makespan_ps / one.makespan_ps
            print_row(name, f"x {factor:g}", *spans, f"{gain:.1%}", *busy)


if __name__ == "__main__":
    main()
