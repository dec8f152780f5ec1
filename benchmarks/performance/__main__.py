"""Measure the figures of docs/performance.md and rewrite its generated blocks.

    python -m benchmarks.performance [--workspace DIR] [--parts journal,candidates,…] [--quick] [--page FILE]

Takes about a quarter of an hour on two idle cores. Parts compare tasks that run in turns, in CPU time, so that ratios
and exponents also hold on a busy machine. --parts selects some; blocks and targets of the others stay. The parts `vela`
and `zigzag` install other tools into virtual environments of their own in the workspace. --quick checks all parts with
small sizes, and writes to a copy of the page in the workspace. Run from the root of the repository.
"""

from collections.abc import Callable, Mapping

from benchmarks.generated_page import Section
from benchmarks.parts import run_parts
from benchmarks.performance.campaigns import campaigns_section, overhead_section
from benchmarks.performance.candidates import candidates_section
from benchmarks.performance.devices import devices_section
from benchmarks.performance.emulation import emulation_section
from benchmarks.performance.estimates import estimate_section
from benchmarks.performance.journal import journal_section
from benchmarks.performance.measuring import Run
from benchmarks.performance.page import PAGE
from benchmarks.performance.peers.kernel_forests import forests_section
from benchmarks.performance.peers.vela import vela_section
from benchmarks.performance.peers.zigzag import zigzag_section
from benchmarks.performance.tables import tables_section

PARTS: Mapping[str, Callable[[Run], Section]] = {
    "estimate": estimate_section,
    "overhead": overhead_section,
    "campaigns": campaigns_section,
    "journal": journal_section,
    "tables": tables_section,
    "candidates": candidates_section,
    "devices": devices_section,
    "emulation": emulation_section,
    "vela": vela_section,
    "zigzag": zigzag_section,
    "forests": forests_section,
}

if __name__ == "__main__":
    raise SystemExit(run_parts(__doc__, PAGE, PARTS, Run))
