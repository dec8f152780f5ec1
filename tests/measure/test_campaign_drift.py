"""Campaigns of a device that changed its speed meanwhile: they are kept, and no table uses them."""

import numpy as np
import pytest
from nullbench import DEVICE, Bench

import harness
from harness import RepeatPolicy
from harness.errors import CampaignIncomplete, DeviceUnsteady
from harness.measure.journal.journal import Journal
from harness.measure.noise.campaign_noise import drift_of
from harness.samples import Sample
from harness.settings import MOST_DRIFT

WIDE_BAND = f"[devices.{DEVICE}]\ngolden_ms = [1e-3, 1e3]\n"


def slow_down(bench: Bench, factor: float) -> None:
    """Multiply all latencies from the 400th run on; the golden probe accepts it."""
    bench.set_device()
    text = bench.workspace.devices.read_text().replace(f"[devices.{DEVICE}]\n", WIDE_BAND)
    bench.workspace.devices.write_text(f"{text}slower_after = 400\nslowdown = {factor}\n")


def profiled(bench: Bench) -> harness.ProfileResult:
    """One call of the function."""
    policy = RepeatPolicy(runs=10)
    return harness.profile(bench.model, device=DEVICE, workspace=bench.root, policy=policy)


def samples(seconds: np.ndarray) -> list[Sample]:
    """Samples of these wall times."""
    return [Sample(int(1e9 * one), None, None, 0) for one in seconds]


def test_a_campaign_beyond_the_limit_is_measured_and_not_used(bench: Bench) -> None:
    """It fails with exit code 5 and the next step; a table is refused with the reason, and later leaves it out."""
    slow_down(bench, 3.0)
    with pytest.raises(DeviceUnsteady, match=r"drifted by (19|20)\d%") as unsteady:
        profiled(bench)
    assert unsteady.value.exit_code == 5 and "run the same command again" in unsteady.value.next_step
    with Journal(bench.workspace.journal) as journal:
        (first,) = [one for one in journal.campaigns(DEVICE) if one.settings["purpose"] == "profile"]
        assert first.complete and not first.is_usable and sum(map(len, journal.samples(first.id).values())) > 400
    with pytest.raises(CampaignIncomplete, match="usable for a table") as refused:
        bench.build()
    assert "reference probe drifted" in refused.value.why and "resumes" not in refused.value.next_step
    slow_down(bench, 1.0)
    again = profiled(bench)
    notes: list[str] = []
    table = bench.build(note=notes.append)
    assert not again.resumed and {entry.campaign for entry in table.entries} == {again.campaign}
    assert notes == [f"Campaign {first.id} is skipped: {unsteady.value.what}"]


def test_a_campaign_within_the_limit_is_used(bench: Bench) -> None:
    """A device that becomes slower by a third during the campaign is reported with its drift and enters the table."""
    slow_down(bench, 1.33)
    result = profiled(bench)
    assert 0.3 < result.drift < MOST_DRIFT
    assert {entry.campaign for entry in bench.build().entries} == {result.campaign}


def test_noise_alone_is_no_drift() -> None:
    """Noise of a fifth of the latency, many times that of an idle processor, excludes hardly any campaign."""
    random = np.random.default_rng(3)
    drifts = [drift_of(samples(1e-3 * random.lognormal(0, 0.2, 24)), "wall") for _ in range(300)]
    assert sum(one.is_too_large for one in drifts) <= 3


@pytest.mark.parametrize(("each", "judged"), [(2, False), (7, False), (8, True), (60, True)])
def test_few_samples_show_no_drift(each: int, judged: bool) -> None:
    """Thirds of fewer than three samples show no drift, and those of fewer than eight exclude no campaign."""
    drift = drift_of(samples(np.repeat([1.0, 2.0, 1.0], each)), "wall")
    assert (drift.change > 0.9, drift.is_too_large) == (each >= 3, judged)
