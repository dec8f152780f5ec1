"""The noise of campaigns in the journal: how quiet the machine was, whether the device kept its speed, and how far
latencies repeat between processes.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.errors import DeviceUnsteady
from harness.measure.journal.journal import Journal
from harness.measure.journal.reader import JournalReader
from harness.measure.journal.records import Campaign
from harness.measure.noise.machine_noise import MachineNoise, Spreads, State, between_most_processes, judge, load_of
from harness.measure.noise.quiet_phases import Phases, phases_of
from harness.measure.summary import seconds_of, undisturbed
from harness.samples import Sample
from harness.settings import MOST_DRIFT

GOLDEN, PROCESS = "golden", "process"
"""The purposes of campaigns with only the reference probe: before and after each campaign, and in further processes."""
_MOST_PROCESSES = 20
"""Processes of one device that its repeatability is taken from, the newest."""
_FEWEST_SHOWN, _FEWEST_JUDGED = 3, 8
"""Samples of each third: a median of fewer than eight may be off by half on a noisy device that keeps its speed."""


def phases_of_campaign(journal: JournalReader, campaign: Campaign) -> Phases:
    """Return the quiet and slow phases of a campaign."""
    return phases_of(journal.probe_samples(campaign.id), campaign.clock)


def judge_campaign(journal: JournalReader, campaign: Campaign, slow_share: float) -> MachineNoise:
    """Return the verdict on the machine of a campaign, by what the journal holds of it and of processes about it.

    `slow_share` is the share of its samples in slow phases.
    """
    alone = [journal.samples_of(one.id, one.reference) for one in _about(journal, campaign)]
    spreads = Spreads(
        between_processes=between_most_processes(_latencies_s(alone, campaign.clock)),
        drift=drift_of(journal.samples_of(campaign.id, campaign.reference), campaign.clock).judged,
        scatter=scatter_of(alone, campaign.clock),
        slow_phases=slow_share,
    )
    load = load_of(journal.states(campaign.id), campaign.fingerprint)
    return judge(load, campaign.fingerprint, campaign.clock, spreads)


@dataclass(frozen=True)
class ProcessNoise:
    """The machine as a process that measured whole networks saw it: facts about it, and its reports during the runs.

    `reference` has samples of the reference probe, and `drift` is its drift among the networks, None for few samples;
    `slow_phases` is the share of the runs in slow phases.
    """

    fingerprint: Mapping[str, str] = field(default_factory=dict)
    states: Sequence[State] = ()
    reference: Sequence[Sample] = ()
    drift: float | None = None
    slow_phases: float = 0.0

    @classmethod
    def of(
        cls,
        journal: JournalReader,
        campaign: Campaign,
        clock: str,
        slow_share: float,
        reference: Sequence[Sample] = (),
    ) -> ProcessNoise:
        """Return what the journal holds of a process's campaign; `reference` replaces its samples of that probe."""
        own = journal.samples_of(campaign.id, campaign.reference)
        drift = drift_of(own, clock).judged
        return cls(campaign.fingerprint, journal.states(campaign.id), reference or own, drift, slow_share)


def judge_processes(
    processes: Sequence[ProcessNoise], clock: str, floor: float | None, table_reference_s: float | None = None
) -> MachineNoise:
    """Return the verdict on the machine that measured whole networks, which differ by `floor` between processes.

    `table_reference_s` is the latency of the reference probe when the table was measured.
    """
    alone = [one.reference for one in processes if one.reference]
    since = None
    if table_reference_s is not None and alone:
        since = statistics.median(_latencies_s(alone, clock)) / table_reference_s - 1
    spreads = Spreads(
        between_processes=floor,
        drift=max((one.drift for one in processes if one.drift is not None), default=None),
        scatter=scatter_of(alone, clock),
        since_table=since,
        slow_phases=statistics.fmean(one.slow_phases for one in processes),
    )
    facts = processes[0].fingerprint
    states = [state for one in processes for state in one.states]
    return judge(load_of(states, facts), facts, clock, spreads, of_networks=True)


def reference_s(journal: JournalReader, campaign: Campaign) -> float | None:
    """Return the latency of the reference probe by itself before and after a campaign, None if it was not measured."""
    alone = [journal.samples_of(one.id, one.reference) for one in _about(journal, campaign)]
    return statistics.median(found) if (found := _latencies_s(alone, campaign.clock)) else None


def repeatability_of(journal: JournalReader, campaign: Campaign) -> float:
    """Return the relative standard deviation of a latency between processes of the device in a campaign's state.

    All its processes in the journal that measured the reference probe count; 0 if there is only one, and on devices
    with their own clock, which no process of the host changes.
    """
    if campaign.clock == "device":
        return 0.0
    alike = [one for one in _of_reference(journal, campaign) if one.fingerprint == campaign.fingerprint]
    by_session = {one.token: one for one in reversed(alike)}  # the first of each: the state in which a process begins
    newest = list(by_session.values())[:_MOST_PROCESSES]
    taken = [journal.samples_of(one.id, one.reference) for one in newest]
    return between_most_processes(_latencies_s(taken, campaign.clock)) or 0.0


def _about(journal: JournalReader, campaign: Campaign) -> list[Campaign]:
    """Return the campaign of the reference probe before a campaign, and those in further processes after it."""
    known = _of_reference(journal, campaign)
    before = [one for one in known if one.id < campaign.id and one.purpose == GOLDEN][-1:]
    return [*before, *(one for one in known if one.settings.get("job") == process_job(campaign.id, one.seed))]


def _of_reference(journal: JournalReader, campaign: Campaign) -> list[Campaign]:
    purposes = (GOLDEN, PROCESS)
    return [one for one in journal.campaigns(campaign.device) if one.complete and one.purpose in purposes]


def process_job(campaign: int, number: int) -> str:
    """Return the name of the job that measures the reference probe in a further process for a campaign."""
    return f"campaign {campaign} process {number}"


def _latencies_s(alone: Sequence[Sequence[Sample]], clock: str) -> list[float]:
    return [undisturbed(taken, clock).latency_s for taken in alone if taken]


@dataclass(frozen=True)
class Drift:
    """The largest change of the reference probe between thirds of a campaign, as a fraction of the fastest third.

    `samples` is the number of each third; `fastest_s` and `slowest_s` are the lower quartiles of two of them, so that
    short slow phases do not count.
    """

    change: float = 0.0
    samples: int = 0
    fastest_s: float = 0.0
    slowest_s: float = 0.0

    @property
    def judged(self) -> float | None:
        """The change; None for too few samples, whose noise would look like one."""
        return self.change if self.samples >= _FEWEST_JUDGED else None

    @property
    def is_too_large(self) -> bool:
        """Whether the campaign may not enter a table."""
        return self.samples >= _FEWEST_JUDGED and self.change > MOST_DRIFT


def drift_of(taken: Sequence[Sample], clock: str) -> Drift:
    """Return the drift that samples of the reference probe show, none if there are fewer than nine."""
    third = len(taken) // 3
    if third < _FEWEST_SHOWN:
        return Drift()
    parts = (taken[:third], taken[third : 2 * third], taken[2 * third :])
    latencies_s = [undisturbed(part, clock).latency_s for part in parts]
    fastest_s, slowest_s = min(latencies_s), max(latencies_s)
    return Drift(slowest_s / fastest_s - 1, third, fastest_s, slowest_s)


def scatter_of(processes: Sequence[Sequence[Sample]], clock: str) -> float | None:
    """Return the median over processes of half the distance between quartiles over the median; None for few samples."""
    found = []
    for taken in processes:
        if len(taken) >= 3 * _FEWEST_JUDGED:
            low_s, median_s, high_s = statistics.quantiles([seconds_of(one, clock) for one in taken], n=4)
            found += [(high_s - low_s) / 2 / median_s] if median_s > 0 else []
    return statistics.median(found) if found else None


def check_steady(journal: Journal, campaign: Campaign) -> None:
    """Raise DeviceUnsteady if the device's speed changed by more than MOST_DRIFT during the campaign.

    Such a campaign is complete, but its layers were measured at different speeds: it enters no table.
    """
    drift = drift_of(journal.samples_of(campaign.id, campaign.reference), campaign.clock)
    if not drift.is_too_large:
        return
    what = f"The speed of {campaign.device} changed during the campaign: its reference probe drifted by"
    times = f"{drift.fastest_s * 1e3:.4g} to {drift.slowest_s * 1e3:.4g} ms"
    ranged = f"Its latency ranged from {times} over the thirds of campaign {campaign.id} (limit {MOST_DRIFT:.0%})"
    why = f"{ranged}. The campaign is excluded from tables"
    step = "Stop other work on the device, check its clock and temperature, then run the same command again"
    raise DeviceUnsteady(f"{what} {drift.change:.0%}", why=why, next_step=f"{step}; it measures again")
