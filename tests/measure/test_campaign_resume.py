"""Campaigns on a null device: interrupted, resumed, bounded, never mixed."""

import contextlib
import dataclasses
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from altered_journals import cover, editing
from in_process import in_process
from nullbench import DEVICE, Bench, StopAfter, Truth, build_network

from harness.device.inventory import Device
from harness.device.session import AgentSession, open_session
from harness.errors import CampaignIncomplete, HarnessError, Interrupted, UnknownDevice
from harness.measure.journal.journal import Journal
from harness.measure.policy import RepeatPolicy
from harness.measure.profiling import dry_run
from harness.measure.progress import Progress
from harness.measure.request import ProfileRequest
from harness.probe.auxiliary import AuxiliaryKind

FOUR = RepeatPolicy(runs=4)


def campaigns(bench: Bench) -> list[tuple[int, bool]]:
    """Number and completeness of the campaigns in the journal."""
    with Journal(bench.workspace.journal) as journal:
        return [(known.id, known.complete) for known in journal.campaigns(DEVICE)]


def test_fixed_runs_take_that_many_samples_of_every_probe(bench: Bench) -> None:
    """`runs=4` takes four samples of each probe, as both the result and the journal report (S1.6)."""
    result = bench.profile(policy=FOUR)
    with Journal(bench.workspace.journal) as journal:
        samples, probes = journal.samples(result.campaign), journal.probes(result.campaign)
        (campaign,) = journal.campaigns(DEVICE)
    counts = {probe: len(taken) for probe, taken in samples.items() if probe != campaign.reference}
    assert set(counts) == set(probes) - {campaign.reference}
    assert set(counts.values()) == {4}
    assert result.samples == sum(map(len, samples.values()))
    assert result.device_seconds == pytest.approx(
        sum(one.device_ns or 0 for row in samples.values() for one in row) / 1e9
    )
    assert (campaign.complete, campaign.clock, result.resumed, result.refused) == (True, "device", False, 0)


@pytest.mark.parametrize(
    ("looks", "connect"),
    [*((looks, in_process) for looks in (20, 60, 80)), *((looks, open_session) for looks in (0, 70, 110))],
)
def test_a_resumed_campaign_equals_an_uninterrupted_one(
    tmp_path: Path, looks: int, connect: Callable[[Device], AgentSession]
) -> None:
    """A campaign stopped anywhere and resumed equals an uninterrupted one, with each slot visited once."""
    whole, cut = Bench(tmp_path / "whole"), Bench(tmp_path / "cut")
    expected = whole.profile(policy=FOUR)
    with pytest.raises(Interrupted):
        cut.profile(policy=FOUR, stop=StopAfter(looks), connect=connect)
    assert campaigns(cut) == [(1, False)]
    result = cut.profile(policy=FOUR, connect=connect)
    assert campaigns(cut) == [(1, True)]
    assert (result.campaign, result.resumed, result.samples) == (1, True, expected.samples)
    assert cut.visits(1) == whole.visits(1)


def test_a_campaign_interrupted_repeatedly_completes(bench: Bench, tmp_path: Path) -> None:
    """Each run adds to the ones before it; none measures a slot twice or skips one."""
    whole = Bench(tmp_path / "whole")
    whole.profile(policy=FOUR)
    held = [0]
    for looks in range(20, 200, 10):
        try:
            bench.profile(policy=FOUR, stop=StopAfter(looks))
            break
        except Interrupted:
            held.append(len(bench.visits(1)))
    assert held == sorted(held)
    assert len(held) > 4
    assert campaigns(bench) == [(1, True)]
    assert bench.visits(1) == whole.visits(1)


@pytest.mark.parametrize("kept", [1, 7, 20])
def test_a_round_that_was_cut_in_the_middle_is_finished(bench: Bench, tmp_path: Path, kept: int) -> None:
    """If only the first slots of a round were committed, resuming visits exactly the others."""
    whole = Bench(tmp_path / "whole")
    whole.profile(policy=FOUR)
    with pytest.raises(Interrupted):
        bench.profile(policy=FOUR, stop=StopAfter(90))
    database = sqlite3.connect(bench.workspace.journal)
    last = database.execute("SELECT batch, round FROM series ORDER BY id DESC LIMIT 1").fetchone()
    lost = "SELECT id FROM series WHERE batch=? AND round=? AND position>=?"
    for statement in (f"DELETE FROM samples WHERE series IN ({lost})", f"DELETE FROM series WHERE id IN ({lost})"):
        database.execute(statement, (*last, kept))
    database.execute("DELETE FROM rounds WHERE batch=?", last[:1])  # it was not marked as finished yet
    cover(database)  # in a real cut, the digest would end there
    database.commit()
    database.close()
    before = bench.visits(1)
    assert bench.profile(policy=FOUR).resumed
    assert bench.visits(1) == whole.visits(1)
    assert set(before) < set(bench.visits(1))


def test_a_stop_from_the_observer_ends_after_the_current_round(bench: Bench) -> None:
    """A stop requested by the observer ends the run, and the reported samples are in the journal."""
    stop, seen = threading.Event(), []

    def observe(progress: Progress) -> None:
        seen.append(progress)
        if progress.stage == "measuring" and progress.round == 1:
            stop.set()

    with pytest.raises(Interrupted):
        bench.profile(policy=FOUR, stop=stop, observe=observe)
    assert sum(samples for *_, samples in bench.visits(1)) == seen[-1].samples
    assert {round for _, round, *_ in bench.visits(1)} == {0}
    assert bench.profile(policy=FOUR).resumed


def test_fresh_starts_a_new_campaign_and_keeps_the_old_one(bench: Bench) -> None:
    """`fresh` starts a new campaign and leaves the unfinished one with its samples."""
    with pytest.raises(Interrupted):
        bench.profile(policy=FOUR, stop=StopAfter(30))
    before = bench.visits(1)
    result = bench.profile(policy=FOUR, fresh=True)
    assert (result.campaign, result.resumed) == (2, False)
    assert bench.visits(1) == before
    assert campaigns(bench) == [(1, False), (2, True)]


def test_a_complete_campaign_is_not_resumed(bench: Bench) -> None:
    """The same command after a complete campaign measures again."""
    assert [bench.profile(policy=FOUR).campaign for _ in range(2)] == [1, 2]


@pytest.mark.parametrize("change", ["policy", "seed", "network", "auxiliary"])
def test_another_job_is_not_resumed(bench: Bench, change: str) -> None:
    """Another policy, seed, network or auxiliary layer starts another campaign."""
    with pytest.raises(Interrupted):
        bench.profile(policy=FOUR, stop=StopAfter(30))
    other = build_network(bench.root / "other.onnx", widths=(8, 24, 24))
    models = (other,) if change == "network" else ()
    options = {
        "policy": {"policy": RepeatPolicy(runs=3)},
        "seed": {"seed": 5},
        "auxiliary": {"auxiliary": AuxiliaryKind.CONV1X1},
    }
    result = bench.profile(*models, **{"policy": FOUR, **options.get(change, {})})
    assert (result.campaign, result.resumed) == (2, False)


def test_a_changed_fingerprint_is_never_resumed(bench: Bench) -> None:
    """A device whose fingerprint changed starts a new campaign; the old one stays unfinished."""
    with pytest.raises(Interrupted):
        bench.profile(policy=FOUR, stop=StopAfter(30))
    bench.set_device(dataclasses.replace(bench.truth, c_s=2e-4))
    assert not bench.profile(policy=FOUR).resumed
    assert campaigns(bench) == [(1, False), (2, True)]


def test_the_budget_bounds_the_time_on_the_device(bench: Bench) -> None:
    """A campaign with an unreachable target stops at most one round of each batch beyond its budget."""
    endless = RepeatPolicy(target=1e-9, min_rounds=1000, max_rounds=1000, budget_s=0.1)
    round_s = bench.profile(policy=RepeatPolicy(runs=1)).device_seconds
    result = bench.profile(policy=endless)
    assert 0.05 < result.device_seconds < 0.1 + 1.2 * round_s


def test_a_resumed_campaign_has_spent_part_of_its_budget(bench: Bench) -> None:
    """Runs share one budget: interrupting and resuming does not buy device time."""
    endless = RepeatPolicy(target=1e-9, min_rounds=1000, max_rounds=1000, budget_s=0.1)
    round_s = bench.profile(policy=RepeatPolicy(runs=1)).device_seconds

    def stop_late(progress: Progress) -> None:
        if progress.device_s > 0.08:
            stop.set()

    for _ in range(3):
        stop = threading.Event()
        with contextlib.suppress(Interrupted):
            bench.profile(policy=endless, stop=stop, observe=stop_late)
            break
    with Journal(bench.workspace.journal) as journal:
        spent_s = sum(one.device_ns or 0 for row in journal.samples(2).values() for one in row) / 1e9
    assert spent_s < 0.1 + 4 * round_s


def test_a_campaign_killed_when_its_budget_was_spent_completes(bench: Bench) -> None:
    """A campaign killed after its last round, but before the round was marked, completes from its samples."""
    bench.profile(policy=RepeatPolicy(target=1e-9, min_rounds=1000, max_rounds=1000, budget_s=0.1))
    before = bench.visits(1)
    with editing(bench.workspace.journal) as database:
        database.executescript("DELETE FROM rounds; UPDATE campaigns SET complete=0;")
        cover(database)
    assert bench.profile(policy=RepeatPolicy(target=1e-9, min_rounds=1000, max_rounds=1000, budget_s=0.1)).resumed
    assert campaigns(bench) == [(1, True)]
    assert len(bench.visits(1)) - len(before) <= 60


def test_a_budget_that_is_too_small_is_an_error(bench: Bench) -> None:
    """If the budget does not suffice for the minimum of samples, the campaign is incomplete and keeps its samples."""
    with pytest.raises(CampaignIncomplete) as incomplete:
        bench.profile(policy=RepeatPolicy(budget_s=1e-6))
    assert "budget" in incomplete.value.next_step
    assert bench.visits(1)


def test_an_incomplete_campaign_never_becomes_a_table(bench: Bench) -> None:
    """A campaign that `profile` reports as incomplete is incomplete in the journal, and `build_lut` ignores it."""
    with pytest.raises(CampaignIncomplete):
        bench.profile(policy=RepeatPolicy(budget_s=1e-6))
    assert campaigns(bench) == [(1, False)]
    with pytest.raises(CampaignIncomplete):
        bench.build()
    assert not list(bench.workspace.lut.glob("*/*"))


def test_the_target_ends_a_campaign_without_noise_early(bench: Bench) -> None:
    """On a device without noise, the minimum of rounds suffices."""
    bench.set_device(dataclasses.replace(bench.truth, noise=0.0))
    result = bench.profile(policy=RepeatPolicy(min_rounds=5, max_rounds=30))
    assert {round for _, round, *_ in bench.visits(1)} == set(range(5))
    assert (result.unsettled, result.drift) == (0, 0.0)


def test_a_target_out_of_reach_ends_at_the_most_rounds(bench: Bench) -> None:
    """Under too much noise a campaign ends at the maximum of rounds and reports the unsettled probes."""
    bench.set_device(dataclasses.replace(bench.truth, noise=0.3))
    result = bench.profile(policy=RepeatPolicy(min_rounds=5, max_rounds=9))
    assert {round for _, round, *_ in bench.visits(1)} == set(range(9))
    assert result.unsettled > 0


def test_progress_counts_up_to_the_result(bench: Bench) -> None:
    """The reported samples and device time grow and end at the figures of the result."""
    seen: list[Progress] = []
    result = bench.profile(policy=FOUR, observe=seen.append)
    own = [one for one in seen if one.phase == "measuring"]
    assert [one.samples for one in own] == sorted(one.samples for one in own)
    assert own[-1].samples == result.samples
    assert own[-1].device_s == pytest.approx(result.device_seconds)
    assert all(one.batch < one.batches and (one.effort or 0) > 0 for one in own)
    shares = [one.share for one in own if one.share is not None]
    assert shares and all(0 < share <= 1 for share in shares) and shares[-1] == 1.0


def test_a_dry_run_measures_nothing(bench: Bench) -> None:
    """A dry run reports the plan of the real run and its time, and writes no journal."""
    planned = dry_run(ProfileRequest(DEVICE, (str(bench.model),)), bench.workspace)
    assert not bench.workspace.journal.exists()
    assert planned.round_seconds == pytest.approx(3 * bench.truth.network_s(bench.model), rel=0.1)
    result = bench.profile(policy=FOUR)
    with Journal(bench.workspace.journal) as journal:
        assert (journal.campaign(result.campaign).plan, result.probes) == (planned.plan.id, len(planned.plan.probes))


def test_bad_input_leaves_no_journal(bench: Bench) -> None:
    """An unknown device or an unreadable network is refused before anything is written."""
    with pytest.raises(UnknownDevice):
        bench.profile(device="nobody")
    broken = bench.root / "broken.onnx"
    broken.write_bytes(b"\x08\x08 not a network")
    with pytest.raises(HarnessError) as refused:
        bench.profile(broken)
    assert refused.value.exit_code == 3
    assert not bench.workspace.journal.exists()


def test_the_built_in_null_device_works_without_devices_toml(tmp_path: Path) -> None:
    """`null01` needs no configuration."""
    bench = Bench(tmp_path, Truth())
    bench.workspace.devices.unlink()
    assert bench.profile(device="null01", policy=RepeatPolicy(runs=2)).device == "null01"
