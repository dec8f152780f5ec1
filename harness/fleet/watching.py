"""The watch of a job: what regressions are told from, measured on the device right after the job's campaign."""

from __future__ import annotations

from collections.abc import Sequence

from harness.errors import CampaignIncomplete
from harness.fleet.job import Job
from harness.measure.campaign import CampaignRun
from harness.measure.journal import PENDING, Campaign, Journal
from harness.measure.profiling import Profiled, Sitting
from harness.network.network import Network
from harness.slowdowns.series import read_watch
from harness.slowdowns.subjects import WATCH
from harness.slowdowns.watch import plan_watch

_EXCESS = 1.5
"""By how much the least that a watch takes may exceed what is left: times are estimates."""


def watch(
    sitting: Sitting, job: Job, networks: Sequence[Network], profiled: Profiled, *, level: float, budget_s: float
) -> int | None:
    """The campaign of the watch, complete; None where there is nothing to watch. Raises as a campaign does.

    It keeps the probes of the night before, so that nights stay comparable. `level` is the probability of a false
    alarm with which they will be compared. Raises CampaignIncomplete where the budget does not allow for it.
    """
    session, journal = sitting.session, sitting.journal
    hello = session.hello
    earlier = watches(journal, job)
    planned = plan_watch(
        profiled.plan,
        networks,
        journal.samples(profiled.campaign.id),
        hello.clock,
        before=read_watch(journal, earlier[-1].id) if earlier else None,
        budget_s=budget_s,
        level=level,
    )
    if planned is None:
        return None
    if planned.device_s > _EXCESS * budget_s:
        why = f"It takes {planned.device_s:.1f} s on the device, and {budget_s:.1f} s are left"
        step = "Give the job a larger budget, or fewer networks"
        raise CampaignIncomplete("The budget does not allow for the watch", why=why, next_step=step)
    settings = planned.policy.settings(WATCH, job.seed, job.name)
    campaign = journal.begin(
        job.device, planned.plan, job.seed, settings, hello.fingerprint, hello.clock, session.token
    )
    if not campaign.complete:
        CampaignRun(
            session, journal, campaign, planned.plan, planned.policy, sitting.observe, sitting.stop, PENDING
        ).run()
    return campaign.id


def watches(journal: Journal, job: Job) -> list[Campaign]:
    """Complete watch campaigns of what this job measures on its device, of other nights, oldest first."""
    return [
        campaign
        for campaign in journal.campaigns(job.device)
        if campaign.settings["purpose"] == WATCH
        and campaign.complete
        and campaign.excluded is None
        and campaign.settings.get("job", "") != job.name
        and _subject(campaign.settings.get("job", "")) == _subject(job.name)
    ]


def _subject(job: str) -> str:
    """What a job's name says besides its night."""
    return job.partition("/")[2]
