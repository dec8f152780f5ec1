"""The machine that the emulator executes programs on: its description, the TOML reader and the built-in presets."""

from __future__ import annotations

from device_agents.emulated_npu.machine.area import area_mm2
from device_agents.emulated_npu.machine.consistency import check_machine
from device_agents.emulated_npu.machine.description import (
    Area,
    Cores,
    Dataflow,
    Host,
    Interconnect,
    Machine,
    Memory,
    Mfu,
    Noise,
    Packing,
    Vfu,
)
from device_agents.emulated_npu.machine.machine_file import (
    find_machine,
    load_preset,
    parse_machine,
    preset_names,
    preset_text,
    read_machine,
)

__all__ = [
    "Area",
    "Cores",
    "Dataflow",
    "Host",
    "Interconnect",
    "Machine",
    "Memory",
    "Mfu",
    "Noise",
    "Packing",
    "Vfu",
    "area_mm2",
    "check_machine",
    "find_machine",
    "load_preset",
    "parse_machine",
    "preset_names",
    "preset_text",
    "read_machine",
]
