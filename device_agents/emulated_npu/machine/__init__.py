"""The machine that the emulator executes programs on: its description, the TOML reader and the built-in presets."""

from __future__ import annotations

from device_agents.emulated_npu.machine.consistency import check_machine
from device_agents.emulated_npu.machine.description import (
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
    "check_machine",
    "find_machine",
    "load_preset",
    "parse_machine",
    "preset_names",
    "preset_text",
    "read_machine",
]
