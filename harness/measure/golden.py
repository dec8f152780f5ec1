"""The golden probe: a fixed small network whose latency shows whether a device is still in its usual state."""

from __future__ import annotations

from dataclasses import replace

from harness.measure.campaign import CampaignRun
from harness.measure.device_run import DeviceRun
from harness.measure.policy import RepeatPolicy
from harness.measure.progress import ignore
from harness.measure.summary import Measurement, summarise
from harness.probe.auxiliary import DEFAULT_AUXILIARY
from harness.probe.batches import Batch
from harness.probe.probe import reference_probe
from harness.probe.probe_plan import ProbePlan

PURPOSE = "golden"
GOLDEN_POLICY = RepeatPolicy(runs=5)
RUNS_PER_VISIT = 4


def measure_golden(run: DeviceRun) -> Measurement | None:
    """Measure the golden probe now, in a new campaign of its own; None if the device refuses it.

    Raises a DeviceError.
    """
    probe = reference_probe()
    batch = Batch((probe.id,), "warm", RUNS_PER_VISIT)
    plan = ProbePlan({probe.id: probe}, (), (batch,), probe.id, (), DEFAULT_AUXILIARY)
    campaign = run.begin(plan, GOLDEN_POLICY.settings(PURPOSE, 0))
    CampaignRun(replace(run, observe=ignore), campaign, plan, GOLDEN_POLICY).run()
    taken = run.journal.samples(campaign.id).get(probe.id)
    return summarise(taken, campaign.clock) if taken else None
