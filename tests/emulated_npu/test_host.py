"""The host beside the NPU: the latency of an inference without noise, and the effect of each kind of noise."""

import itertools
import math
import statistics
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from device_agents.emulated_npu.host_processor import HostModel
from device_agents.emulated_npu.machine import Host, Noise

HOST = Host(
    preprocess_s_per_byte=2e-10,
    postprocess_s_per_byte=5e-11,
    dma_bytes_per_s=4e9,
    dma_setup_s=3e-6,
    driver_s=4e-5,
    noise=Noise(),
)
SIZES = st.integers(0, 1 << 30)


def noisy(**noise: float) -> Host:
    """Return the host with only these disturbances."""
    return replace(HOST, noise=Noise(**noise))


def runs(host: Host, count: int, seed: int = 0, npu_s: float = 1e-3) -> list[float]:
    """Return the totals of equal, consecutive inferences."""
    model = HostModel(host, seed)
    return [model.run(1000, 100, npu_s) for _ in range(count)]


@given(SIZES, SIZES, st.floats(0, 10))
def test_without_noise_the_total_is_the_sum_of_its_parts(read: int, written: int, npu_s: float) -> None:
    """Preprocessing, driver, transfer in, NPU, transfer out and postprocessing count once per inference."""
    software_s = 2e-10 * read + 4e-5 + 5e-11 * written
    transfers_s = (3e-6 + read / 4e9) + (3e-6 + written / 4e9)
    total_s = software_s + transfers_s + npu_s
    assert HostModel(HOST, 0).run(read, written, npu_s) == pytest.approx(total_s, rel=1e-12)


@given(SIZES, SIZES, st.floats(0, 10))
def test_true_overhead_is_what_the_total_holds_beside_the_npu(read: int, written: int, npu_s: float) -> None:
    """a, b and c account for everything except the NPU's own time."""
    model = HostModel(HOST, 0)
    a_s_per_byte, b_s_per_byte, c_s = model.true_overhead()
    expected_s = a_s_per_byte * read + b_s_per_byte * written + c_s + npu_s
    assert model.run(read, written, npu_s) == pytest.approx(expected_s, rel=1e-12)


def test_noise_leaves_the_truth_alone() -> None:
    """Noise does not change the oracle's a, b and c."""
    host = noisy(jitter=0.1, drift=0.2, spike_probability=0.5, spike_s=1.0, throttle_after_s=0.0, throttle_slowdown=2.0)
    assert HostModel(host, 3).true_overhead() == HostModel(HOST, 0).true_overhead()


def test_clock_shows_the_sum_of_the_runs() -> None:
    """The virtual clock starts at zero and only runs advance it."""
    model = HostModel(noisy(jitter=0.05), 1)
    assert model.now_s == 0.0
    totals = [model.run(1000, 100, 1e-3) for _ in range(50)]
    assert model.now_s == pytest.approx(sum(totals))


@given(st.integers(0, 2**63 - 1))
def test_equal_seeds_give_equal_latencies(seed: int) -> None:
    """The seed determines the noise."""
    host = noisy(jitter=0.02, drift=0.01, drift_period_s=3.0, spike_probability=0.1, spike_s=1e-3)
    assert runs(host, 20, seed) == runs(host, 20, seed)
    assert runs(host, 20, seed) != runs(host, 20, seed + 1)


def test_jitter_scatters_the_host_about_its_own_time() -> None:
    """The logarithm of the host's part is normal with the given spread and unchanged median; the NPU's is constant."""
    npu_s = 5.0
    (undisturbed_s,) = runs(HOST, 1, npu_s=0.0)
    logs = [math.log((total - npu_s) / undisturbed_s) for total in runs(noisy(jitter=0.1), 4000, npu_s=npu_s)]
    assert statistics.stdev(logs) == pytest.approx(0.1, rel=0.1)
    assert statistics.mean(logs) == pytest.approx(0.0, abs=0.01)


@given(st.integers(0, 1000), st.floats(0.01, 0.5))
def test_drift_is_slow_and_bounded(seed: int, drift: float) -> None:
    """The host's part stays within the given fraction of its time and changes little from run to run."""
    (undisturbed_s,) = runs(HOST, 1, npu_s=0.0)
    factors = [total / undisturbed_s for total in runs(noisy(drift=drift, drift_period_s=0.01), 400, seed, npu_s=0.0)]
    assert 1 - drift * 1.0001 <= min(factors) < 1 < max(factors) <= 1 + drift * 1.0001
    steps = [abs(after - before) for before, after in itertools.pairwise(factors)]
    assert max(steps) < drift * 2 * math.pi * 1.5 * undisturbed_s / 0.01


def test_spikes_have_the_given_frequency_and_length() -> None:
    """The given share of runs is longer, on average by the given time; the others are unchanged."""
    (undisturbed_s,) = runs(HOST, 1)
    extra = [total - undisturbed_s for total in runs(noisy(spike_probability=0.05, spike_s=0.5), 20_000)]
    spikes = [one for one in extra if one > 1e-9]
    assert len(spikes) / len(extra) == pytest.approx(0.05, rel=0.1)
    assert statistics.mean(spikes) == pytest.approx(0.5, rel=0.1)


def test_throttling_slows_the_whole_device_after_the_given_busy_time() -> None:
    """After the given busy time every run is slower by the given factor, NPU included."""
    npu_s = 1.0
    totals = runs(noisy(throttle_after_s=5.0, throttle_slowdown=1.5), 10, npu_s=npu_s)
    assert totals[:4] == pytest.approx([totals[0]] * 4)
    assert totals[6:] == pytest.approx([1.5 * totals[0]] * 4)
