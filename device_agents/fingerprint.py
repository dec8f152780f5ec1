"""Facts about this device: what it is (`hardware`), and its present load and temperature (`state`)."""

from __future__ import annotations

import os
import platform
import shutil
from typing import Dict, Optional, Union

from device_agents import power
from device_agents.sources import EMULATOR, sources_digest

Number = Union[int, float]
_LINE_LETTERS = 200


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
    facts.update(power.readings())
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
