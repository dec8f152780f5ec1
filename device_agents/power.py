"""What this device reports of its energy: counters of the processor package (RAPL), and INA sensors on the board.

Both are files below /sys; a device without them, or whose files the agent may not read, reports nothing.
"""

from __future__ import annotations

import os
from typing import Dict, List, Optional

POWERCAP, HWMON = "/sys/class/powercap", "/sys/class/hwmon"
_PACKAGE = "intel-rapl:"
"""Zones `intel-rapl:0`, `intel-rapl:1`, … are packages, also of AMD's processors; `intel-rapl:0:0` is a part of one."""
_SENSOR = "ina"


def readings() -> Dict[str, float]:
    """Return `energy_j`, a counter that wraps at `energy_range_j`, and `power_w`, the present power of the sensors.

    Machines with several packages report no energy: a network uses only one of them, and which one is unknown.
    """
    found: Dict[str, float] = {}
    zones = [os.path.join(POWERCAP, name) for name in _names(POWERCAP) if _is_package(name)]
    energy = [_number(os.path.join(zone, "energy_uj")) for zone in zones]
    ranges = [_number(os.path.join(zone, "max_energy_range_uj")) for zone in zones]
    if len(zones) == 1 and energy[0] is not None and ranges[0]:
        found.update(energy_j=energy[0] / 1e6, energy_range_j=ranges[0] / 1e6)
    power = [_number(path) for path in _sensors()]
    if power and None not in power:
        found["power_w"] = sum(one for one in power if one is not None) / 1e6
    return found


def _sensors() -> List[str]:
    """Return the files with the power of each channel of each INA sensor, in microwatts."""
    found = []
    for name in _names(HWMON):
        folder = os.path.join(HWMON, name)
        if _line(os.path.join(folder, "name")).startswith(_SENSOR):
            channels = (one for one in _names(folder) if one.startswith("power") and one.endswith("_input"))
            found += [os.path.join(folder, one) for one in channels]
    return found


def _is_package(name: str) -> bool:
    return name.startswith(_PACKAGE) and name[len(_PACKAGE) :].isdigit()


def _names(folder: str) -> List[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _number(path: str) -> Optional[int]:
    text = _line(path)
    return int(text) if text.isdigit() else None


def _line(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as lines:
            return lines.readline(200).strip()
    except OSError:
        return ""
