"""Probes that stay loaded from pass to pass of a campaign, where the device has room for them."""

import itertools
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from in_process import InProcessSession
from nullbench import build_network

from device_agents.backends import create
from device_agents.messages import LoadRequest, Revealed
from harness.errors import WorkerDied
from harness.measure.campaign import MAX_DEATHS, CampaignRun
from harness.measure.device_run import DeviceRun
from harness.measure.journal.journal import Journal
from harness.measure.loaded_probes import prepare
from harness.measure.policy import KEPT_PASSES, PASSES, RepeatPolicy
from harness.measure.progress import Progress
from harness.network.fusion.fusion_rules import DEFAULT_RULES
from harness.network.layers import cut
from harness.network.model_references import load_network
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.probe_plan import CutNetwork, ProbePlan, plan_probes
from harness.samples import Clock

RUNS = 6


@dataclass
class CountingSession(InProcessSession):
    """A session that counts loads, on a device with so much memory; `held` are the probes that it holds."""

    memory_bytes: float = 0.0
    puts: Counter[str] = field(default_factory=Counter)
    held: set[str] = field(default_factory=set)

    def put(self, request: LoadRequest) -> Revealed | None:
        """Load a probe that is not loaded."""
        assert request.probe not in self.held
        self.puts[request.probe] += 1
        self.held.add(request.probe)
        return super().put(request)

    def drop(self, probes: Sequence[str]) -> None:
        """Drop probes that are loaded."""
        assert self.held >= set(probes)
        self.held -= set(probes)
        super().drop(probes)

    def status(self) -> Mapping[str, Any]:
        """Return a status with the memory."""
        return {"state": {"memory_available_bytes": self.memory_bytes}, "holder": None, "busy": False}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> ProbePlan:
    """A plan of several batches."""
    network = load_network(str(build_network(tmp_path_factory.mktemp("kept") / "chain.onnx")))
    one = CutNetwork(network, cut(network, DEFAULT_RULES), frozenset())
    return plan_probes([one], DEFAULT_RULES, AuxiliaryKind.AVGPOOL, cache_bytes=16)


def measured(
    folder: Path, plan: ProbePlan, memory_bytes: float, reveals: tuple[str, ...], clock: Clock = "device"
) -> tuple[Any, Any]:
    """Run a campaign; return its session and the slots of its series."""
    session = CountingSession(create("null", {}), memory_bytes=memory_bytes)
    session.hello = replace(session.hello, reveals=reveals, clock=clock)
    policy = RepeatPolicy(runs=RUNS)
    folder.mkdir()
    with Journal(folder / "journal.sqlite") as journal:
        on = DeviceRun(session, journal, "bench")
        campaign = on.begin(plan, policy.settings("profile", 0))
        CampaignRun(on, campaign, plan, policy).run()
        slots = [journal.slots(campaign.id, at, round) for at in range(len(plan.batches)) for round in range(RUNS)]
    return session, slots


def test_probes_are_loaded_once_where_all_fit(tmp_path: Path, plan: ProbePlan) -> None:
    """With room for all, each probe is loaded once and dropped at the end; the visits are the same as without room."""
    roomy, slots = measured(tmp_path / "roomy", plan, 1e12, ("unfused", "kept"))
    tight, expected = measured(tmp_path / "tight", plan, 0.0, ("unfused", "kept"))
    assert slots == expected
    assert roomy.puts.keys() == tight.puts.keys()
    assert set(roomy.puts.values()) == {1}
    assert min(tight.puts.values()) == PASSES
    assert not roomy.held | tight.held


def test_what_does_not_fit_is_loaded_for_each_pass(tmp_path: Path, plan: ProbePlan) -> None:
    """With room for some batches, those stay loaded and the others are loaded for every pass."""
    session, _ = measured(tmp_path / "some", plan, 20e6, ("unfused", "kept"))
    assert {1, PASSES} <= set(session.puts.values())
    assert not session.held


def test_a_device_that_does_not_say_so_keeps_nothing(tmp_path: Path, plan: ProbePlan) -> None:
    """Memory of an accelerator is not what the status reports: without the word "kept" every pass loads anew."""
    session, _ = measured(tmp_path / "other", plan, 1e12, ("unfused",))
    assert min(session.puts.values()) == PASSES


def test_a_processor_that_holds_all_probes_is_visited_more_often(tmp_path: Path, plan: ProbePlan) -> None:
    """With room for all, batches of a processor are visited in more passes; batches that only check end before."""
    visited = {}
    for name, memory_bytes in (("roomy", 1e12), ("tight", 0.0)):
        _, slots = measured(tmp_path / name, plan, memory_bytes, ("unfused", "kept"), "wall")
        with sqlite3.connect(tmp_path / name / "journal.sqlite") as database:
            order = [batch for (batch,) in database.execute("SELECT batch FROM series ORDER BY id")]
        visited[name] = Counter(batch for batch, _ in itertools.groupby(order)), slots
    (roomy, taken), (tight, expected) = visited["roomy"], visited["tight"]
    assert taken == expected
    assert max(tight.values()) == PASSES < max(roomy.values()) == len(RepeatPolicy(runs=RUNS).passes(KEPT_PASSES))


@dataclass
class PreparingSession(InProcessSession):
    """A session with a device that compiles models once, in the order of the requests."""

    requests: list[list[bytes]] = field(default_factory=list)

    def unprepared(self, models: Iterable[bytes]) -> list[bytes]:
        """Return the models that no request had."""
        return [one for one in dict.fromkeys(models) if one not in itertools.chain(*self.requests)]

    def prepare(self, models: Sequence[bytes]) -> None:
        """Keep a request."""
        self.requests.append(list(models))


def test_each_request_to_compile_reports_its_share_of_the_effort(plan: ProbePlan) -> None:
    """New models are compiled in requests; the shares before and after each add up to the effort of all."""
    session, seen = PreparingSession(create("null", {})), list[Progress]()
    some = zip(range(150), itertools.cycle(plan.probes.values()), strict=False)
    probes = [replace(one, model=replace(one.model, content=b"%d" % at)) for at, one in some]
    prepare(session, probes * 2, seen.append, threading.Event())
    assert [one for models in session.requests for one in models] == [one.model.content for one in probes]
    count = len(session.requests)
    assert count > 1
    assert [one.share for one in seen] == [None, *(one.next_share for one in seen[:count])]
    assert seen[-1].share == pytest.approx(1.0)
    prepare(session, probes, seen.append, threading.Event())
    assert len(seen) == count + 1


@dataclass
class DyingSession(CountingSession):
    """A session with a device that takes two probes ahead, and whose worker dies while it loads a certain one.

    As where probes are loaded side by side, the death meets the first one that is open.
    """

    culprit: str = ""
    waiting: list[str] = field(default_factory=list)

    def put_ahead(self, request: LoadRequest) -> bool:
        """Take up to two probes."""
        if len(self.waiting) < 2 and request.probe not in self.waiting:
            self.waiting.append(request.probe)
        return request.probe in self.waiting

    @property
    def sent_ahead(self) -> tuple[str, ...]:
        """Return the probes whose `put` has not begun."""
        return tuple(self.waiting)

    def put(self, request: LoadRequest) -> Revealed | None:
        """Die if the culprit is open."""
        if self.culprit in (request.probe, *self.waiting):
            self.waiting = [one for one in self.waiting if one != request.probe]
            raise WorkerDied("The worker died", why="signal SIGSEGV")
        self.waiting = [one for one in self.waiting if one != request.probe]
        return super().put(request)


def test_the_probe_that_kills_workers_is_found_among_those_that_were_open(tmp_path: Path, plan: ProbePlan) -> None:
    """A probe that was open beside the one that kills workers is not refused, and no further death is needed."""
    culprit = plan.batches[0].loads[2]
    policy = RepeatPolicy(runs=RUNS)
    with Journal(tmp_path / "journal.sqlite") as journal:
        deaths = 0
        while deaths < 10:
            session = DyingSession(create("null", {}), culprit=culprit)
            on = DeviceRun(session, journal, "bench")
            key = on.key(plan, policy.settings("profile", 0))
            campaign = on.resumable(key) or on.begin(plan, policy.settings("profile", 0))
            try:
                CampaignRun(on, campaign, plan, policy).run()
                break
            except WorkerDied:
                deaths += 1
        refused = [one.id for one in journal.probes(campaign.id).values() if one.refused]
    assert refused == [culprit]
    assert deaths == MAX_DEATHS
