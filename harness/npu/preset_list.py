"""The built-in machines of the emulated NPU, with what distinguishes them."""

import itertools
import re
from dataclasses import dataclass
from typing import Any

from device_agents.emulated_npu.machine import Machine, load_preset, preset_names, preset_text
from harness.text import Part, Table, byte_size

_NEVER_LIMITS_BYTES_PER_S = 1e15
_SENTENCE_END = re.compile(r"(?<!et al)\.\s+(?=[A-Z])")


@dataclass(frozen=True)
class Preset:
    """A built-in machine, and the text of its file."""

    machine: Machine
    text: str

    @property
    def source(self) -> str:
        """The comment at the head of the file, on one line."""
        lines = itertools.takewhile(lambda line: line.startswith("#"), self.text.splitlines())
        return " ".join(line.removeprefix("#").strip() for line in lines)

    @property
    def summary(self) -> str:
        """The first sentence of the source."""
        return _SENTENCE_END.split(self.source, 1)[0].rstrip(".")


def presets(name: str | None = None) -> tuple[Preset, ...]:
    """Return the built-in machines, or the one of a name; raises InvalidMachine if there is none."""
    names = preset_names() if name is None else (name,)
    return tuple(Preset(load_preset(one), preset_text(one)) for one in names)


def preset_fields(preset: Preset) -> dict[str, Any]:
    """Return a preset as the fields of a JSON object."""
    machine = preset.machine
    return {
        "name": machine.name,
        "source": preset.source,
        "data_type": machine.data_type.name.lower(),
        "macs_per_cycle": machine.mfu.multipliers,
        "clock_hz": machine.clock_hz,
        "cores": machine.cores.count,
        "nb_bytes": machine.nb_bytes,
        "sb_bytes": machine.sb_bytes,
        "shared_buffer": machine.shared_buffer,
        "halo_bytes": machine.halo_bytes,
        "llc_bytes": machine.llc.bytes,
        "ddr_bytes_per_s": machine.ddr.bytes_per_s,
    }


def preset_table(known: tuple[Preset, ...]) -> list[Part]:
    """Return the presets as a table."""
    header = ("preset", "type", "MACs", "clock", "cores", "NB", "SB", "LLC", "DDR", "source")
    return [Table(header, [_row(preset) for preset in known])]


def _row(preset: Preset) -> tuple[str, ...]:
    machine = preset.machine
    return (
        machine.name,
        machine.data_type.name.lower(),
        f"{machine.mfu.multipliers:,}",
        f"{machine.clock_hz / 1e6:,.0f} MHz",
        str(machine.cores.count),
        byte_size(machine.nb_bytes),
        "in NB" if machine.shared_buffer else byte_size(machine.sb_bytes),
        byte_size(machine.llc.bytes) if machine.llc.bytes else "",
        "no limit"
        if machine.ddr.bytes_per_s > _NEVER_LIMITS_BYTES_PER_S
        else f"{machine.ddr.bytes_per_s / 1e9:,.4g} GB/s",
        preset.summary,
    )
