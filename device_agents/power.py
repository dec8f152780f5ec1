"""Read the power or energy of this device: from its owner's program, INA sensors, or the processor's RAPL counter.

The program is the file `PROGRAM` in the account that runs the agent. No message of the host names or changes it, and
whoever may write there may run programs anyway. Sensors and counters are files below /sys. A device without any of
them, or whose files the agent may not read, reports nothing.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
from typing import Dict, List, Optional

from device_agents.child_processes import follow, kill_group

PROGRAM = os.path.join("~", ".config", "harness", "power")
"""An executable that prints the present power or the energy used so far, such as `4.31 W` or `1250.7 J`."""
POWERCAP, HWMON = "/sys/class/powercap", "/sys/class/hwmon"
_READING = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?) (W|J)\s*\Z")
_PROGRAM_S, _PROGRAM_BYTES = 2.0, 1 << 12
_PACKAGE = "intel-rapl:"
"""Zones `intel-rapl:0`, `intel-rapl:1`, … are packages, on AMD too; `intel-rapl:0:0` is a part of one."""
_SENSOR = "ina"


def readings() -> Dict[str, float]:
    """Return `energy_j`, a counter that wraps at `energy_range_j`, and `power_w`, the present power of the sensors.

    If there is a program, only what it prints counts. Machines with several packages report no energy: a network uses
    only one of them, and which one is unknown.
    """
    program = os.path.expanduser(PROGRAM)
    if os.path.lexists(program):
        return _printed(program) if _is_safe(program) else {}
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


def _is_safe(program: str) -> bool:
    """Return whether a file is executable, and nobody but this account and root can have written it."""
    try:
        found = os.stat(program)
    except OSError:
        return False
    is_own = found.st_uid in (0, os.geteuid()) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISREG(found.st_mode) and is_own and os.access(program, os.X_OK)


def _printed(program: str) -> Dict[str, float]:
    """Run a program without a shell and return the reading that it prints; nothing if it fails or prints other text."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    try:
        process = subprocess.Popen(
            [program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={**kept, "LC_ALL": "C"},
            start_new_session=True,
        )
    except OSError:
        return {}
    output = bytearray()
    with process:
        try:
            problem = follow(process, [output, bytearray()], _PROGRAM_S, _PROGRAM_BYTES)
        finally:
            kill_group(process.pid)
    reading = _READING.match(output.decode("ascii", "replace"))
    if problem or process.returncode or reading is None:
        return {}
    return {"power_w" if reading[2] == "W" else "energy_j": float(reading[1])}


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
