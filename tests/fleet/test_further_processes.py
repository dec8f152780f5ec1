"""The spread of the reference probe between processes, and its part in verdicts, tables and estimates."""

from dataclasses import replace
from pathlib import Path

import pytest
from nullbench import DEVICE, Bench, build_network

import harness
from harness import RepeatPolicy
from harness.estimation.network_estimate import estimate_network
from harness.fleet import execution
from harness.measure.journal.journal import Journal
from harness.measure.noise.campaign_noise import PROCESS, judge_campaign, phases_of_campaign, repeatability_of
from harness.measure.noise.machine_noise import between_most_processes
from harness.measure.summary import undisturbed
from harness.network.model_references import load_network
from harness.workspace import Workspace

FEW = RepeatPolicy(runs=3)
ENOUGH = RepeatPolicy(runs=20)


@pytest.mark.usefixtures("any_speed")
def test_the_spread_between_processes_widens_estimates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a processor the reference probe runs in three processes; their spread is in the verdict and in intervals."""
    monkeypatch.setattr("harness.fleet.execution.LEAST_CAMPAIGN_S", 0.0)
    model = build_network(tmp_path / "small.onnx", widths=(8, 16))
    result = harness.profile(model, device="cpu01", workspace=tmp_path, policy=ENOUGH, wait_s=60.0)
    assert result.machine is not None and result.machine.between_processes is not None
    with Journal(Workspace(tmp_path).journal) as journal:
        campaign = journal.campaign(result.campaign)
        processes = [one for one in journal.campaigns("cpu01") if one.settings["purpose"] == PROCESS]
        golden = next(one for one in journal.campaigns("cpu01") if one.settings["purpose"] == "golden")
        assert len(processes) == execution.FURTHER_PROCESSES
        assert len({one.token for one in (golden, *processes)}) == 1 + len(processes)
        runs = [(one.clock, journal.samples_of(one.id, one.reference)) for one in (golden, *processes)]
        spread = between_most_processes([undisturbed(taken, clock).latency_s for clock, taken in runs])
        assert judge_campaign(journal, campaign, phases_of_campaign(journal, campaign).slow_share) == result.machine
        assert result.machine.between_processes == repeatability_of(journal, campaign) == pytest.approx(spread)
    table = harness.build_lut("cpu01", workspace=tmp_path)
    assert table.machine == result.machine.text
    assert table.repeatability >= spread  # slow phases are part of it
    network = load_network(str(model))
    widths = [
        high - low
        for known in (table, replace(table, repeatability=0.0), replace(table, repeatability=2 * table.repeatability))
        if (interval := estimate_network(network, known).interval_s)
        for low, high in [interval]
    ]
    assert widths[1] < widths[0] < widths[2]


def test_short_campaigns_and_other_clocks_start_no_further_process(bench: Bench) -> None:
    """On a device with a clock of its own nothing more is measured, and its tables have no spread."""
    result = harness.profile(bench.model, device=DEVICE, workspace=bench.root, policy=FEW)
    with Journal(bench.workspace.journal) as journal:
        assert not [one for one in journal.campaigns(DEVICE) if one.settings["purpose"] == PROCESS]
    assert result.machine is not None and result.machine.between_processes is None
    assert bench.build().repeatability == 0.0
