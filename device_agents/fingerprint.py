"""Facts about this device: what it is (`hardware`), and its present load, temperature and power (`state`)."""

from __future__ import annotations

import os
import platform
import re
import shutil
import stat
import subprocess
from typing import Dict, List, Optional, Union

from device_agents.child_processes import follow, kill_group
from device_agents.sources import EMULATOR, sources_digest

Number = Union[int, float]
_LINE_LETTERS = 200
PROGRAM = os.path.join("~", ".config", "harness", "power")
"""An executable that prints the present power or the energy used so far, such as `4.31 W` or `1250.7 J`."""
POWERCAP, HWMON = "/sys/class/powercap", "/sys/class/hwmon"
_READING = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?) (W|J)\s*\Z")
_PROGRAM_S, _PROGRAM_BYTES = 2.0, 1 << 12
_PACKAGE = "intel-rapl:"
"""Zones `intel-rapl:0`, `intel-rapl:1`, … are packages, on AMD too; `intel-rapl:0:0` is a part of one."""
_SENSOR = "ina"


def hardware() -> Dict[str, str]:
    """Return facts that must agree for two series to be comparable."""
    return {
        "machine": platform.machine(),
        "cpu": _cpu_model() or platform.processor() or "unknown",
        "cores": str(available_cores()),
        "system": platform.system(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "core_cache_bytes": str(_core_cache_bytes()),
        "governor": _first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or "none",
        "agent": sources_digest(without=[EMULATOR]),
    }


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def state() -> Dict[str, Number]:
    """Return facts that change from minute to minute; they are recorded with series, never compared."""
    facts: Dict[str, Number] = {"disk_free_bytes": shutil.disk_usage(os.getcwd()).free}
    temperature = _first_line("/sys/class/thermal/thermal_zone0/temp")
    if temperature and temperature.lstrip("-").isdigit():
        facts["temperature_c"] = int(temperature) / 1000
    clock = _first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
    if clock and clock.isdigit():
        facts["clock_hz"] = int(clock) * 1000
    if hasattr(os, "getloadavg"):
        facts["load_1min"] = os.getloadavg()[0]
    facts.update(processor_times())
    facts.update(power_readings())
    available = _available_memory_bytes()
    if available is not None:
        facts["memory_available_bytes"] = available
    return facts


def processor_times() -> Dict[str, Number]:
    """Return what this machine and this process have done since they started; empty where there is no /proc/stat.

    `cpu_total_s` is the time of all cores that it may use, `cpu_busy_s` the part in which they worked and `cpu_steal_s`
    the part that a hypervisor gave to others. `runnable` tasks want to run now, this one included; it is absent where
    this process may not use all cores. `own_cpu_s` is the work of this `process`.
    """
    try:
        with open("/proc/stat", encoding="ascii", errors="replace") as lines:
            found = {name: values for name, *values in map(str.split, lines)}
        usable = ["cpu"]
        runnable = {"runnable": int(found["procs_running"][0])}
        if available_cores() < (os.cpu_count() or 1):
            usable, runnable = [f"cpu{core}" for core in os.sched_getaffinity(0)], {}
        # user, nice, system, idle, iowait, irq, softirq, steal; guests are counted in user and nice.
        ticks = [sum(int(found[core][at]) for core in usable) for at in range(8)]
    except (OSError, ValueError, KeyError, IndexError):
        return {}
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    idle, steal = ticks[3] + ticks[4], ticks[7]
    return {
        "cpu_total_s": round(sum(ticks) * tick_s, 2),
        "cpu_busy_s": round((sum(ticks) - idle - steal) * tick_s, 2),
        "cpu_steal_s": round(steal * tick_s, 2),
        "own_cpu_s": round(sum(os.times()[:4]), 2),
        "process": os.getpid(),
        **runnable,
    }


def _available_memory_bytes() -> Optional[int]:
    """Return the memory that a process may still take, within the limit of its container; None where it is unknown."""
    try:
        with open("/proc/meminfo", encoding="ascii", errors="replace") as lines:
            found = next(line.split() for line in lines if line.startswith("MemAvailable:"))
        available = int(found[1]) << 10
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    limit, used = (_first_line(f"/sys/fs/cgroup/memory.{name}") or "" for name in ("max", "current"))
    if limit.isdigit() and used.isdigit():
        available = min(available, max(0, int(limit) - int(used)))
    return available


def _cpu_model() -> Optional[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() in ("model name", "Model", "cpu model"):
                    return value.strip()
    except OSError:
        return None
    return None


def _core_cache_bytes() -> int:
    """Return the size of the second-level cache, private to a core on most processors; 0 if it is unknown."""
    size = _first_line("/sys/devices/system/cpu/cpu0/cache/index2/size") or ""
    factor = {"K": 1 << 10, "M": 1 << 20}.get(size[-1:], 0)
    return int(size[:-1]) * factor if factor and size[:-1].isdigit() else 0


def _first_line(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as lines:
            return lines.readline(_LINE_LETTERS).strip()
    except OSError:
        return None


def power_readings() -> Dict[str, float]:
    """Return `energy_j`, a counter that wraps at `energy_range_j`, and `power_w`, the present power of the sensors.

    They come from the program of this device's owner, INA sensors, or the processor's RAPL counter. The program is the
    file `PROGRAM` in the account that runs the agent: no message of the host names or changes it, and whoever may write
    there may run programs anyway. If there is one, only what it prints counts. A device without any of the three, or
    whose files the agent may not read, reports nothing. Machines with several packages report no energy: a network uses
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
