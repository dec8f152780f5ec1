"""The machine that the emulator executes programs on: its description, the TOML reader and the built-in presets."""

from __future__ import annotations

from device_agents.emulated_npu.machine.area_and_energy import MacroAreas, area_mm2, energy_figures, macro_areas
from device_agents.emulated_npu.machine.consistency import check_machine
from device_agents.emulated_npu.machine.description import Machine
from device_agents.emulated_npu.machine.machine_file import (
    find_machine,
    load_preset,
    parse_machine,
    preset_names,
    preset_text,
    read_machine,
)
from device_agents.emulated_npu.machine.parts import (
    Area,
    Cores,
    Dataflow,
    Energy,
    Host,
    Interconnect,
    Memory,
    Mfu,
    Noise,
    Packing,
    Vfu,
)

__all__ = [
    "Area",
    "Cores",
    "Dataflow",
    "Energy",
    "Host",
    "Interconnect",
    "Machine",
    "MacroAreas",
    "Memory",
    "Mfu",
    "Noise",
    "Packing",
    "Vfu",
    "area_mm2",
    "check_machine",
    "energy_figures",
    "find_machine",
    "load_preset",
    "macro_areas",
    "parse_machine",
    "preset_names",
    "preset_text",
    "read_machine",
]
