"""The golden probe: one fixed small network for every device, whose latency says whether a device is as it was."""

from __future__ import annotations

from harness.measure.campaign import CampaignRun
from harness.measure.policy import RepeatPolicy
from harness.measure.profiling import Sitting
from harness.measure.progress import ignore
from harness.measure.summary import Measurement, summarise
from harness.probe.auxiliary import DEFAULT_AUXILIARY
from harness.probe.batches import Batch
from harness.probe.probe import reference_probe
from harness.probe.probe_plan import ProbePlan

PURPOSE = "golden"
GOLDEN_POLICY = RepeatPolicy(runs=5)
RUNS_PER_VISIT = 4


def measure_golden(sitting: Sitting) -> Measurement | None:
    """What the golden probe takes right now; None where the device refuses it.

    It is always measured anew, as a campaign of its own: the samples are kept. Raises a DeviceError.
    """
    probe = reference_probe()
    batch = Batch((probe.id,), "warm", RUNS_PER_VISIT)
    plan = ProbePlan({probe.id: probe}, (), (batch,), probe.id, (), DEFAULT_AUXILIARY)
    session, journal = sitting.session, sitting.journal
    settings, hello = GOLDEN_POLICY.settings(PURPOSE, 0), session.hello
    campaign = journal.begin(sitting.device.name, plan, 0, settings, hello.fingerprint, hello.clock, session.token)
    CampaignRun(session, journal, campaign, plan, GOLDEN_POLICY, ignore, sitting.stop).run()
    taken = journal.samples(campaign.id).get(probe.id)
    return summarise(taken, campaign.clock) if taken else None
