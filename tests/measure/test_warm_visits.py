"""Untimed runs of warm visits: how many there are, and that their time counts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from in_process import InProcessSession

from device_agents.backends.null import NullBackend
from device_agents.messages import Sample
from harness.device.session import Series, Visit
from harness.measure.campaign import CampaignRun
from harness.measure.device_requests import MOST_UNTIMED
from harness.measure.device_run import DeviceRun
from harness.measure.journal.journal import Journal
from harness.measure.policy import RepeatPolicy
from harness.probe.probe import reference_probe
from harness.probe.probe_plan import plan_alone

RUNS = 3


class ProcessorBackend(NullBackend):
    """A null backend whose latencies are on the clock of a processor."""

    clock = "cpu"

    def run(self, probe: str) -> Sample:
        """Return the latency as processor time."""
        taken_ns = super().run(probe).device_ns
        assert taken_ns is not None
        return Sample(wall_ns=taken_ns, cpu_ns=taken_ns)


@dataclass
class VisitedSession(InProcessSession):
    """A session that keeps its visits, and adds up the time of all their runs."""

    visits: list[Visit] = field(default_factory=list)
    spent_s: float = 0.0

    def _visit(self, at: int, visit: Visit) -> Series:
        series = super()._visit(at, visit)
        self.visits.append(visit)
        run_s = (series.samples[0].device_ns or series.samples[0].wall_ns) / 1e9
        self.spent_s += run_s * (visit.warmup + visit.runs)
        return series


def measured(folder: Path, backend: NullBackend) -> tuple[Sequence[Visit], float, float]:
    """Return the visits of a campaign of one warm probe, the time that they took, and that of the journal."""
    session, policy, plan = VisitedSession(backend), RepeatPolicy(), plan_alone(reference_probe(), RUNS)
    with Journal(folder / "journal.sqlite") as journal:
        run = DeviceRun(session, journal, "bench")
        campaign = run.begin(plan, policy.settings("profile", 0))
        CampaignRun(run, campaign, plan, policy).run()
        return session.visits, session.spent_s, journal.spent_s(campaign.id)


@pytest.mark.parametrize(("run_s", "untimed"), [(1e-6, MOST_UNTIMED), (1.5e-5, 3), (3.5e-5, 2), (1e-3, 1)])
def test_short_probes_settle_before_they_are_timed(tmp_path: Path, run_s: float, untimed: int) -> None:
    """Once a sample shows how short a probe is, its visits have untimed runs of 40 µs; the journal counts them."""
    only_c = {"c_s": run_s, "a_s_per_byte": 0, "b_s_per_byte": 0, "weight_s_per_byte": 0}
    visits, spent_s, journal_s = measured(tmp_path, ProcessorBackend(only_c))
    assert [visit.warmup for visit in visits[:2]] == [1, 1]  # in the first round, as the reference probe and by itself
    assert {(visit.warmup, visit.runs) for visit in visits[2:]} == {(untimed, RUNS)}
    assert journal_s == pytest.approx(spent_s, rel=1e-6)


def test_a_device_with_its_own_clock_needs_no_more_untimed_runs(tmp_path: Path) -> None:
    """Its latencies do not depend on caches: one untimed run precedes each visit, however short."""
    visits, spent_s, journal_s = measured(tmp_path, NullBackend({"c_s": 1e-6}))
    assert {visit.warmup for visit in visits} == {1}
    assert journal_s == pytest.approx(spent_s, rel=1e-6)
