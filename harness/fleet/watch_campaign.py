"""The watch campaign of a request: the measurements that slowdowns are detected from."""

from harness.errors import CampaignIncomplete
from harness.measure.campaign import CampaignRun
from harness.measure.device_run import DeviceRun
from harness.measure.journal.journal import Journal
from harness.measure.journal.records import PENDING, Campaign
from harness.measure.profiling import Profiled
from harness.measure.request import ProfileRequest
from harness.slowdowns.detection_power import LEVEL
from harness.slowdowns.watch_plan import plan_watch
from harness.slowdowns.watch_series import WATCH, read_watch

_EXCESS = 1.5
"""How far the planned time of a watch may exceed the remaining budget: planned times are estimates."""


def measure_watch(run: DeviceRun, request: ProfileRequest, profiled: Profiled, *, budget_s: float) -> int | None:
    """Measure the watch right after its campaign and return its number; None if there is nothing to watch.

    It keeps the probes of the night before, so that nights stay comparable. Raises CampaignIncomplete if the budget is
    too small, and the errors of a campaign.
    """
    journal = run.journal
    earlier = watches(journal, request)
    planned = plan_watch(
        profiled.plan,
        profiled.networks,
        journal.samples(profiled.campaign.id),
        run.session.hello.clock,
        before=read_watch(journal, earlier[-1].id) if earlier else None,
        budget_s=budget_s,
        level=LEVEL if request.watch_level is None else request.watch_level,
    )
    if planned is None:
        return None
    if planned.device_s > _EXCESS * budget_s:
        why = f"It takes {planned.device_s:.1f} s on the device, and {budget_s:.1f} s are left"
        step = "Give the job a larger budget or fewer networks"
        raise CampaignIncomplete("The budget is too small for the watch", why=why, next_step=step)
    campaign = run.begin(planned.plan, planned.policy.settings(WATCH, request.seed, request.name))
    if not campaign.complete:
        CampaignRun(run, campaign, planned.plan, planned.policy, PENDING).run()
    return campaign.id


def watches(journal: Journal, request: ProfileRequest) -> list[Campaign]:
    """Return the complete watch campaigns of the same subject on the same device from other nights, oldest first."""
    return [
        campaign
        for campaign in journal.campaigns(request.device)
        if campaign.purpose == WATCH
        and campaign.is_usable
        and campaign.job != request.name
        and _subject(campaign.job) == _subject(request.name)
    ]


def _subject(job: str) -> str:
    """The name of a job without its night."""
    return job.partition("/")[2]
