"""The watch of a job: what regressions are told from, measured on the device right after the job's campaign."""

from __future__ import annotations

from collections.abc import Sequence

from harness.fleet.job import Job
from harness.measure.campaign import CampaignRun
from harness.measure.journal import PENDING, Campaign, Journal
from harness.measure.profiling import Profiled, Sitting
from harness.network.graph import Network
from harness.regression.series import read_watch
from harness.regression.watch import plan_watch

PURPOSE = "watch"
DEFAULT_BUDGET_S = 120.0


def watch(sitting: Sitting, job: Job, networks: Sequence[Network], profiled: Profiled) -> int | None:
    """The campaign of the watch, complete; None where there is nothing to watch. Raises as a campaign does.

    It keeps the probes of the night before, so that nights stay comparable.
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
        budget_s=job.policy.budget_s or DEFAULT_BUDGET_S,
    )
    if planned is None:
        return None
    settings = planned.policy.settings(PURPOSE, job.seed, job.name)
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
        if campaign.settings["purpose"] == PURPOSE
        and campaign.complete
        and campaign.excluded is None
        and campaign.settings.get("job", "") != job.name
        and _subject(campaign.settings.get("job", "")) == _subject(job.name)
    ]


def _subject(job: str) -> str:
    """What a job's name says besides its night."""
    return job.partition("/")[2]
