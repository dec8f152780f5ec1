"""The verdict on the machine: from recorded states, drift and spread between processes, and under real load."""

import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping

import numpy as np
import pytest
from hypothesis import given, strategies as st

from device_agents.fingerprint import hardware, processor_times, state
from harness.measure.noise.machine_noise import (
    MOST_SPREAD,
    MOST_STEAL,
    MOST_WAITING,
    MachineLoad,
    MachineNoise,
    Spreads,
    between_most_processes,
    between_processes,
    busy_before,
    judge,
    load_of,
)

CORES = 4
FACTS = {"cores": str(CORES), "threads": "1", "runtime": "onnxruntime"}
SHARES = st.floats(0.0, 0.99)
BURNERS = 2 * (os.cpu_count() or 1) + 1


def recorded(
    steps: int = 10, *, own: float = 1.0, others: float = 0.0, steal: float = 0.0, runnable: int = 1, process: int = 7
) -> list[dict[str, float]]:
    """Return states a second apart: cores in use by the worker and by others, the share stolen, runnable tasks."""
    return [
        {
            "cpu_total_s": 1000.0 + CORES * second,
            "cpu_busy_s": 300.0 + (own + others) * second,
            "cpu_steal_s": 5.0 + steal * CORES * second,
            "own_cpu_s": own * second,
            "runnable": runnable,
            "process": process,
        }
        for second in range(steps)
    ]


def judged(
    states: list[dict[str, float]] | None = None,
    *,
    drift: float | None = None,
    between: float | None = None,
    clock: str = "cpu",
    facts: Mapping[str, str] = FACTS,
) -> MachineNoise:
    """Return the verdict on a machine with these states."""
    return judge(load_of(recorded() if states is None else states, facts), facts, clock, Spreads(between, drift))


@given(st.floats(0.0, 0.2), st.floats(0.0, 0.99 * MOST_STEAL), st.floats(0, 0.99 * MOST_SPREAD))
def test_a_machine_with_little_else_to_do_is_quiet(others: float, steal: float, spread: float) -> None:
    """A fifth of a core, two percent of stolen time and five percent of spread are no noise."""
    found = judged(recorded(others=others, steal=steal), drift=spread, between=spread)
    assert (found.verdict, found.text, found.reasons) == ("quiet", "quiet", ())
    assert found.resolution == spread


@given(st.floats(1.05 * MOST_STEAL, 0.7))
def test_stolen_time_is_noise(steal: float) -> None:
    """More than two percent of the processor time for other guests is noise, with the measured share."""
    found = judged(recorded(steal=steal))
    assert found.verdict == "noisy" and "the hypervisor took" in found.text
    assert found.load.steal == pytest.approx(steal)


@given(st.floats(1.5, 2.9))
def test_other_programs_are_noise(others: float) -> None:
    """More than a third of the cores in use by others is noise; the worker's own core does not count."""
    found = judged(recorded(others=others))
    assert found.verdict == "noisy" and f"other programs used {others:.1f} of 4 cores" in found.text
    assert judged(recorded(own=1.0)).load.other_cores == pytest.approx(0.0)


@given(st.integers(CORES + 1, 60))
def test_a_long_run_queue_is_noise(runnable: int) -> None:
    """More tasks than cores are noise, and are named with their number."""
    found = judged(recorded(runnable=runnable, others=CORES - 1.0))
    assert found.verdict == "noisy" and f"{runnable:.1f} tasks shared 4 cores" in found.text


@given(st.integers(2, CORES), st.floats(0.0, 1.9))
def test_several_threads_need_their_cores(threads: int, others: float) -> None:
    """What other programs use of more than the cores without a thread is noise; one thread tolerates more."""
    facts = {**FACTS, "settings": f"threads={threads},pool=shared"}
    found = judged(recorded(others=others), clock="wall", facts=facts)
    if abs(others - max(0.25, CORES - threads)) > 0.01 and others < 1.3:
        assert (found.verdict == "noisy") == (others > max(0.25, CORES - threads))


@given(st.integers(1, CORES), st.integers(CORES + 1, 60))
def test_a_steady_load_hides_differences_of_several_threads(threads: int, runnable: int) -> None:
    """Differences below the share of the cores that other tasks want too much are hidden; one thread loses nothing."""
    facts = {**FACTS, "settings": f"threads={threads},pool=shared"}
    found = judged(recorded(runnable=runnable), clock="wall", facts=facts, drift=0.01)
    assert found.resolution == pytest.approx(max(0.01, (runnable - CORES - MOST_WAITING) / CORES * (threads > 1)))


def test_more_threads_than_cores_share_them() -> None:
    """Three threads of a process that may use one core are noise, although such a process counts no tasks."""
    states = [{name: fact for name, fact in state.items() if name != "runnable"} for state in recorded()]
    facts = {"cores": "1", "settings": "threads=3,pool=shared"}
    assert "3.0 tasks shared 1 cores" in judged(states, clock="wall", facts=facts).text


@given(SHARES.filter(lambda one: one > 1.01 * MOST_SPREAD), SHARES)
def test_smaller_differences_than_the_larger_spread_are_not_significant(between: float, drift: float) -> None:
    """The resolution is the larger of spread and drift, and the text names it."""
    found = judged(drift=drift, between=between)
    assert found.verdict == "noisy" and found.resolution == max(between, drift)
    assert "between processes" in found.text and found.text.endswith("are not significant")


@given(SHARES, SHARES)
def test_whole_networks_in_several_processes_contain_the_drift(between: float, drift: float) -> None:
    """Where networks were measured in several processes, their spread is the resolution, and drift only a reason."""
    found = judge(MachineLoad(), FACTS, "cpu", Spreads(between, drift), of_networks=True)
    assert found.resolution == between
    assert (found.verdict == "noisy") == (max(between, drift) > MOST_SPREAD)
    assert judge(MachineLoad(), FACTS, "cpu", Spreads(None, drift), of_networks=True).resolution == drift


def test_the_sentence_about_a_spread_alone() -> None:
    """A spread of 34 % and nothing else reads as the documentation says."""
    assert judged(between=0.34).text == "noisy: 34% between processes; differences below that are not significant"


@given(st.floats(1.02 * MOST_SPREAD, 0.9))
def test_runs_that_scatter_are_noise(scatter: float) -> None:
    """Runs of one process that differ are noise; a median of many is surer, so they do not widen the resolution."""
    found = judge(MachineLoad(), FACTS, "cpu", Spreads(0.01, 0.02, scatter))
    assert found.verdict == "noisy" and "scatter of the reference probe" in found.text
    assert found.resolution == 0.02


@given(st.floats(-0.9, 3.0).filter(lambda one: abs(one) > 1.02 * MOST_SPREAD), st.booleans())
def test_a_machine_of_another_speed_than_the_tables_is_noisy(change: float, of_networks: bool) -> None:
    """The resolution is the change of speed since the table was measured, in either direction."""
    found = judge(MachineLoad(), FACTS, "cpu", Spreads(0.01, since_table=change), of_networks=of_networks)
    assert found.verdict == "noisy" and found.resolution == abs(change)
    assert ("slower" if change > 0 else "faster") + " than when the table was measured" in found.text


@given(st.lists(st.tuples(st.integers(2, 6), st.floats(0, 3), st.floats(0, 0.5)), min_size=1, max_size=5))
def test_pauses_between_processes_do_not_count(parts: list[tuple[int, float, float]]) -> None:
    """What the machine does while no process measures is in no figure, whatever counters jump."""
    states = [
        {name: value + 1e4 * at if name.startswith("cpu") else value for name, value in one.items()}
        for at, (steps, others, steal) in enumerate(parts)
        for one in recorded(steps, others=others, steal=steal, process=at)
    ]
    seconds = [steps - 1 for steps, _, _ in parts]
    expected = sum(others * one for one, (_, others, _) in zip(seconds, parts, strict=True)) / sum(seconds)
    found = load_of(states, FACTS)
    assert found.other_cores == pytest.approx(expected, abs=1e-6)


@given(st.sampled_from(["cpu_total_s", "cpu_busy_s", "cpu_steal_s", "runnable", "process", "own_cpu_s"]), st.data())
def test_any_states_give_a_verdict(missing: str, data: st.DataObject) -> None:
    """States of other agents, with facts missing or absurd, raise nothing and give a verdict in one line."""
    numbers = st.dictionaries(st.sampled_from(sorted(recorded()[0])), st.floats(-1e300, 1e300), max_size=6)
    states = data.draw(st.lists(numbers, max_size=6))
    partly = [{name: value for name, value in one.items() if name != missing} for one in recorded()]
    for chosen in (states, partly, [*states, *partly]):
        found = judged(chosen)
        assert found.verdict in ("quiet", "noisy", "not known") and "\n" not in found.text


def test_what_a_device_does_not_report_is_not_known() -> None:
    """Without /proc, without drift and with one process, nothing is known, and that is said."""
    assert judged([]).verdict == "not known" and "reports no load" in judged([]).text
    assert judged([], drift=0.01).verdict == "quiet"
    assert load_of(recorded(), {**FACTS, "cores": "many"}) == MachineLoad()


def test_the_host_does_not_disturb_a_clock_of_the_device() -> None:
    """An emulated device is quiet by construction; of another one with its own clock only the spread counts."""
    busy = recorded(others=3.0, steal=0.3, runnable=30)
    emulated = {**FACTS, "runtime": "emulated-npu"}
    assert judged(busy, clock="device", facts=emulated, drift=0.2).text == "quiet: the device is emulated"
    assert judged(busy, clock="device", between=0.01).verdict == "quiet"
    assert judged(busy, clock="device", between=0.2).reasons == ("20% between processes",)


@given(st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=12))
def test_the_spread_between_processes_has_no_unit(latencies_s: list[float]) -> None:
    """It is relative: the same in any unit; zero for equal latencies, and None for one process."""
    found = between_processes(latencies_s)
    assert found is not None and found >= 0
    assert between_processes([1e3 * one for one in latencies_s]) == pytest.approx(found)
    assert between_processes([latencies_s[0]] * 4) == pytest.approx(0.0, abs=1e-12)
    assert between_processes(latencies_s[:1]) is None


def test_a_machine_is_busy_before_a_measurement() -> None:
    """A load above the number of cores is named; an unknown one is not."""
    assert busy_before({"load_1min": 5.8}, {"cores": "2"}) == "the load of the last minute is 5.8 on 2 cores"
    assert busy_before({"load_1min": 1.2}, {"cores": "2"}) == busy_before({}, {"cores": "2"}) == ""


@pytest.fixture
def burners() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that keep all cores busy, for at most a minute."""
    code = "import time; end = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
    started = [subprocess.Popen([sys.executable, "-S", "-c", code]) for _ in range(BURNERS)]
    yield started
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.skipif(not processor_times(), reason="needs /proc/stat")
def test_real_load_is_noise(burners: list[subprocess.Popen[bytes]]) -> None:
    """With more busy processes than cores, the states that an agent records are those of a noisy machine."""
    states: list[Mapping[str, float]] = []
    deadline = time.monotonic() + 30
    for _ in itertools.count():
        states.append(state())
        known = load_of(states, hardware())
        if (known.other_cores is not None and len(states) > 8) or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    assert all(process.poll() is None for process in burners)
    found = judge(load_of(states, hardware()), hardware(), "cpu", Spreads())
    assert found.verdict == "noisy", found
    assert found.text.endswith("the variation between processes was not measured")


@given(st.lists(st.floats(0.99, 1.01), min_size=3, max_size=9), st.floats(1.3, 3.0))
def test_a_minority_of_slow_processes_is_no_spread(latencies_s: list[float], slower: float) -> None:
    """One process in a slow phase hardly changes the spread between most processes, and twice the unit is no change."""
    found = between_most_processes([*latencies_s, slower])
    assert found is not None and found < 0.06
    assert between_most_processes([2 * one for one in (*latencies_s, slower)]) == pytest.approx(found)
    assert between_most_processes([slower]) is None


def test_the_spread_of_most_is_that_of_all_if_none_is_slow() -> None:
    """For normal latencies of few processes, the spread between most of them is right on average."""
    random = np.random.default_rng(1)
    for count in (2, 3, 5, 12):
        found = [between_most_processes(random.normal(1, 0.01, count).tolist()) or 0.0 for _ in range(4000)]
        assert statistics.fmean(found) == pytest.approx(0.01, rel=0.06)
