"""The main job through a real sshd, beside the same job on this machine."""

import getpass
import itertools
import statistics
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from harness import build_lut, estimate, profile, validate
from harness.lut.campaign_source import read_campaign
from harness.measure.journal.journal import Journal
from harness.measure.journal.records import Campaign
from harness.measure.policy import RepeatPolicy
from harness.workspace import Workspace

RUNS = 15
pytestmark = pytest.mark.usefixtures("any_speed")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two convolutions with Relu and a residual add, about a millisecond in all."""
    import numpy

    random = numpy.random.default_rng(0)
    weights = {name: random.normal(0, 0.05, (64, 64, 3, 3)).astype(numpy.float32) for name in ("first", "second")}
    shape = [1, 64, 28, 28]
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "second"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c", "b"], ["d"]),
        helper.make_node("Relu", ["d"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "residual",
        [value("x", TensorProto.FLOAT, shape)],
        [value("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    path = tmp_path / "residual.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture
def workspace(tmp_path: Path, sshd: Any) -> Workspace:
    """A workspace whose devices.toml names the sshd as `board`."""
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "devices.toml").write_text(
        f"""
[devices.board]
transport = "ssh"
host = "127.0.0.1"
port = {sshd.port}
user = "{getpass.getuser()}"
identity = "{sshd.identity}"
known_hosts = "{sshd.known_hosts}"

[devices.board.options]
threads = 1
"""
    )
    return Workspace(folder)


def test_ssh_gives_what_the_local_device_gives(workspace: Workspace, model: Path) -> None:
    """A campaign over SSH yields the same plan, counts and fingerprint as a local one, and the same latencies.

    The same within the precision of the journal: every probe within its own standard errors and the drift
    of the reference probe between and within two campaigns. On a machine that is busy for a while, both are measured
    again, and any of one with any of the other has to agree.
    """
    campaigns: dict[str, list[int]] = {"cpu01": [], "board": []}
    for _ in range(10):
        for device, found in campaigns.items():
            result = profile(model, device=device, workspace=workspace, policy=RepeatPolicy(runs=RUNS), fresh=True)
            found.append(result.campaign)
        if any(_deviation(workspace, *pair) < 2 for pair in itertools.product(*campaigns.values())):
            break
    else:
        pytest.fail("the latencies over SSH are others")
    estimates = {}
    for device in ("cpu01", "board"):
        build_lut(device, workspace=workspace)
        (estimates[device],) = estimate([str(model)], device=device, workspace=workspace)
    assert estimates["cpu01"].coverage == estimates["board"].coverage
    assert estimates["board"].latency_s is not None
    (network,) = validate([str(model)], device="board", workspace=workspace, processes=3).networks
    assert network.stopped is not None
    assert len(network.processes_s) == 3


def _deviation(workspace: Workspace, here: int, over_ssh: int) -> float:
    """Return the median deviation of the probes of two campaigns, in their errors."""
    with Journal(workspace.journal) as journal:
        local, remote = journal.campaign(here), journal.campaign(over_ssh)
        assert (local.plan, dict(local.fingerprint)) == (remote.plan, dict(remote.fingerprint))
        ours, theirs = (read_campaign(journal, campaign)[0].summaries for campaign in (local, remote))
        drift = max(_spread(journal, campaign) for campaign in (local, remote))
    assert set(ours) == set(theirs)
    scale = theirs[local.reference].latency_s / ours[local.reference].latency_s
    deviations = [
        abs(theirs[probe].latency_s / scale - one.latency_s)
        / (one.stderr_s + theirs[probe].stderr_s + drift * one.latency_s)
        for probe, one in ours.items()
    ]
    return statistics.median(deviations)


def test_a_pushed_agent_measures_a_whole_campaign(workspace: Workspace, model: Path, sshd: Any) -> None:
    """With `agent = "push"` a campaign gives a table of the same device as one behind the forced command."""
    settings = workspace.devices.read_text()
    forced = profile(model, device="board", workspace=workspace, policy=RepeatPolicy(runs=RUNS))
    sshd.allow_commands()
    pushed_settings = f'agent = "push"\npython = "{sys.executable}"\n\n[devices.board.options]'
    workspace.devices.write_text(settings.replace("[devices.board.options]", pushed_settings))
    pushed = profile(model, device="board", workspace=workspace, policy=RepeatPolicy(runs=RUNS), seed=7)
    assert pushed.campaign != forced.campaign and pushed.samples == forced.samples
    with Journal(workspace.journal) as journal:
        first, second = (journal.campaign(one.campaign) for one in (forced, pushed))
        assert dict(first.fingerprint) == dict(second.fingerprint)
    assert {entry.campaign for entry in build_lut("board", workspace=workspace).entries} == {pushed.campaign}
    assert [path.suffix for path in (sshd.home / ".cache" / "harness").iterdir()] == [".pyz"]


def _spread(journal: Journal, campaign: Campaign) -> float:
    """Relative median absolute deviation of the reference probe's samples."""
    values = [sample.cpu_ns or sample.wall_ns for sample in journal.samples(campaign.id)[campaign.reference]]
    centre = statistics.median(values)
    return statistics.median(abs(value - centre) for value in values) / centre
