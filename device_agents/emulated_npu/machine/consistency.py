"""Contradictions between the values of a machine description."""

from __future__ import annotations

from collections.abc import Iterator

from device_agents.emulated_npu.emulator_errors import ContradictoryMachine
from device_agents.emulated_npu.machine.description import MAX_CORES, Machine
from device_agents.emulated_npu.machine.parts import Cores, Mfu

_Contradiction = tuple[str, str, str]
"""What happened, why, and the next step."""


def check_machine(machine: Machine) -> Machine:
    """Return the machine; raise `ContradictoryMachine` if two of its values contradict each other."""
    for what, why, next_step in _contradictions(machine):
        raise ContradictoryMachine(what, why, next_step)
    return machine


def _contradictions(machine: Machine) -> Iterator[_Contradiction]:
    mfu = machine.mfu
    if mfu.dataflow != "dot-product" and mfu.packing != "none":
        what = f"mfu.packing {mfu.packing} contradicts mfu.dataflow {mfu.dataflow}"
        yield what, "A systolic array takes a matrix product as it is", 'Set mfu.packing = "none"'
    yield from _contradictions_of_mfu(mfu)
    if machine.shared_buffer and machine.sb_bytes != machine.nb_bytes:
        what = f"sb_bytes {machine.sb_bytes} differs from nb_bytes {machine.nb_bytes} in spite of shared_buffer"
        yield what, "They are one memory, divided by the compiler", "Set both to its size, or shared_buffer = false"
    if machine.halo_bytes >= machine.nb_bytes:
        what = f"halo_bytes {machine.halo_bytes} leaves nothing of nb_bytes {machine.nb_bytes}"
        yield what, "The halo buffer is carved out of NB", "Lower halo_bytes"
    yield from _contradictions_of_memories(machine)
    yield from _contradictions_of_cores(machine.cores)


def _contradictions_of_mfu(mfu: Mfu) -> Iterator[_Contradiction]:
    if mfu.dataflow != "dot-product" and mfu.pixels > 1:
        what = f"mfu.pixel_rows {mfu.pixel_rows} x mfu.pixel_columns {mfu.pixel_columns} need mfu.dataflow dot-product"
        why = f"A {mfu.dataflow} array takes one vector after another"
        yield what, why, "Set both to 1, or add rows or columns"
    if mfu.step_cycles > 1 and (mfu.dataflow != "dot-product" or mfu.packing != "none"):
        what = f"mfu.step_cycles {mfu.step_cycles} needs mfu.dataflow dot-product and mfu.packing none"
        yield what, "A step holds input channels of one or of several positions of the window", "Set step_cycles = 1"
    if mfu.preloads_weights and mfu.dataflow not in ("weight-stationary", "input-stationary"):
        what = f"mfu.preloads_weights contradicts mfu.dataflow {mfu.dataflow}"
        yield what, "Only arrays that hold weights or inputs load them before", "Set preloads_weights = false"


def _contradictions_of_memories(machine: Machine) -> Iterator[_Contradiction]:
    llc = machine.llc
    if llc.bytes == 0 and (llc.bytes_per_s, llc.latency_ns, llc.burst_bytes) != (0, 0, 0):
        what = "llc.bytes is 0, but llc.bytes_per_s, llc.latency_ns or llc.burst_bytes is not"
        yield what, "0 bytes mean that there is no last-level cache", "Set all four, or all to 0"
    if llc.bytes > 0 and (llc.bytes_per_s < 1 or llc.burst_bytes < 1):
        what = f"llc.bytes is {llc.bytes}, but llc.bytes_per_s or llc.burst_bytes is 0"
        yield what, "A memory without bandwidth never answers", "Set all four, or all to 0"
    for key, memory in (("llc", llc), ("ddr", machine.ddr)):
        if memory.burst_bytes > memory.bytes:
            what = f"{key}.burst_bytes {memory.burst_bytes} is larger than {key}.bytes {memory.bytes}"
            yield what, "A burst is a part of its memory", f"Lower {key}.burst_bytes"
        for buffer, size in (("nb_bytes", machine.nb_bytes - machine.halo_bytes), ("sb_bytes", machine.sb_bytes)):
            if size < memory.burst_bytes:
                what = f"{buffer} is too small for one burst of {key}.burst_bytes {memory.burst_bytes}"
                yield what, f"{size} bytes of it can hold data", f"Enlarge {buffer} or lower {key}.burst_bytes"


def _contradictions_of_cores(cores: Cores) -> Iterator[_Contradiction]:
    if cores.count > MAX_CORES:
        what = f"cores.per_chip {cores.per_chip} x cores.chips {cores.chips} are more than {MAX_CORES} cores"
        yield what, "An instruction names another core by 16 bits", "Lower one of them"
    # A message to another chip passes the links of both chips.
    for key, count, link, single in (
        ("link", cores.count, cores.link, "per_chip = 1 and chips = 1"),
        ("chip_link", cores.chips, cores.chip_link, "chips = 1"),
    ):
        if count > 1 and link.bytes_per_s < 1:
            what = f"cores.{key}.bytes_per_s is {link.bytes_per_s:g}, but it joins {count}"
            yield what, "A link without bandwidth never delivers", f"Set it, or {single}"
