"""Rounds of a pool: short ones are requested together behind an untimed round, long ones one by one."""

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from in_process import InProcessSession
from nullbench import StopAfter, build_network

from device_agents.backends import create
from device_agents.messages import LoadRequest, Revealed
from harness.device.replies import Series, Visit
from harness.errors import BackendError, Interrupted
from harness.measure.campaign import CampaignRun
from harness.measure.device_run import DeviceRun
from harness.measure.journal.journal import Journal
from harness.measure.policy import REFERENCE_EVERY, RepeatPolicy
from harness.network.fusion.fusion_rules import DEFAULT_RULES
from harness.network.layers import cut
from harness.network.model_references import load_network
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.batches import Batch, probe_of
from harness.probe.probe_plan import CutNetwork, ProbePlan, plan_probes
from harness.samples import Sample

RUNS = 6


@dataclass
class RecordingSession(InProcessSession):
    """A session that keeps the visits of each request."""

    requests: list[list[str]] = field(default_factory=list)

    def run(
        self, visits: Sequence[Visit], silence_s: float = 0.0
    ) -> Iterator[tuple[tuple[Series, ...], Mapping[str, float]]]:
        """Run visits in parts of seven, and keep the names of their loads."""
        self.requests.append([visit.probe for visit in visits])
        for first in range(0, len(visits), 7):
            for series, state in super().run(visits[first : first + 7], silence_s):
                yield tuple(Series(one.visit + first, one.probe, one.samples) for one in series), state
                if self._cancelled:
                    return


@dataclass
class SpendingSession(InProcessSession):
    """A session that adds up the device time of its visits; an untimed run counts as long as a timed one."""

    spent_s: float = 0.0

    def _visit(self, at: int, visit: Visit) -> Series:
        series = super()._visit(at, visit)
        taken_s = sum((one.device_ns or 0) / 1e9 for one in series.samples)
        self.spent_s += taken_s * (1 + visit.warmup / visit.runs)
        return series


class RefusingSession(RecordingSession):
    """A session with a device that refuses every probe."""

    def put(self, request: LoadRequest) -> Revealed | None:
        """Refuse the probe."""
        raise BackendError(f"{request.probe} is refused")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> ProbePlan:
    """A plan whose network does not fit into the caches: its probes in context are in pools."""
    network = load_network(str(build_network(tmp_path_factory.mktemp("pool") / "chain.onnx")))
    one = CutNetwork(network, cut(network, DEFAULT_RULES), frozenset())
    return plan_probes([one], DEFAULT_RULES, AuxiliaryKind.AVGPOOL, cache_bytes=16)


def pool_of(plan: ProbePlan) -> Batch:
    """Return the pool of a plan with most loads."""
    return max((batch for batch in plan.batches if batch.visits == "pool"), key=lambda batch: len(batch.loads))


def run(
    folder: Path, plan: ProbePlan, run_s: float, stops: Sequence[threading.Event] = ()
) -> tuple[list[list[str]], dict[str, list[Sample]]]:
    """Run a campaign, once for each stop and then to its end; return all requests and the samples of each probe."""
    session = RecordingSession(create("null", {"c_s": run_s}))
    policy = RepeatPolicy(runs=RUNS)
    with Journal(folder / "journal.sqlite") as journal:
        campaign = DeviceRun(session, journal, "bench").begin(plan, policy.settings("profile", 0))
        for stop in (*stops, threading.Event()):
            try:
                CampaignRun(DeviceRun(session, journal, "bench", stop=stop), campaign, plan, policy).run()
            except Interrupted:
                assert stop.is_set()
        return session.requests, dict(journal.samples(campaign.id))


def sample_counts(plan: ProbePlan) -> dict[str, int]:
    """Return the number of samples of each probe: RUNS for each of its copies in all batches."""
    loads = Counter(probe_of(load) for batch in plan.batches for load in batch.loads)
    return {probe: RUNS * count for probe, count in loads.items()}


def counted(samples: Mapping[str, Sequence[Sample]], plan: ProbePlan) -> dict[str, int]:
    """Return the number of samples of each probe but the reference."""
    return {probe: len(taken) for probe, taken in samples.items() if probe != plan.reference}


def of_pool(requests: Sequence[Sequence[str]], pool: Batch) -> list[list[str]]:
    """Return the requests that visit only loads of the pool, without the reference probe."""
    kept = [[load for load in request if load in pool.loads] for request in requests]
    return [one for one, request in zip(kept, requests, strict=True) if set(pool.loads) <= set(request)]


def test_short_rounds_are_requested_together_behind_an_untimed_one(tmp_path: Path, plan: ProbePlan) -> None:
    """Every request of several rounds first visits each load once, without keeping the sample."""
    pool = pool_of(plan)
    requests, samples = run(tmp_path, plan, run_s=1e-5)
    visited = of_pool(requests, pool)
    size = len(pool.loads)
    assert max(map(len, visited)) > 2 * size
    for request in visited:
        assert all(sorted(request[at : at + size]) == sorted(pool.loads) for at in range(0, len(request), size))
    assert counted(samples, plan) == sample_counts(plan)
    untimed = len(visited)  # one round in each request, and one request that loads the caches
    assert sum(map(len, visited)) == (RUNS + untimed) * size


def test_the_reference_probe_is_in_every_fourth_round(tmp_path: Path, plan: ProbePlan) -> None:
    """Rounds of six runs visit it after the first and the fifth round of each pool, also if the campaign is resumed."""
    pools = sum(batch.visits == "pool" for batch in plan.batches)
    others = sum(RUNS * -(-len(batch.loads) // REFERENCE_EVERY) for batch in plan.batches if batch.visits != "pool")
    for folder, stops in (("whole", []), ("stopped", [StopAfter(9), StopAfter(20), StopAfter(33)])):
        (tmp_path / folder).mkdir()
        _, samples = run(tmp_path / folder, plan, 1e-5, stops)
        assert len(samples[plan.reference]) == others + 2 * pools


def test_a_campaign_whose_probes_were_all_refused_can_be_resumed(tmp_path: Path, plan: ProbePlan) -> None:
    """Without a probe that the device accepts, a second run ends as the first one did."""
    session = RefusingSession(create("null", {}))
    policy = RepeatPolicy(runs=RUNS)
    with Journal(tmp_path / "journal.sqlite") as journal:
        campaign = DeviceRun(session, journal, "bench").begin(plan, policy.settings("profile", 0))
        for _ in range(2):
            CampaignRun(DeviceRun(session, journal, "bench"), campaign, plan, policy).run()
        assert not journal.samples(campaign.id)


def test_long_rounds_are_requested_one_by_one(tmp_path: Path, plan: ProbePlan) -> None:
    """Where a round takes longer than caches stay filled, only the first one is not timed."""
    pool = pool_of(plan)
    requests, samples = run(tmp_path, plan, run_s=0.1)
    assert [len(one) for one in of_pool(requests, pool)] == [len(pool.loads)] * len(of_pool(requests, pool))
    assert counted(samples, plan) == sample_counts(plan)


@pytest.mark.parametrize("looks", range(1, 60, 6))
def test_a_stop_between_rounds_of_a_request_loses_and_repeats_nothing(
    tmp_path: Path, plan: ProbePlan, looks: int
) -> None:
    """Stopped anywhere and resumed, each probe has the samples of a campaign that was not stopped."""
    _, samples = run(tmp_path, plan, 1e-5, [StopAfter(looks), StopAfter(looks + 3)])
    assert counted(samples, plan) == sample_counts(plan)


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> ProbePlan:
    """A plan of cold batches alone."""
    network = load_network(str(build_network(tmp_path_factory.mktemp("cold") / "chain.onnx")))
    plan = plan_probes(
        [CutNetwork(network, cut(network, DEFAULT_RULES), frozenset())], DEFAULT_RULES, AuxiliaryKind.AVGPOOL
    )
    assert {batch.visits for batch in plan.batches} == {"cold"}
    return plan


def test_a_cold_round_is_divided_into_short_requests(tmp_path: Path, cold: ProbePlan) -> None:
    """Visits of a cold batch are requested for about 30 s at once, so that a broken link costs no more."""
    requests, samples = run(tmp_path, cold, run_s=10.0)
    assert sample_counts(cold).items() <= {probe: len(taken) for probe, taken in samples.items()}.items()
    assert max(map(len, requests[1:])) <= 3


def test_short_cold_rounds_are_requested_together(tmp_path: Path, cold: ProbePlan) -> None:
    """A pass over a batch takes one request once all its probes have a sample, and two before."""
    requests, samples = run(tmp_path, cold, run_s=1e-5)
    assert sample_counts(cold).items() <= {probe: len(taken) for probe, taken in samples.items()}.items()
    passes = len(RepeatPolicy(runs=RUNS).passes())
    assert len(requests) <= len(cold.batches) * (passes + 1) + 1  # how long the first visits take is unknown


@pytest.mark.parametrize("looks", range(0, 40, 8))
def test_untimed_runs_count_wherever_a_campaign_stops(tmp_path: Path, plan: ProbePlan, looks: int) -> None:
    """The journal's device time is that of all confirmed runs, also after a stop behind untimed rounds."""
    session, policy = SpendingSession(create("null", {"c_s": 1e-5})), RepeatPolicy(runs=RUNS)
    with Journal(tmp_path / "journal.sqlite") as journal:
        campaign = DeviceRun(session, journal, "bench").begin(plan, policy.settings("profile", 0))
        stopped = DeviceRun(session, journal, "bench", stop=StopAfter(looks))
        with pytest.raises(Interrupted):
            CampaignRun(stopped, campaign, plan, policy).run()
        assert journal.spent_s(campaign.id) == pytest.approx(session.spent_s, rel=0.02)
