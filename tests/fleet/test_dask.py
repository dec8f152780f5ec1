"""The engine dask: a real scheduler, two real workers, and jobs during which any of them ends."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import psutil
import pytest
from dask_rig import Lab, Running, is_free, lab, wait_until
from dask_threads import end_dask_threads
from nullbench import build_network

from harness.fleet.cluster.access import REQUEST_FORMAT, resource_of
from harness.fleet.cluster.dask_engine import DaskEngine, run_task
from harness.fleet.cluster.dask_worker import PLUGIN
from harness.fleet.cluster.job_archive import WorkerJob, detach_models, pack
from harness.fleet.execution import WaitPolicy
from harness.fleet.profile_outcome import ProfileOutcome
from harness.fleet.store import FleetStore
from harness.measure.journal.journal import Journal
from harness.measure.journal.merge import SECOND, merge
from harness.measure.journal.schema import SCHEMA_VERSION
from harness.measure.policy import RepeatPolicy
from harness.measure.progress import DONE, Progress
from harness.measure.request import ProfileRequest
from harness.version import VERSION
from harness.workspace import Workspace

LONG_RUNS = 240
SHORT, LONG = RepeatPolicy(runs=4), RepeatPolicy(runs=LONG_RUNS)
MAIN = "main"
SOME = 150
"""The number of series after which a long job is in its middle."""


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A scheduler, and two hosts that offer a device each and one that both reach."""
    with lab(tmp_path_factory.mktemp("lab")) as rig:
        (rig.root / MAIN).mkdir()
        build_network(rig.root / "chain.onnx")
        rig.start_scheduler()
        rig.start_workers()
        yield rig


@pytest.fixture(autouse=True)
def shared_leases(rig: Lab, runtime_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:  # noqa: ARG001
    """This process sees the leases of the workers' agents, and forks where it reads networks."""
    monkeypatch.setenv("HARNESS_RUNTIME_FOLDER", rig.environment["HARNESS_RUNTIME_FOLDER"])
    yield
    end_dask_threads()


def engine(rig: Lab, **changed: Any) -> DaskEngine:
    """An engine whose controller has a workspace of its own."""
    return DaskEngine(rig.scheduler, rig.workspace(MAIN), **changed)


def job(rig: Lab, name: str, device: str = "left", policy: RepeatPolicy = SHORT) -> ProfileRequest:
    """A job that measures a network of the controller's disk."""
    return ProfileRequest(device, (str(rig.root / "chain.onnx"),), name=name, policy=policy)


def run(runner: DaskEngine, *jobs: ProfileRequest) -> list[ProfileOutcome]:
    """The outcomes of jobs."""
    return list(runner.run(jobs, threading.Event()))


def check_once(rig: Lab, host: str, name: str, runs: int) -> None:
    """The controller has what the worker has: one campaign, every place once, so many samples of each probe."""
    places = rig.series(host, name)
    assert len({campaign for campaign, *_ in places}) == 1
    assert len(set(places)) == len(places)
    assert [place[1:] for place in rig.series(MAIN, name)] == [place[1:] for place in places]
    with Journal(rig.workspace(MAIN).journal) as journal:
        (campaign,) = {campaign for campaign, *_ in rig.series(MAIN, name)}
        known = journal.campaign(campaign)
        samples = journal.samples(campaign)
    assert known.complete
    assert {len(taken) for probe, taken in samples.items() if probe != known.reference} == {runs}


def test_jobs_run_where_their_devices_are(rig: Lab) -> None:
    """A job is measured by the worker that offers its device; its samples are in our journal, under our number.

    What its golden probe said of the device is known here, too. An observer of each sees when it was sent and when it
    has ended.
    """
    seen: dict[str, list[Progress]] = {"left": [], "right": []}
    watched = engine(rig, observer=lambda request: seen[request.device].append)
    first, second = run(watched, job(rig, "a/left"), job(rig, "a/right", "right"))
    assert all(rig.scheduler in sent.stage and end == DONE for sent, end in seen.values())
    assert {first.request.name, second.request.name} == {"a/left", "a/right"}
    for outcome in (first, second):
        assert outcome.failure is None
        assert outcome.result is not None
        with Journal(rig.workspace(MAIN).journal) as journal:
            campaign = journal.campaign(outcome.result.campaign)
            assert (campaign.device, campaign.settings["job"]) == (outcome.request.device, outcome.request.name)
            assert sum(map(len, journal.samples(campaign.id).values())) == outcome.result.samples
        with FleetStore(rig.workspace(MAIN).fleet) as store:
            assert "golden" in store.health(outcome.request.device).reason
    check_once(rig, "one", "a/left", 4)
    check_once(rig, "two", "a/right", 4)
    assert rig.series("two", "a/left") == rig.series("one", "a/right") == []


def test_a_job_that_is_done_is_not_measured_again(rig: Lab) -> None:
    """The second run of a named job returns the same campaign, also from a controller with an empty journal."""
    (first,) = run(engine(rig), job(rig, "b"))
    before = rig.series("one", "b")
    (second,) = run(engine(rig), job(rig, "b"))
    assert first.result is not None
    assert second.result is not None
    assert (second.result.campaign, second.result.samples) == (first.result.campaign, first.result.samples)
    elsewhere = Workspace(rig.root / "elsewhere")
    (third,) = run(DaskEngine(rig.scheduler, elsewhere), job(rig, "b"))
    assert third.result is not None
    assert third.result.campaign == 1
    assert [place[1:] for place in rig.series("elsewhere", "b")] == [place[1:] for place in before]
    assert rig.series("one", "b") == before


def test_a_job_without_a_name_is_measured_anew_once_it_is_done(rig: Lab) -> None:
    """Equal requests without a name share one until it is complete here; the next one is a new job."""
    unnamed = replace(job(rig, ""), seed=3)
    (first,), (second,) = run(engine(rig), unnamed), run(engine(rig), unnamed)
    assert first.request == second.request == unnamed
    assert first.result is not None
    assert second.result is not None
    with Journal(rig.workspace(MAIN).journal) as journal:
        one, two = (journal.campaign(found.campaign) for found in (first.result, second.result))
    assert one.settings["job"].rpartition("/")[0] == two.settings["job"].rpartition("/")[0]
    assert (one.settings["job"][-2:], two.settings["job"][-2:]) == ("/0", "/1")


def test_a_device_that_nobody_offers_fails_alone(rig: Lab) -> None:
    """A job for a device that no worker offers fails after a bounded wait; jobs for other devices succeed."""
    outcomes = run(engine(rig, absent_s=1.0), job(rig, "c/lost", "lost"), job(rig, "c/left"))
    found = {outcome.request.name: outcome for outcome in outcomes}
    assert found["c/left"].failure is None
    failure = found["c/lost"].failure
    assert failure is not None
    assert (failure.kind, failure.retry_helps) == ("EngineError", True)
    assert "both, left, right" in failure.why
    assert f"harness worker {rig.scheduler} --device lost" in failure.next_step


def test_a_device_that_is_too_slow_gets_no_other_job(rig: Lab) -> None:
    """A worker keeps to the time limit of a job; the next one for the same device is not sent, one for another is."""
    hasty = RepeatPolicy(runs=2, wall_s=1e-3)
    outcomes = run(engine(rig), job(rig, "slow/1", policy=hasty), job(rig, "slow/2"), job(rig, "slow/3", "right"))
    first, second, third = sorted(outcomes, key=lambda one: one.request.name)
    assert [one.failure and one.failure.kind for one in (first, second, third)] == ["DeviceTooSlow"] * 2 + [None]
    assert (first.attempts, second.attempts) == (1, 0) and not rig.series("one", "slow/2")


def test_a_killed_worker_neither_loses_nor_doubles(rig: Lab) -> None:
    """A worker killed in the middle is restarted and continues the job from its journal, each slot once."""
    running = Running(engine(rig), job(rig, "d", policy=LONG))
    wait_until(lambda: len(rig.series("one", "d")) > SOME, "the middle of the job")
    os.kill(rig.child("one"), signal.SIGKILL)
    before = len(rig.series("one", "d"))
    (outcome,) = running.end()
    assert outcome.failure is None
    assert outcome.result is not None
    assert outcome.result.resumed
    assert len(rig.series("one", "d")) > before
    check_once(rig, "one", "d", LONG_RUNS)


def test_a_stop_frees_the_board_and_a_second_run_goes_on(rig: Lab) -> None:
    """Stopped jobs are reported as interrupted, free their boards, and continue later without measuring twice."""
    jobs = (job(rig, "e/1", policy=LONG), job(rig, "e/2", policy=LONG))
    running = Running(engine(rig), *jobs)
    wait_until(lambda: len(rig.series("one", "e/1")) > SOME, "the middle of the job")
    running.stop.set()
    kinds = [outcome.failure.kind for outcome in running.end() if outcome.failure]
    assert kinds == ["Interrupted", "Interrupted"]
    wait_until(lambda: is_free(rig, "one", "left"), "a free board")
    held = len(rig.series("one", "e/1"))
    assert rig.series("one", "e/2") == []
    (outcome,) = run(engine(rig), jobs[0])
    assert outcome.result is not None
    assert outcome.result.resumed
    assert len(rig.series("one", "e/1")) > held
    check_once(rig, "one", "e/1", LONG_RUNS)


def test_a_job_that_two_workers_run_at_once_counts_once(rig: Lab) -> None:
    """Two workers that run the same job take turns by the lease; one campaign counts, and both return it."""
    import distributed

    library: Any = distributed
    wanted = job(rig, "f", "both", RepeatPolicy(runs=20))
    sent = detach_models(wanted)
    payload = pack(WorkerJob(sent.request, WaitPolicy(pause_s=0.2)), sent.files)
    path = rig.workspace(MAIN).journal
    with library.Client(rig.scheduler, set_as_default=False) as client:
        workers = [
            address
            for address, facts in client.scheduler_info(n_workers=-1)["workers"].items()
            if resource_of("both") in facts["resources"]
        ]
        assert len(workers) == 2
        futures = [
            client.submit(
                run_task, payload, key=f"f {at}", workers=[at], resources={resource_of("both"): 1}, pure=False
            )
            for at in workers
        ]
        replies = [future.result(timeout=600) for future in futures]
        with Journal(path) as journal:
            for _ in range(2):
                named = [set(merge(journal, reply["extract"], job="f", device="both").values()) for reply in replies]
            found = [one for one in journal.campaigns("both") if one.settings.get("job") == "f"]
            assert [(one.complete, one.excluded) for one in found] == [(True, None), (True, SECOND)]
            assert named == [{found[0].id}] * 2
    here = rig.series(MAIN, "f")
    for host in ("one", "two"):
        own = [place[1:] for place in rig.series(host, "f")]
        assert own in [[place[1:] for place in here if place[0] == one.id] for one in found]
    query = (
        "SELECT min(taken), max(taken) FROM series JOIN campaigns ON campaigns.id=campaign"
        " WHERE json_extract(settings, '$.job')='f'"
    )
    times = []
    for host in ("one", "two"):
        with contextlib.closing(sqlite3.connect(rig.workspace(host).journal)) as db:
            times.append(db.execute(query).fetchone())
    (_, ended), (began, _) = sorted(times)
    assert ended <= began, "both were on the device at once"


def test_what_the_controller_excludes_is_measured_anew(rig: Lab) -> None:
    """A job whose campaign was excluded here starts anew on the worker that considers it good."""
    (first,) = run(engine(rig), job(rig, "l"))
    assert first.result is not None
    with Journal(rig.workspace(MAIN).journal) as journal:
        journal.exclude(first.result.campaign, journal.campaign(first.result.campaign).token, "quarantine of the night")
        (second,) = run(engine(rig), job(rig, "l"))
        assert second.result is not None
        assert second.result.campaign != first.result.campaign
        assert journal.campaign(second.result.campaign).excluded is None
        assert journal.campaign(first.result.campaign).excluded == "quarantine of the night"
    assert len({campaign for campaign, *_ in rig.series("one", "l")}) == 2


def alter(db: sqlite3.Connection, name: str) -> None:
    """Change one sample of a job, as a bad disk does."""
    job = "SELECT id FROM campaigns WHERE json_extract(settings, '$.job')=?"
    series = f"SELECT min(id) FROM series WHERE campaign IN ({job})"
    assert db.execute(f"UPDATE samples SET wall_ns=wall_ns+1 WHERE series=({series})", (name,)).rowcount > 0


def test_what_was_altered_on_a_workers_disk_is_not_merged(rig: Lab) -> None:
    """A job whose campaign was altered on its worker fails with the next step there; excluded, it is measured anew."""
    (first,) = run(engine(rig), job(rig, "m"))
    assert first.result is not None
    with contextlib.closing(sqlite3.connect(rig.workspace("one").journal)) as db, db:
        alter(db, "m")
    (second,) = run(engine(rig), job(rig, "m"))
    assert second.failure is not None
    assert second.failure.what.startswith("On the host of the worker that offers left: ")
    assert "was altered on disk: campaign " in second.failure.what
    assert "harness journal check --exclude" in second.failure.next_step
    command = [sys.executable, "-m", "harness", "journal", "check", "--exclude", "--workspace", str(rig.root / "one")]
    assert "Excluded from tables" in subprocess.run(command, capture_output=True, text=True, timeout=600).stderr
    (third,) = run(engine(rig), job(rig, "m"))
    assert third.result is not None
    assert len({campaign for campaign, *_ in rig.series("one", "m")}) == 2
    with Journal(rig.workspace(MAIN).journal) as journal:
        assert {journal.check(one.id) for one in journal.of_job("m")} == {"intact"}


def test_a_job_whose_samples_were_altered_on_the_way_is_sent_again(rig: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """An altered extract is never merged; its worker sends it again, twice at most before the job fails."""
    left = iter(range(4))

    def merge_altered(journal: Journal, content: bytes, **named: Any) -> Any:
        if next(left, None) is not None:
            with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
                db.deserialize(content)
                alter(db, "n")
                content = db.serialize()
        return merge(journal, content, **named)

    monkeypatch.setattr("harness.fleet.cluster.dask_engine.merge", merge_altered)
    (outcome,) = run(engine(rig), job(rig, "n"))
    assert outcome.failure is not None
    assert outcome.failure.kind == "ExtractRefused"
    assert "is not what was measured there" in outcome.failure.why
    assert rig.series(MAIN, "n") == []
    (outcome,) = run(engine(rig), job(rig, "n"))
    assert outcome.result is not None
    assert next(left, None) is None
    assert [place[1:] for place in rig.series(MAIN, "n")] == [place[1:] for place in rig.series("one", "n")]


def test_a_watch_on_another_worker_keeps_the_probes_of_the_night_before(rig: Lab) -> None:
    """A job carries the newest watch, so a worker without it watches the same probes."""
    before = replace(job(rig, "2026-11-19/left/set"), watch_level=0.005)
    (first,) = run(engine(rig), before)
    journal_of = {host: rig.workspace(host).journal for host in ("one", MAIN)}
    with Journal(journal_of["one"]) as journal, journal.transaction() as db:  # it loses its memory
        db.execute("UPDATE campaigns SET settings=json_remove(settings, '$.job') WHERE settings LIKE '%2026-11-19%'")
    (second,) = run(engine(rig), replace(before, name="2026-11-20/left/set"))
    assert first.watch is not None
    assert second.watch is not None
    with Journal(journal_of["one"]) as journal:
        known = [one for one in journal.campaigns("left") if one.settings.get("job") == before.name]
        assert [one.settings["purpose"] for one in known] == ["watch"]
        with Journal(journal_of[MAIN]) as ours:
            assert journal.samples(known[0].id) == ours.samples(first.watch)
            watched = [{layer.in_context for layer in ours.layers(one)} for one in (first.watch, second.watch)]
    assert watched[0] == watched[1]


def test_a_worker_that_is_stopped_again_and_again_fails_its_job(rig: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is stopped repeatedly fails its job with an EngineError, and a rerun continues."""
    import distributed

    library: Any = distributed
    monkeypatch.setattr("harness.fleet.cluster.dask_engine._INTERRUPTIONS", 0)
    with library.Client(rig.scheduler, set_as_default=False) as client:
        running = Running(engine(rig), job(rig, "o", policy=LONG))
        wait_until(lambda: len(rig.series("one", "o")) > SOME, "the middle of the job")
        client.run(lambda dask_worker: dask_worker.plugins[PLUGIN].teardown(dask_worker))
    (outcome,) = running.end()
    assert outcome.failure is not None
    assert outcome.failure.kind == "EngineError"
    assert outcome.failure.what == "The worker that offers left was stopped repeatedly"
    (again,) = run(engine(rig), running.jobs[0])
    assert again.result is not None
    assert again.result.resumed


def test_another_version_of_harness_is_refused(rig: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that differs from the worker measures nothing, and names both versions."""
    for module in ("job_archive", "dask_engine"):
        monkeypatch.setattr(f"harness.fleet.cluster.{module}.VERSIONS", ("0.0.9", 3))
    (outcome,) = run(engine(rig), job(rig, "g"))
    assert outcome.failure is not None
    assert outcome.failure.kind == "EngineError"
    assert f"{VERSION}, journal {SCHEMA_VERSION}, requests {REQUEST_FORMAT} there; 0.0.9" in outcome.failure.why
    assert rig.series("one", "g") == []


def test_a_network_in_several_files_is_not_sent(rig: Lab, tmp_path: Path) -> None:
    """A network with external data, or a missing file, is refused before any worker is contacted."""
    path = tmp_path / "split.onnx"
    onnx.save(
        onnx.load(rig.root / "chain.onnx"), path, save_as_external_data=True, location="weights", size_threshold=0
    )
    jobs = [ProfileRequest("left", (str(one),), name=f"h/{one.name}") for one in (path, tmp_path / "missing.onnx")]
    failures = [outcome.failure for outcome in run(engine(rig), *jobs)]
    assert [failure and failure.kind for failure in failures] == ["UnsupportedNetwork", "InvalidNetwork"]
    assert failures[0] is not None
    assert "one file" in failures[0].next_step


def test_a_list_is_sent_without_the_networks_that_cannot_be(rig: Lab, tmp_path: Path) -> None:
    """A worker measures what is left; the outcome has the networks that were not sent and those refused there."""
    missing, open_size = tmp_path / "missing.onnx", tmp_path / "open.onnx"
    model = onnx.load(rig.root / "chain.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(model, open_size)
    models = tuple(map(str, (missing, rig.root / "chain.onnx", open_size)))
    request = ProfileRequest("left", models, policy=RepeatPolicy(runs=3), name="k/1")
    (outcome,) = run(engine(rig), request)
    assert outcome.failure is None and outcome.result is not None
    refused = outcome.result.refused_networks
    assert [(one.file, one.kind) for one in refused] == [
        (str(missing), "InvalidNetwork"),
        (str(open_size), "UnresolvedDimension"),
    ]
    assert all(one.what.startswith(one.file) for one in refused)
    (outcome,) = run(engine(rig), replace(request, models=(models[0], models[2]), name="k/2"))
    assert outcome.failure is not None and outcome.failure.kind == "NetworksRefused"
    assert [line.split()[0].rstrip(":") for line in outcome.failure.why.splitlines()] == [models[0], models[2]]


def test_no_listener_of_a_worker_is_open_to_other_hosts(rig: Lab) -> None:
    """With a scheduler on the loopback interface, a worker and its children listen only there."""
    nanny = psutil.Process(rig.processes["one"].pid)
    listening = [
        connection.laddr.ip
        for process in (nanny, *nanny.children(recursive=True))
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert set(listening) == {"127.0.0.1"}


def test_a_lost_scheduler_is_reported_and_the_rerun_completes(rig: Lab) -> None:
    """If the scheduler is killed, the error says to run again, boards become free, and a rerun measures the rest."""
    (done,) = run(engine(rig), job(rig, "i/done"))
    running = Running(engine(rig), job(rig, "i/cut", policy=LONG))
    wait_until(lambda: len(rig.series("one", "i/cut")) > SOME, "the middle of the job")
    rig.end("scheduler", signal.SIGKILL)
    assert running.end() == []
    assert running.error is not None
    assert running.error.retry_helps
    assert "Run the same command again" in running.error.next_step
    codes = [rig.processes.pop(host).wait(300) for host in ("one", "two")]
    assert codes == [4, 4]
    assert "is gone" in rig.log("one")
    wait_until(lambda: is_free(rig, "one", "left"), "a free board")
    held = {name: rig.series("one", name) for name in ("i/done", "i/cut")}

    rig.start_scheduler()
    rig.start_workers()
    again = {one.request.name: one for one in run(engine(rig), job(rig, "i/done"), job(rig, "i/cut", policy=LONG))}
    cut = again["i/cut"].result
    assert cut is not None and cut.resumed
    assert again["i/done"].result is not None and done.result is not None
    assert again["i/done"].result.campaign == done.result.campaign
    assert rig.series("one", "i/done") == held["i/done"]
    assert len(rig.series("one", "i/cut")) > len(held["i/cut"])
    check_once(rig, "one", "i/cut", LONG_RUNS)
