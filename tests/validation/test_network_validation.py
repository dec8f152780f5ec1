"""Validation of estimates on whole networks, on a device with known true times."""

import dataclasses
import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import Harness
from nullbench import DEVICE, Bench, build_network

from device_agents.backends.null import NullBackend
from harness import validate
from harness.errors import CoverageError, LutNotFound, UsageError
from harness.estimation.network_estimate import estimate_network
from harness.lut.table import Lut
from harness.measure.journal.journal import Journal
from harness.measure.policy import RepeatPolicy
from harness.measure.progress import ignore
from harness.network.model_references import load_network
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.batches import Batch
from harness.probe.probe import network_probe, reference_probe
from harness.probe.probe_plan import ProbePlan
from harness.samples import Sample
from harness.settings import VALIDATION_PROCESSES
from harness.validation import whole_networks
from harness.validation.network_validation import network_case, validation_plan
from harness.validation.results import Validation
from harness.validation.stopping_rule import StoppingRule
from harness.validation.whole_networks import (
    ProcessPlan,
    ProcessSamples,
    measure_processes,
    whole_latency,
)

pytestmark = pytest.mark.usefixtures("devices_in_process")


def checked(bench: Bench, *models: Path, **options: object) -> Validation:
    """Return the validation of these files on the bench's device, in one process unless given."""
    given = {"processes": 1, **options}
    return validate(list(models), device=DEVICE, workspace=bench.workspace, **given)  # type: ignore[arg-type]


def test_estimates_agree_with_measurements_within_the_noise(bench: Bench) -> None:
    """Estimated, measured and true times agree within 5 %, also for a network that was never profiled."""
    bench.profile(policy=RepeatPolicy(runs=20))
    bench.build()
    deep = build_network(bench.root / "deep.onnx", widths=(8, 32, 32, 32, 32, 32))
    result = checked(bench, bench.model, deep, processes=VALIDATION_PROCESSES)
    for network, path in zip(result.networks, (bench.model, deep), strict=True):
        truth_s = bench.truth.network_s(path)
        assert network.measured_s == pytest.approx(truth_s, rel=0.02)
        assert network.estimated_s == pytest.approx(truth_s, rel=0.05)
        assert network.error == pytest.approx(network.estimated_s / network.measured_s - 1)
        low, high = network.interval_s
        assert network.within_interval == (low <= network.measured_s <= high)
        assert 0 < network.measured_halfwidth_s < 0.05 * network.measured_s
        assert (network.naive_s, network.naive_error) == (None, None)
    errors = [abs(network.error) for network in result.networks]
    assert result.mape == pytest.approx(sum(errors) / 2)
    assert result.within_5 == sum(error <= 0.05 for error in errors) / 2
    assert result.within_10 == sum(error <= 0.10 for error in errors) / 2
    assert result.interval_coverage == sum(network.within_interval for network in result.networks) / 2
    assert (result.device, result.clock, result.fingerprint_changes) == (DEVICE, "device", ())
    both_s = [latency_s for one in result.networks for latency_s in (one.measured_s, one.estimated_s)]
    assert [bar.latency_s for bar in result.plot().bars] == both_s


def test_without_noise_the_error_is_nothing(bench: Bench) -> None:
    """On a device without noise, estimate and measurement agree to a tenth of a percent."""
    bench.set_device(dataclasses.replace(bench.truth, noise=0.0))
    bench.profile(policy=RepeatPolicy(runs=3))
    bench.build()
    result = checked(bench, bench.model)
    assert result.mape < 1e-3
    assert (result.within_5, result.within_10) == (1.0, 1.0)


def test_naive_timing_counts_the_overhead_of_every_layer(bench: Bench) -> None:
    """The sum of layers timed alone includes the overhead once per layer."""
    bench.set_device(dataclasses.replace(bench.truth, noise=0.0))
    bench.profile(policy=RepeatPolicy(runs=3))
    bench.build()
    (network,) = checked(bench, bench.model, naive=True).networks
    assert network.naive_s is not None
    assert network.naive_error == pytest.approx(network.naive_s / network.measured_s - 1)
    transfers_s = 6 * bench.truth.c_s - bench.truth.c_s
    assert network.naive_s > network.measured_s + transfers_s


def test_networks_of_the_same_name_are_kept_apart(bench: Bench) -> None:
    """Two files of the same name in different folders are each validated with their own layers."""
    paths = []
    for folder, widths in (("a", (8, 32, 32)), ("b", (8, 16, 16, 16))):
        (bench.root / folder).mkdir()
        paths.append(build_network(bench.root / folder / "net.onnx", widths=widths))
    bench.set_device(dataclasses.replace(bench.truth, noise=0.0))
    bench.profile(*paths, policy=RepeatPolicy(runs=3))
    bench.build()
    alone = [checked(bench, path, naive=True).networks[0] for path in paths]
    together = checked(bench, *paths, naive=True).networks
    assert [one.measured_s for one in together] == pytest.approx([one.measured_s for one in alone])
    assert [one.naive_s for one in together] == pytest.approx([one.naive_s for one in alone])


def test_the_floor_is_what_processes_differ_by() -> None:
    """A network's time is the median over processes, and its repeatability their unbiased standard deviation."""
    ms = 1_000_000
    processes = [
        ProcessSamples({"net": [Sample(value, None, value, 0)] * 5}, {}, {}) for value in (10 * ms, 11 * ms, 12 * ms)
    ]
    whole = whole_latency(processes, "net", "device")
    assert whole.latency_s == pytest.approx(0.011)
    assert whole.processes_s == pytest.approx((0.010, 0.011, 0.012))
    assert whole.repeatability == pytest.approx(0.001 / 0.8862 / 0.011)
    assert whole.halfwidth_s == pytest.approx(4.303 * 0.001 / 3**0.5, rel=1e-3)  # Student's t of two degrees


def test_processes_that_other_programs_disturbed_do_not_count_on_the_wall_clock() -> None:
    """A process with mostly preempted runs is left out on the wall clock if two other processes are not like it."""
    ms = 1_000_000
    taken = [[Sample(value, value, None, preemptions)] * 5 for value, preemptions in ((10 * ms, 0), (25 * ms, 3))]
    quiet, disturbed = (ProcessSamples({"net": samples}, {}, {}) for samples in taken)
    expected = [((25, 10), 0), ((25,), 0), ((10, 25), 0), ((10, 10), 1)]
    found = [
        whole_latency(processes, "net", clock)
        for processes, clock in (
            ((disturbed, quiet), "wall"),
            ((disturbed,), "wall"),
            ((quiet, disturbed), "cpu"),
            ((quiet, disturbed, quiet), "wall"),
        )
    ]
    counted = [(tuple(one * 1e3 for one in whole.processes_s), whole.preempted_processes) for whole in found]
    assert counted == expected


def test_errors_are_shown_with_and_without_the_floor(bench: Bench) -> None:
    """Each process has its own median, and the error beyond their spread is given beside the error."""
    bench.profile(policy=RepeatPolicy(runs=6))
    bench.build()
    result = checked(bench, bench.model, processes=2)
    (one,) = result.networks
    assert len(one.processes_s) == 2
    assert one.error_beyond_floor == max(0.0, abs(one.error) - (one.repeatability or 0.0))
    assert (result.floor, result.mape_beyond_floor) == (one.repeatability, one.error_beyond_floor)


def test_a_noisy_machine_answers_no_question(bench: Bench, tmp_path: Path) -> None:
    """Where processes differ by more than 10 %, the command shows the result, says so, and ends with exit code 5."""
    bench.profile(policy=RepeatPolicy(runs=20))
    bench.build()
    harness = replace(Harness.in_folder(tmp_path / "command"), workspace=bench.root)
    command = ("validate", bench.model, "--device", DEVICE, "--naive")
    quiet = harness(*command).assert_ok()
    assert "machine: quiet" in quiet.stdout and "cannot" not in quiet.stderr
    # Processes draw the same numbers from a seed, in other orders: with this one, their medians differ.
    bench.set_device(dataclasses.replace(bench.truth, noise=2.0, seed=2))
    for json in ((), ("--json",)):
        noisy = harness(*command, *json)
        assert noisy.code == 5, noisy
        assert "cannot say whether estimates are within 10%" in noisy.stderr and "between processes" in noisy.stderr
    found = noisy.json
    assert found["machine"]["verdict"] == "noisy"
    assert found["machine"]["resolution"] >= found["floor"] > 0.1


def test_validation_ends_when_the_comparison_is_decided(bench: Bench) -> None:
    """A device whose processes repeat exactly takes the fewest processes of those that are allowed."""
    bench.profile(policy=RepeatPolicy(runs=6))
    bench.build()
    for most, processes, stopped in ((7, 3, "decided"), (2, 2, "most processes")):
        (one,) = checked(bench, bench.model, processes=most).networks
        assert (len(one.processes_s), one.stopped) == (processes, stopped)


def test_only_open_networks_are_measured_in_further_processes(bench: Bench) -> None:
    """A network that is stopped is left out of later processes of a real runtime; the others go on to the most."""
    networks = [load_network(str(build_network(bench.root / f"{edge}.onnx", edge=edge))) for edge in (16, 24)]
    early, late = (network_probe(network) for network in networks)
    reference = reference_probe()
    plan = ProbePlan(
        {one.id: one for one in (reference, early, late)},
        (),
        tuple(Batch((one.id,), "warm", 3) for one in (early, late)),
        reference.id,
        (),
        AuxiliaryKind.AVGPOOL,
    )
    table = replace(bench_table(bench), device="cpu01", clock="cpu")
    rules = {early.id: Undecided(1.0, (0.9, 1.1), math.inf, 4), late.id: Undecided(1.0, (0.9, 1.1), 0.0, 4)}
    wanted = ProcessPlan(plan, rules, RepeatPolicy(runs=3))
    found = measure_processes(table, bench.workspace, wanted, ignore, threading.Event())
    assert found.stops == {early.id: "target", late.id: "most processes"}
    both = {early.id, late.id}
    assert [set(one.samples) & both for one in found.processes] == [both, both, both, {late.id}]
    assert [len(whole_latency(found.processes, one.id, "cpu").processes_s) for one in (early, late)] == [3, 4]


@pytest.mark.usefixtures("devices_in_process")
@pytest.mark.parametrize(("disturbed", "processes", "counted"), [(2, 5, 3), (5, 6, 6), (9, 6, 6)])
def test_processes_that_other_programs_disturbed_are_replaced(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, disturbed: int, processes: int, counted: int
) -> None:
    """On the wall clock, others replace processes that were disturbed; all count if fewer than two were not."""
    network = network_probe(load_network(str(build_network(bench.root / "net.onnx"))))
    reference = reference_probe()
    probes = {one.id: one for one in (reference, network)}
    plan = ProbePlan(probes, (), (Batch((network.id,), "warm", 3),), reference.id, (), AuxiliaryKind.AVGPOOL)
    seen: list[object] = []

    def is_one_of_the_first(samples: Sequence[Sample]) -> bool:
        if not any(one is samples for one in seen):
            seen.append(samples)
        return any(one is samples for one in seen[:disturbed])

    monkeypatch.setattr(whole_networks, "is_mostly_preempted", is_one_of_the_first)
    table = replace(bench_table(bench), clock="wall")
    monkeypatch.setattr(NullBackend, "clock", "wall")
    rules = {network.id: Undecided(1.0, (0.9, 1.1), 0.0, 3)}
    wanted = ProcessPlan(plan, rules, RepeatPolicy(runs=3))
    found = measure_processes(table, bench.workspace, wanted, ignore, threading.Event())
    assert (len(found.processes), found.stops) == (processes, {network.id: "most processes"})
    assert len(whole_latency(found.processes, network.id, "wall").processes_s) == counted


class Undecided(StoppingRule):
    """A rule whose verdicts may always change."""

    def _is_decided(self, processes_s: Sequence[float]) -> bool:  # noqa: ARG002
        return False


def bench_table(bench: Bench) -> Lut:
    """Return a table of the bench's device."""
    bench.profile(policy=RepeatPolicy(runs=3))
    return bench.build()


def test_one_process_has_no_floor(bench: Bench) -> None:
    """One process has no repeatability, and the error beyond the floor is the error; no process is refused."""
    bench.profile(policy=RepeatPolicy(runs=3))
    bench.build()
    result = checked(bench, bench.model, processes=1)
    assert (result.floor, result.networks[0].repeatability) == (None, None)
    assert result.networks[0].error_beyond_floor == abs(result.networks[0].error)
    with pytest.raises(UsageError, match="processes is 0"):
        checked(bench, bench.model, processes=0)


def test_validation_never_feeds_a_table(bench: Bench) -> None:
    """Whole networks measured by `validate` are in the journal and do not change the next table."""
    bench.profile(policy=RepeatPolicy(runs=6))
    before = bench.build()
    checked(bench, bench.model, processes=2)
    with Journal(bench.workspace.journal) as journal:
        purposes = [known.settings["purpose"] for known in journal.campaigns(DEVICE)]
    assert purposes[0] == "profile" and set(purposes[1:]) == {"validate"}
    after = bench.build()
    assert (after.entries, after.repeatability) == (before.entries, before.repeatability)


def test_a_network_with_unknown_layers_is_refused_before_it_is_measured(bench: Bench) -> None:
    """Alone or with `strict`, it is named and nothing runs on the device; otherwise the others are measured."""
    bench.profile(policy=RepeatPolicy(runs=3))
    bench.build()
    other = build_network(bench.root / "other.onnx", widths=(8, 40))
    for models, strict in (([other], False), ([bench.model, other], True)):
        with pytest.raises(CoverageError, match=str(other)):
            checked(bench, *models, strict=strict)
    with Journal(bench.workspace.journal) as journal:
        assert len(journal.campaigns(DEVICE)) == 1
    result = checked(bench, bench.model, other)
    assert [one.name for one in result.networks] == [bench.model.stem]
    assert [(one.file, one.kind) for one in result.refused_networks] == [(str(other), "CoverageError")]


def test_a_device_changed_since_its_table_is_reported(bench: Bench) -> None:
    """A device that changed since its table is reported with the changed fields and the resulting errors."""
    bench.profile(policy=RepeatPolicy(runs=6))
    bench.build()
    bench.set_device(dataclasses.replace(bench.truth, c_s=3e-4))
    result = checked(bench, bench.model)
    assert result.fingerprint_changes == ("settings",)
    assert result.within_10 == 0.0
    assert result.interval_coverage == 0.0


def test_without_a_table_nothing_is_measured(bench: Bench) -> None:
    """Without a table validation fails and creates no journal."""
    with pytest.raises(LutNotFound):
        checked(bench, bench.model)
    assert not bench.workspace.journal.exists()


def test_a_short_network_settles_before_it_is_timed(bench: Bench) -> None:
    """The untimed runs of a visit take about a millisecond, but are 1 to 20: a network of 0.1 ms has about ten."""
    bench.profile()
    table = bench.build()
    network = load_network(str(bench.model))
    estimated = estimate_network(network, table)
    scales = {factor: replace(estimated, covered_latency_s=factor * 1e-4) for factor in (0.01, 1, 100)}
    (short, usual, long) = (
        validation_plan([network_case(network, one, ())]).batches[0].warmup for one in scales.values()
    )
    assert (short, usual, long) == (20, 10, 1)
