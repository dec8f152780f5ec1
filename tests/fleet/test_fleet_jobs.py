"""Several devices side by side: one request per board, golden probes, quarantine, retries."""

import os
import signal
import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from nullbench import Bench, StopAfter
from processes import workers

from harness.device.inventory import load_inventory
from harness.device.session import open_session
from harness.errors import CampaignIncomplete, JournalError, UnknownDevice, UsageError
from harness.fleet.device_selection import select
from harness.fleet.execution import NO_WAIT, WaitPolicy, run_request
from harness.fleet.health import SESSIONS_TO_LEARN, TOLERANCE, learn_band
from harness.fleet.local_engine import LocalEngine
from harness.fleet.profile_outcome import ProfileOutcome
from harness.fleet.store import DeviceHealth, FleetStore
from harness.measure import calls
from harness.measure.journal.journal import Journal
from harness.measure.policy import RepeatPolicy
from harness.measure.progress import Progress
from harness.measure.request import ProfileRequest
from harness.network.network_list import NetworkList, read_networks

FOUR = RepeatPolicy(runs=4)
QUICK = WaitPolicy(attempts=3, pause_s=0.05, busy_s=300.0)


def write_devices(bench: Bench, devices: Mapping[str, str]) -> None:
    """Write null devices by name, each with further lines of its table."""
    text = "".join(f'[devices.{name}]\nbackend = "null"\n{lines}\n' for name, lines in devices.items())
    bench.workspace.devices.write_text(text)


def job(bench: Bench, device: str, **changes: object) -> ProfileRequest:
    """Return a request for a short campaign on the small network."""
    return ProfileRequest(device=device, **{"models": (str(bench.model),), "policy": FOUR, **changes})  # type: ignore[arg-type]


def run(bench: Bench, jobs: Sequence[ProfileRequest], stop: threading.Event | None = None) -> list[ProfileOutcome]:
    """Run requests on this host and return their outcomes."""
    return list(LocalEngine(bench.workspace, QUICK).run(jobs, stop or threading.Event()))


def run_one(bench: Bench, wanted: ProfileRequest) -> ProfileOutcome:
    """Run one request and return its outcome."""
    return run_request(wanted, bench.workspace, stop=threading.Event(), wait=NO_WAIT)


def health(bench: Bench, device: str) -> DeviceHealth:
    """Return the recorded health of a device."""
    with FleetStore(bench.workspace.fleet) as store:
        return store.health(device)


def profiles(bench: Bench, device: str) -> list[tuple[bool, bool]]:
    """Return whether each profile campaign of a device is complete, and whether it is excluded."""
    with Journal(bench.workspace.journal) as journal:
        found = [one for one in journal.campaigns(device) if one.settings["purpose"] == "profile"]
    return [(one.complete, one.excluded is not None) for one in found]


# Selection -------------------------------------------------------------------------------------------------------


def test_devices_are_chosen_by_name_by_group_and_all_each_once(bench: Bench) -> None:
    """Devices are selected by name, then by group, then all of devices.toml, each once."""
    write_devices(bench, {"a": 'groups = ["x"]', "b": 'groups = ["x", "y"]', "c": ""})
    inventory = load_inventory(bench.workspace.devices)
    chosen = {
        ("b",): select(inventory, names=["b"]),
        ("c", "a", "b"): select(inventory, names=["c"], groups=["x"]),
        ("b", "a"): select(inventory, groups=["y", "x"]),
        ("a", "b", "c"): select(inventory, everything=True),
    }
    assert {wanted: tuple(device.name for device in found) for wanted, found in chosen.items()} == {
        wanted: wanted for wanted in chosen
    }


def test_all_are_the_built_in_devices_where_none_is_listed() -> None:
    """Without devices.toml, `all` selects the built-in devices."""
    assert {device.name for device in select(load_inventory(None), everything=True)} >= {"npu01", "cpu01", "null01"}


def test_a_group_that_nobody_is_in_is_refused_with_those_that_exist(bench: Bench) -> None:
    """The error for an unknown group lists the known ones; an empty selection is a usage error."""
    write_devices(bench, {"a": 'groups = ["edge"]'})
    inventory = load_inventory(bench.workspace.devices)
    with pytest.raises(UnknownDevice, match="edge"):
        select(inventory, groups=["egde"])
    with pytest.raises(UsageError):
        select(inventory)


# Side by side ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("devices_in_process")
def test_each_device_gets_its_campaign_and_a_broken_one_stops_no_other(bench: Bench) -> None:
    """If one of four devices fails, the others are measured, and its outcome holds the failure."""
    write_devices(bench, {"a": "", "b": "", "broken": "options = { colour = 3 }", "c": ""})
    outcomes = {one.request.device: one for one in run(bench, [job(bench, name) for name in ("a", "b", "broken", "c")])}
    assert {name for name, one in outcomes.items() if one.result is not None} == {"a", "b", "c"}
    failure = outcomes["broken"].failure
    assert failure is not None and (failure.kind, failure.exit_code) == ("BackendError", 4)
    assert all(profiles(bench, name) == [(True, False)] for name in ("a", "b", "c"))


@pytest.mark.usefixtures("devices_in_process")
def test_networks_are_read_once_for_all_devices_and_attempts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests for the same networks share one reading, each with its lines; another batch is read on its own.

    The caller's thread reads, before there are others: it may fork.
    """
    write_devices(bench, {**dict.fromkeys(("a", "b"), ""), "other": "", "broken": "options = { colour = 3 }"})
    read: list[int | None] = []
    readers = set()

    def counted(*given: Any, **named: Any) -> NetworkList:
        read.append(named["batch"])
        readers.add(threading.current_thread())
        return read_networks(*given, **named)

    monkeypatch.setattr(calls, "read_networks", counted)
    notes: dict[str, list[str]] = {}

    def observer(wanted: ProfileRequest) -> Callable[[Progress], None]:
        heard = notes.setdefault(wanted.device, [])
        return lambda progress: heard.append(progress.note) if progress.note else None

    models = (str(bench.model), str(bench.workspace.root / "missing.onnx"))
    jobs = [job(bench, name, models=models) for name in ("a", "b", "broken")]
    jobs.append(job(bench, "other", models=models, batch=2))
    outcomes = list(LocalEngine(bench.workspace, QUICK, observer=observer).run(jobs, threading.Event()))
    assert sum(one.result is not None for one in outcomes) == 3
    assert sorted(read, key=str) == [2, None] and readers == {threading.current_thread()}
    assert all("missing.onnx" in lines[0] for lines in notes.values()) and len(notes) == 4


def test_a_refusal_is_noted_once_however_long_the_device_is_busy(bench: Bench) -> None:
    """Each attempt to reach a busy device passes over the networks again; its lines come once."""
    write_devices(bench, {"a": "exclusive = true"})
    holder = open_session(load_inventory(bench.workspace.devices)["a"])
    holder.acquire()
    notes: list[str] = []
    attempts = 0

    def observe(progress: Progress) -> None:
        nonlocal attempts
        notes.extend(filter(None, [progress.note]))
        attempts += progress.stage == "opening the device"
        if attempts == 4:
            holder.close()

    wanted = job(bench, "a", models=(str(bench.model), str(bench.workspace.root / "missing.onnx")))
    outcome = run_request(wanted, bench.workspace, stop=threading.Event(), wait=QUICK, observe=observe)
    assert outcome.result is not None and attempts >= 4
    assert sum("refused: " in line for line in notes) == 1
    assert sum("waiting for up to" in line for line in notes) == 1


def test_devices_of_one_board_are_never_measured_at_once(bench: Bench) -> None:
    """Devices that occupy the same resource take turns; none of them finds the board busy."""
    write_devices(bench, dict.fromkeys(("a", "b", "c"), 'resource = "shelf"'))
    engine = LocalEngine(bench.workspace, NO_WAIT)
    outcomes = list(engine.run([job(bench, name) for name in ("a", "b", "c")], threading.Event()))
    assert all(one.result is not None and one.attempts == 1 for one in outcomes)


@pytest.mark.usefixtures("devices_in_process")
def test_a_job_of_one_name_is_one_campaign(bench: Bench) -> None:
    """A named job that is done is not measured again, a stopped one continues, and another name is a new job."""
    named = job(bench, "bench", name="night/bench/set")
    stopped = run_request(named, bench.workspace, stop=StopAfter(120))
    assert stopped.failure is not None and stopped.failure.kind == "Interrupted"
    first, again = run_one(bench, named), run_one(bench, named)
    assert first.result is not None and again.result is not None
    assert (again.result.campaign, again.result.samples) == (first.result.campaign, first.result.samples)
    assert profiles(bench, "bench") == [(True, False)]
    assert run_one(bench, job(bench, "bench", name="other")).result is not None
    assert len(profiles(bench, "bench")) == 2


def test_a_killed_worker_is_retried_without_measuring_twice(bench: Bench, tmp_path: Path, runtime_folder: Path) -> None:
    """A job whose worker is killed ends with all its samples after two attempts, each slot once."""
    undisturbed = Bench(tmp_path / "undisturbed")
    wanted = run_one(undisturbed, job(undisturbed, "bench"))
    killed: list[int] = []

    def kill_once(progress: Progress) -> None:
        if progress.stage == "measuring" and progress.round >= 2 and not killed:
            killed.extend(workers(runtime_folder))
            os.kill(killed[0], signal.SIGKILL)

    outcome = run_request(job(bench, "bench"), bench.workspace, stop=threading.Event(), wait=QUICK, observe=kill_once)
    assert len(killed) == 1 and outcome.attempts == 2
    assert outcome.result is not None and wanted.result is not None
    assert outcome.result.samples == wanted.result.samples
    with Journal(bench.workspace.journal) as journal, Journal(undisturbed.workspace.journal) as other:
        sizes = [
            {probe: len(taken) for probe, taken in one.samples(result.campaign).items()}
            for one, result in ((journal, outcome.result), (other, wanted.result))
        ]
    assert sizes[0] == sizes[1]


@pytest.mark.usefixtures("devices_in_process")
def test_closing_the_iterator_stops_the_requests(bench: Bench) -> None:
    """If the caller closes the iterator, the requests end and all devices become free."""
    names = [f"d{number}" for number in range(4)]
    write_devices(bench, dict.fromkeys(names, ""))
    running = LocalEngine(bench.workspace, QUICK, width=1).run([job(bench, name) for name in names], threading.Event())
    next(running)
    running.close()
    assert all(not thread.name.startswith("requests ") for thread in threading.enumerate())
    assert all(run_one(bench, job(bench, name)).result is not None for name in names)


def test_stop_ends_all_requests_and_each_has_its_outcome(bench: Bench) -> None:
    """A stop before the start interrupts every request, and nothing is measured."""
    write_devices(bench, {"a": "", "b": ""})
    stop = threading.Event()
    stop.set()
    outcomes = run(bench, [job(bench, "a"), job(bench, "b")], stop)
    assert [one.failure.kind for one in outcomes if one.failure] == ["Interrupted"] * 2


# Golden probes ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("devices_in_process")
def test_a_device_is_unknown_until_its_band_is_established(bench: Bench) -> None:
    """A device is unknown during the sessions that establish its band, and good after them."""
    seen = []
    for number in range(SESSIONS_TO_LEARN + 1):
        assert run_one(bench, job(bench, "bench", seed=number)).golden_s is not None
        seen.append(health(bench, "bench").health)
    assert seen == ["unknown"] * (SESSIONS_TO_LEARN - 1) + ["good"] * 2


@pytest.mark.usefixtures("devices_in_process")
def test_device_outside_its_band_is_quarantined_and_measures_nothing(bench: Bench) -> None:
    """A device slower by a third starts no campaign and exits with 5; back in its band, it is good again."""
    for number in range(SESSIONS_TO_LEARN):
        run_one(bench, job(bench, "bench", seed=number))
    before, was = profiles(bench, "bench"), bench.truth
    slower = bench.workspace.devices.read_text() + "slower_after = 0\nslowdown = 1.33\n"
    bench.workspace.devices.write_text(slower)
    outcome = run_one(bench, job(bench, "bench", seed=9))
    assert outcome.failure is not None and outcome.failure.exit_code == 5
    assert outcome.failure.kind == "DeviceQuarantined" and "slower than its band" in outcome.failure.why
    assert profiles(bench, "bench") == before
    assert health(bench, "bench").health == "bad"
    bench.set_device(was)
    assert run_one(bench, job(bench, "bench", seed=9)).result is not None
    assert health(bench, "bench").health == "good"


@pytest.mark.usefixtures("devices_in_process")
def test_campaign_during_which_a_device_changed_enters_no_table(bench: Bench) -> None:
    """If a device slows down during a campaign, the golden probe after it excludes the campaign."""
    bench.workspace.devices.write_text(bench.workspace.devices.read_text() + "slower_after = 200\nslowdown = 1.5\n")
    outcome = run_one(bench, job(bench, "bench"))
    assert outcome.failure is not None and outcome.failure.kind == "DeviceQuarantined"
    assert profiles(bench, "bench") == [(True, True)]
    with pytest.raises(CampaignIncomplete, match="usable for a table"):
        bench.build()
    bench.set_device()
    assert run_one(bench, job(bench, "bench")).result is not None
    assert profiles(bench, "bench") == [(True, True), (True, False)]
    notes: list[str] = []
    assert bench.build(note=notes.append).entries
    assert any("golden probe" in note for note in notes)


@pytest.mark.usefixtures("devices_in_process")
def test_campaign_that_was_killed_before_its_golden_probe_waits_for_the_next_session(bench: Bench) -> None:
    """A campaign killed before its second golden probe enters no table until the same job runs again."""

    class Killed(BaseException):
        pass

    wanted = job(bench, "bench", name="night/bench/set", watch_level=0.005)
    with pytest.raises(Killed):
        run_request(wanted, bench.workspace, stop=KilledLate(bench, Killed), wait=NO_WAIT)
    assert profiles(bench, "bench") == [(True, True)]
    with pytest.raises(CampaignIncomplete, match="usable for a table"):
        bench.build()
    assert run_one(bench, wanted).result is not None
    assert profiles(bench, "bench") == [(True, False)]
    assert bench.build().entries


class KilledLate(threading.Event):
    """A stop event that raises an exception once a campaign of the bench is complete."""

    def __init__(self, bench: Bench, killed: type[BaseException]) -> None:
        super().__init__()
        self.bench, self.killed = bench, killed

    def is_set(self) -> bool:
        """Return False, or raise."""
        if any(complete for complete, _ in profiles(self.bench, "bench")):
            raise self.killed
        return False


@pytest.mark.usefixtures("devices_in_process")
def test_configured_band_counts_from_the_first_session(bench: Bench) -> None:
    """A band in devices.toml applies from the first session."""
    write_devices(bench, {"slow": "golden_ms = [0.001, 0.002]", "fit": "golden_ms = [0.1, 10.0]"})
    slow, fit = (run_one(bench, job(bench, name)) for name in ("slow", "fit"))
    assert slow.failure is not None and slow.failure.kind == "DeviceQuarantined"
    assert fit.result is not None
    assert (health(bench, "slow").health, health(bench, "fit").health) == ("bad", "good")


@pytest.mark.parametrize("word", ["maintenance", "retired"])
def test_device_out_of_service_is_left_alone(bench: Bench, word: str) -> None:
    """A device out of service is not contacted, keeps its health, and the failure gives the reason."""
    with FleetStore(bench.workspace.fleet) as store:
        store.mark("bench", word, "new heat sink")  # type: ignore[arg-type]
    outcome = run_one(bench, job(bench, "bench"))
    assert outcome.failure is not None and (outcome.failure.kind, outcome.failure.exit_code) == ("OutOfService", 4)
    assert "new heat sink" in outcome.failure.why
    assert health(bench, "bench").health == word


@pytest.mark.usefixtures("devices_in_process")
def test_maintenance_set_during_a_job_stands(bench: Bench) -> None:
    """A device put into maintenance during a campaign stays there, whatever its golden probe shows."""

    def take_out(progress: Progress) -> None:
        if progress.stage == "measuring":
            with FleetStore(bench.workspace.fleet) as store:
                store.mark("bench", "maintenance", "somebody has come by")

    outcome = run_request(job(bench, "bench"), bench.workspace, stop=threading.Event(), wait=NO_WAIT, observe=take_out)
    assert outcome.result is not None
    assert health(bench, "bench").health == "maintenance"


def test_a_retried_fresh_request_continues_its_own_campaign(bench: Bench, runtime_folder: Path) -> None:
    """`fresh` starts one new campaign, not one per attempt."""
    run_one(bench, job(bench, "bench"))
    killed: list[int] = []

    def kill_once(progress: Progress) -> None:
        if progress.stage == "measuring" and progress.round >= 2 and not killed:
            killed.extend(workers(runtime_folder))
            os.kill(killed[0], signal.SIGKILL)

    outcome = run_request(
        job(bench, "bench", fresh=True), bench.workspace, stop=threading.Event(), wait=QUICK, observe=kill_once
    )
    assert outcome.attempts == 2
    assert profiles(bench, "bench") == [(True, False), (True, False)]


@pytest.mark.usefixtures("devices_in_process")
def test_a_damaged_store_is_reported(bench: Bench) -> None:
    """A damaged store, or a file that is not one, raises an error with a next step."""
    run_one(bench, job(bench, "bench"))
    content = bytearray(bench.workspace.fleet.read_bytes())
    content[4096:] = b"\xff" * len(content[4096:])
    bench.workspace.fleet.write_bytes(content)
    with pytest.raises(JournalError), FleetStore(bench.workspace.fleet) as store:
        store.history("bench")


@pytest.mark.usefixtures("devices_in_process")
def test_a_failed_connection_makes_a_device_unknown(bench: Bench) -> None:
    """A failure before the golden probe makes the health of a device unknown, never good or bad."""
    for number in range(SESSIONS_TO_LEARN + 1):
        run_one(bench, job(bench, "bench", seed=number))
    assert health(bench, "bench").health == "good"
    bench.workspace.devices.write_text('[devices.bench]\nbackend = "null"\noptions = { colour = 3 }\n')
    assert run_one(bench, job(bench, "bench")).failure is not None
    assert health(bench, "bench").health == "unknown"


latencies = st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=SESSIONS_TO_LEARN).map(tuple)


@given(latencies, st.sampled_from(sorted(TOLERANCE)))
def test_a_band_holds_the_sessions_it_was_computed_from(latencies_s: tuple[float, ...], clock: str) -> None:
    """A band contains every session it was computed from, and the clock's tolerance around their median."""
    band = learn_band(latencies_s, clock)
    centre_s = statistics.median(latencies_s)
    assert all(band.holds(one) for one in latencies_s)
    assert band.low_s <= centre_s / (1 + TOLERANCE[clock]) * (1 + 1e-9)
    assert band.high_s >= centre_s * (1 + TOLERANCE[clock]) * (1 - 1e-9)


@given(st.floats(1e-6, 10.0), st.sampled_from(sorted(TOLERANCE)))
def test_band_of_one_session_is_wider_than_that_of_all(latency_s: float, clock: str) -> None:
    """The band of one session is wider than that of three equal ones."""
    first, last = learn_band((latency_s,), clock), learn_band((latency_s,) * SESSIONS_TO_LEARN, clock)
    assert first.low_s < last.low_s < last.high_s < first.high_s
