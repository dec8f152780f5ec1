"""The reference probe: a small network that never changes, so its latency shows the state of a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.measure.campaign import CampaignRun
from harness.measure.device_run import DeviceRun
from harness.measure.policy import RepeatPolicy
from harness.measure.progress import ignore
from harness.probe.probe import reference_probe
from harness.probe.probe_plan import plan_alone
from harness.samples import Sample

GOLDEN_POLICY = RepeatPolicy(runs=5)
_RUNS_PER_VISIT = 4


def measure_reference(run: DeviceRun, purpose: str, seed: int = 0, job: str = "") -> Sequence[Sample]:
    """Measure the reference probe in a new campaign and return its samples; none if the device refuses it."""
    probe = reference_probe()
    plan = plan_alone(probe, _RUNS_PER_VISIT)
    campaign = run.begin(plan, GOLDEN_POLICY.settings(purpose, seed, job))
    CampaignRun(replace(run, observe=ignore), campaign, plan, GOLDEN_POLICY).run()
    return run.journal.samples_of(campaign.id, probe.id)
