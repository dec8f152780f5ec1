"""The machine that the emulator executes programs on: its description, the TOML reader and the built-in presets."""

from __future__ import annotations

from device_agents.emulated_npu.machine.area_and_energy import MacroAreas, area_mm2, energy_figures, macro_areas
from device_agents.emulated_npu.machine.description import Machine
from device_agents.emulated_npu.machine.machine_file import (
    find_machine,
    load_preset,
    parse_machine,
    preset_names,
    preset_text,
    read_machine,
)
from device_agents.emulated_npu.machine.parts import Dataflow, Host, Memory, Mfu, Noise

__all__ = [
    "Dataflow",
    "Host",
    "Machine",
    "MacroAreas",
    "Memory",
    "Mfu",
    "Noise",
    "area_mm2",
    "energy_figures",
    "find_machine",
    "load_preset",
    "macro_areas",
    "parse_machine",
    "preset_names",
    "preset_text",
    "read_machine",
]
