"""Whether the machine was quiet while it measured: a verdict, and the differences that it hides.

The agent records counters of its machine with every series. From these, and from the latency of the reference probe
in the campaign and in several processes, follows what else the machine did and how far latencies repeat.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from harness.device.variant import threads_of
from harness.measure.summary import mad_sigma

Verdict = Literal["quiet", "noisy", "not known"]
State = Mapping[str, float]
"""Facts about a machine at one moment, as its agent reports them (`device_agents/fingerprint.py`)."""

MOST_SPREAD = 0.05
"""The largest of each of the `Spreads` of a quiet machine."""
MOST_STEAL = 0.02
MOST_SLOW_PHASES = 0.1
"""Share of the runs of a quiet machine that may be in slow phases."""
MOST_WAITING = 0.7
"""Tasks beyond the number of cores that may want to run on average."""
OTHER_CORES, OTHER_SHARE = 0.7, 0.35
"""Other programs are noise if they use more than so many cores, and more than this share of all cores."""
MOST_TAKEN = 0.25
"""Cores that other programs may use beside several threads, if every core has a thread."""
_LEAST_WINDOW_S = 1.0
"""Processor time over which counters of a hundredth of a second mean something."""
_MOST_TASKS = 1e6
EMULATED = "emulated-npu"
_SMALL_SAMPLE = (0.7979, 0.8862, 0.9213, 0.9400, 0.9515, 0.9594, 0.9650, 0.9693, 0.9727)
"""The mean standard deviation of 2, 3, … normal values, as a fraction of the true one."""
_SMALL_SAMPLE_MAD = (0.838, 0.672, 0.734, 0.822, 0.839, 0.878, 0.886, 0.908)
"""The same of the median absolute deviation; by simulation, and near Croux and Rousseeuw (1992)."""


@dataclass(frozen=True)
class MachineLoad:
    """What a machine did besides measuring; each is None if it does not report it.

    `steal` is the share of the processor time that the hypervisor gave to other guests. `other_cores` is how many cores
    other programs used on average, and `waiting` how many more tasks wanted to run than there are cores. `threads` is
    the number of threads that were measured.
    """

    steal: float | None = None
    other_cores: float | None = None
    waiting: float | None = None
    cores: int = 0
    threads: int = 1

    @property
    def is_known(self) -> bool:
        """Whether the machine reports any of it."""
        return any(one is not None for one in (self.steal, self.other_cores, self.waiting))

    @property
    def reasons(self) -> tuple[str, ...]:
        """The findings that make it noisy, in words."""
        found = []
        if self.steal is not None and self.steal > MOST_STEAL:
            found.append(f"the hypervisor took {shown(self.steal)} of the processor time")
        if self.waiting is not None and self.waiting > MOST_WAITING:
            found.append(f"{self.waiting + self.cores:.1f} tasks shared {self.cores} cores")
        elif self.other_cores is not None and self.other_cores > self._harmless_cores:
            found.append(f"other programs used {self.other_cores:.1f} of {self.cores} cores")
        return tuple(found)

    @property
    def slowdown(self) -> float:
        """The share of the cores that others want beyond what is harmless; 0 for one thread.

        Several threads wait for each other, and take at least so much longer, in all samples.
        """
        if self.threads == 1 or not self.cores:
            return 0.0
        excess = (self.waiting or 0.0) - MOST_WAITING, (self.other_cores or 0.0) - self._harmless_cores
        return max(0.0, *excess) / self.cores

    @property
    def _harmless_cores(self) -> float:
        """How many cores other programs may use."""
        most = max(OTHER_CORES, OTHER_SHARE * self.cores)
        return min(most, max(MOST_TAKEN, self.cores - self.threads)) if self.threads > 1 else most


@dataclass(frozen=True)
class Spreads:
    """How far latencies differ, as fractions; each is None if it was not measured.

    between_processes: standard deviation of a latency between processes
    drift: largest change of the reference probe during a campaign
    scatter: half the distance between the quartiles of the reference probe, over its median
    since_table: how much longer the reference probe takes than when the table was measured
    slow_phases: share of the runs in slow phases of the machine, which are left out (`quiet_phases`)
    """

    between_processes: float | None = None
    drift: float | None = None
    scatter: float | None = None
    since_table: float | None = None
    slow_phases: float | None = None

    @property
    def reasons(self) -> tuple[str, ...]:
        """Those above MOST_SPREAD, in words."""
        words = (
            (self.between_processes, "between processes"),
            (self.drift, "drift of the reference probe"),
            (self.scatter, "scatter of the reference probe"),
        )
        found = [f"{shown(share)} {what}" for share, what in words if share is not None and share > MOST_SPREAD]
        if self.since_table is not None and abs(self.since_table) > MOST_SPREAD:
            way = "slower" if self.since_table > 0 else "faster"
            found.append(f"{shown(abs(self.since_table))} {way} than when the table was measured")
        if self.slow_phases is not None and self.slow_phases > MOST_SLOW_PHASES:
            found.append(f"{shown(self.slow_phases)} of the runs in slow phases")
        return tuple(found)

    def resolution(self, *, of_networks: bool) -> float | None:
        """Return the relative difference below which differences are not significant; None if it is unknown.

        The scatter does not count: a latency is the median of many runs, and those of slow phases are left out.
        """
        around = (self.drift, self.between_processes)
        known = [one for one in around if one is not None]
        if of_networks and self.between_processes is not None:  # which contains the drift
            known = [self.between_processes]
        return max([*known, *(abs(one) for one in (self.since_table,) if one is not None)], default=None)


@dataclass(frozen=True)
class MachineNoise:
    """The verdict on a machine; `text` is the whole of it, as in `noisy: 34% between processes; differences …`.

    `between_processes`, `drift`, `scatter`, `since_table` and `slow_phases` are its `Spreads`, and `resolution` is what
    follows from them.
    """

    verdict: Verdict
    text: str
    reasons: tuple[str, ...]
    between_processes: float | None
    drift: float | None
    scatter: float | None
    since_table: float | None
    slow_phases: float | None
    resolution: float | None
    load: MachineLoad


def judge(
    load: MachineLoad, fingerprint: Mapping[str, str], clock: str, spreads: Spreads, *, of_networks: bool = False
) -> MachineNoise:
    """Return the verdict on the machine of a campaign.

    With `of_networks`, the spread between processes already contains the drift, which then does not widen the
    resolution. `load` does not count on a device's own clock, because other work on the host does not change its times.
    An emulated device has no other work.
    """
    is_emulated = fingerprint.get("runtime") == EMULATED
    load = MachineLoad() if clock == "device" or is_emulated else load
    resolution = spreads.resolution(of_networks=of_networks)
    if load.slowdown:  # no spread shows a steady load
        resolution = max(load.slowdown, resolution or 0.0)
    reasons = () if is_emulated else (*spreads.reasons, *load.reasons)
    verdict: Verdict = "noisy" if reasons else "quiet"
    if is_emulated:
        text = "quiet: the device is emulated"
    elif resolution is None and not load.is_known and not reasons:
        verdict, text = (
            "not known",
            "not known: the device reports no load, and the campaign is too short to show drift",
        )
    else:
        text = _noise_text(reasons, resolution) if reasons else verdict
    return MachineNoise(verdict, text, reasons, **asdict(spreads), resolution=resolution, load=load)


def _noise_text(reasons: Sequence[str], resolution: float | None) -> str:
    found = f"noisy: {', '.join(reasons)}"
    if resolution is None:
        return f"{found}; the variation between processes was not measured"
    is_alone = len(reasons) == 1 and reasons[0].startswith(shown(resolution))
    return f"{found}; differences below {'that' if is_alone else shown(resolution)} are not significant"


def load_of(states: Sequence[State], fingerprint: Mapping[str, str]) -> MachineLoad:
    """Return what a machine did besides measuring, by the states during the series of some processes in order."""
    threads, cores = max(1, threads_of(fingerprint)), _count(fingerprint.get("cores"))
    if not cores:
        return MachineLoad()
    total_s = busy_s = own_s = steal_s = 0.0
    for _, group in itertools.groupby(states, key=lambda state: state.get("process")):
        first, *_, last = (ends := list(group))[0], ends[-1]
        total_s += _rise(first, last, "cpu_total_s")
        busy_s += _rise(first, last, "cpu_busy_s")
        own_s += _rise(first, last, "own_cpu_s")
        steal_s += _rise(first, last, "cpu_steal_s")
    runnable = [state["runnable"] for state in states if 0 <= state.get("runnable", -1) <= _MOST_TASKS]
    # The agent counts itself while it looks, in place of a thread that measures. The others may spin then, or sleep.
    wanting = statistics.fmean(max(one, threads) for one in runnable) if runnable else threads
    waiting = wanting - cores if runnable or threads > cores else None
    if total_s < _LEAST_WINDOW_S:
        return MachineLoad(waiting=waiting, cores=cores, threads=threads)
    others = min(1.0, max(0.0, busy_s - own_s) / total_s)
    return MachineLoad(min(1.0, steal_s / total_s), others * cores, waiting, cores, threads)


def busy_before(state: State, fingerprint: Mapping[str, str]) -> str:
    """Return why a machine is busy before a measurement, empty if it is not or does not report it."""
    load, cores = state.get("load_1min"), _count(fingerprint.get("cores"))
    if load is None or not cores or load <= cores:
        return ""
    return f"the load of the last minute is {load:.1f} on {cores} cores"


def between_processes(latencies_s: Sequence[float]) -> float | None:
    """Return the unbiased standard deviation of latencies of separate processes over their median; None for one."""
    if len(latencies_s) < 2:
        return None
    biased = _SMALL_SAMPLE[min(len(latencies_s) - 2, len(_SMALL_SAMPLE) - 1)]
    return statistics.stdev(latencies_s) / biased / statistics.median(latencies_s)


def between_most_processes(latencies_s: Sequence[float]) -> float | None:
    """As `between_processes`, from the median absolute deviation: a minority in slow phases of the machine has no
    effect.

    A short measurement lies within one phase as a whole, so its own samples do not show it.
    """
    if len(latencies_s) < 2:
        return None
    biased = _SMALL_SAMPLE_MAD[min(len(latencies_s) - 2, len(_SMALL_SAMPLE_MAD) - 1)]
    return mad_sigma(latencies_s) / biased / statistics.median(latencies_s)


def shown(share: float) -> str:
    """Return a fraction as a percentage, with a digit after the point below 10 %."""
    return f"{share:.0%}" if share >= 0.095 else f"{share:.1%}"


def _rise(first: State, last: State, name: str) -> float:
    return max(0.0, last.get(name, 0.0) - first.get(name, 0.0))


def _count(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 6 else 0
