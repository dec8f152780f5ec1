"""`--batch` and `--threads`: campaigns and tables of their own, which others never mix with."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import Harness
from onnx import helper
from opened_run import open_run
from system_networks import convolutions, model, save, value

import harness as package
from harness import ProfileRequest, RepeatPolicy, Workspace, errors
from harness.device.inventory import BUILT_IN
from harness.device.variant import Variant
from harness.fleet.health import check_golden
from harness.fleet.store import FleetStore
from harness.measure.profiling import profile_networks

RUNS = RepeatPolicy(runs=3)


@pytest.fixture
def network(harness: Harness) -> Path:
    """A small network with a fixed batch of one."""
    return save(convolutions(size=8, channels=8), harness.workspace / "small.onnx")


def fingerprints(harness: Harness) -> list[dict[str, str]]:
    """The batch and threads in the fingerprints of the profile campaigns, oldest first."""
    rows = harness.query("SELECT fingerprint, settings FROM campaigns ORDER BY id")
    kept = [json.loads(one) for one, settings in rows if json.loads(settings)["purpose"] == "profile"]
    return [{name: one[name] for name in ("batch", "threads") if name in one} for one in kept]


@pytest.mark.usefixtures("devices_in_process")
def test_a_batch_has_a_campaign_and_a_table_of_its_own(harness: Harness, network: Path) -> None:
    """Each table is used for its batch alone, also if another one is newer; a batch without a table is an error."""
    options = ("--device", "null01")
    for batch in ((), ("--batch", "8")):
        harness("profile", network, *options, "--runs", "3", *batch).assert_ok()
        harness("lut", "build", *options, *batch).assert_ok()
    assert fingerprints(harness) == [{}, {"batch": "8"}]
    found = {}
    for batch in ((), ("--batch", "8")):
        estimated = harness("estimate", network, *options, *batch, "--json").json
        validated = harness("validate", network, *options, *batch, "--json", "--processes", "1").json
        assert estimated["lut"] == validated["lut"] and validated["fingerprint_changes"] == []
        assert estimated["networks"][0]["coverage"]["measured"] == 3
        assert abs(validated["networks"][0]["error"]) < 0.05
        found[batch] = estimated["lut"], validated["networks"][0]["measured_s"]
    (plain, plain_s), (eight, eight_s) = found.values()
    assert plain != eight and eight_s > plain_s
    harness("estimate", network, *options, "--batch", "4").assert_refused(3, mentions=("--batch 4",))
    harness("lut", "build", *options, "--batch", "4").assert_refused(3, mentions=("--batch 4",))
    named = harness("estimate", network, *options, "--batch", "4", "--lut", eight, "--allow-partial", "--json")
    assert named.json["networks"][0]["coverage"]["measured"] == 0, "a batch has keys of its own"


@pytest.mark.usefixtures("devices_in_process")
def test_a_network_without_such_a_batch_does_not_end_the_others(harness: Harness, network: Path) -> None:
    """It is refused by file, reason and next step; the others are measured with the batch."""
    mixing = model(
        [helper.make_node("Softmax", ["x"], ["y"], axis=0)], inputs=[value("x", [2, 8])], outputs=[value("y", [2, 8])]
    )
    odd = save(mixing, harness.workspace / "odd.onnx")
    found = harness("profile", odd, network, "--device", "null01", "--runs", "3", "--batch", "4", "--json")
    assert found.code == 3
    (refused,) = found.json["refused_networks"]
    assert refused["file"] == str(odd) and "not independent" in refused["why"]
    both = ("--dim", "n=2", "--batch", "4")
    save(convolutions(batch="n", size=8, channels=8), network)
    harness("estimate", network, "--device", "null01", *both).assert_refused(2, 3)
    harness("profile", "--space", "builtin:vision", "--batch", "4").assert_refused(2)


def test_threads_replace_those_of_the_inventory(harness: Harness, network: Path) -> None:
    """Campaigns and tables of other threads are kept apart, and found by their threads alone."""
    workspace = Workspace(harness.workspace)
    tables = []
    for threads in (None, 2):
        request = ProfileRequest("cpu01", (str(network),), policy=RUNS, threads=threads)
        with open_run(
            BUILT_IN["cpu01"], workspace, variant=request.variant
        ) as run:  # a busy machine has no steady speed
            profile_networks(run, request.networks(), request)
        tables.append(package.build_lut("cpu01", workspace=workspace, threads=threads))
    assert fingerprints(harness) == [{}, {"threads": "2"}]
    assert ["threads=2" in table.fingerprint["settings"] for table in tables] == [False, True]
    assert [table.clock for table in tables] == ["cpu", "wall"]
    assert tables[1].repeatability >= 0.05  # what sums with several threads differ by
    lab = {"device": "cpu01", "workspace": workspace}
    validations = [package.validate(network, threads=threads, processes=1, policy=RUNS, **lab) for threads in (None, 2)]
    assert [one.lut for one in validations] == [table.name for table in tables]
    assert [one.fingerprint_changes for one in validations] == [(), ()]
    with pytest.raises(errors.LutMismatch, match="not for 2 threads"):
        package.estimate(network, lut=tables[0].path, threads=2, **lab)
    with pytest.raises(errors.LutNotFound, match="--threads 3"):
        package.estimate(network, threads=3, **lab)
    harness("profile", network, "--device", "npu01", "--threads", "2").assert_refused(2, mentions=("npu01",))


def test_other_threads_have_a_golden_band_of_their_own(harness: Harness) -> None:
    """The golden probe on two threads is not compared with that on one; forgetting the band forgets both."""
    workspace = Workspace(harness.workspace)
    with FleetStore(workspace.fleet) as store, open_run(BUILT_IN["null01"], workspace) as run:
        check_golden(run, store)
        check_golden(replace(run, variant=Variant(threads=2)), store)
        assert store.band("null01") is not None and store.band("null01/threads=2") is not None
        harness("devices", "golden", "null01", "--forget").assert_ok()
        assert store.band("null01") is store.band("null01/threads=2") is None
