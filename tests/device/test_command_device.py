"""A vendor's tool as a device: the main job, and errors of a tool that reports no latency."""

import json
import re
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import Harness
from nullbench import Bench, build_network
from sshd_server import Sshd

from harness import benchmark, estimate, validate
from harness.device.diagnose import check_device
from harness.device.inventory import load_inventory
from harness.device.session import Visit, open_session
from harness.errors import BackendError, DeviceTooSlow, HarnessError, UnsupportedNetwork, WorkerDied
from harness.measure.device_requests import load_request
from harness.measure.journal.journal import Journal
from harness.measure.policy import RepeatPolicy
from harness.network.model_references import load_network
from harness.probe.probe import network_probe

DEVICE = "vendor"
TOOL = [sys.executable, "-I", "-S", str(Path(__file__).resolve().parents[1] / "stand_ins" / "stand_in_tool.py")]
WORDS = [*TOOL, "--graph={model}", "--num_runs={runs}", "--json"]
RUNS = 50  # more than any session asks for, so that a loaded probe takes one call


def describe(bench: Bench, *further: str, **changes: Any) -> None:
    """Writes devices.toml with the stand-in as the device `vendor`."""
    options = {
        "run": [*WORDS, *further],
        "version": [*TOOL, "--version"],
        "latency": "json:$.runs[*].us",
        "unit": "us",
        "clock": "device",
        "runs": RUNS,
        **changes,
    }
    lines = [f'[devices.{DEVICE}]\nbackend = "command"\nresource = "{DEVICE}"\n[devices.{DEVICE}.options]']
    lines += [f"{name} = {json.dumps(value)}" for name, value in options.items()]
    bench.workspace.devices.write_text("\n".join(lines))


def samples_of(bench: Bench) -> int:
    """All samples in the journal."""
    database = sqlite3.connect(bench.workspace.journal)
    try:
        (count,) = database.execute("SELECT count(*) FROM samples").fetchone()
    finally:
        database.close()
    return int(count)


def test_a_vendor_s_tool_does_the_main_job(bench: Bench) -> None:
    """A table measured by calling the tool estimates a network as the tool's formula does."""
    model = build_network(bench.root / "small.onnx", widths=(8,))
    describe(bench)
    bench.profile(model, device=DEVICE, connect=open_session, policy=RepeatPolicy(runs=3))
    table = bench.build(DEVICE)
    assert table.clock == "device"
    assert (table.fingerprint["runtime"], table.fingerprint["runtime_version"]) == ("command", "stand-in 1.4.2")
    (estimated,) = estimate([str(model)], device=DEVICE, workspace=bench.workspace)
    assert set(estimated.coverage.values()) == {0, len(estimated.layers)} and estimated.coverage["measured"]
    assert estimated.latency_s == pytest.approx(bench.truth.network_s(model), rel=0.02)


def test_no_latency_is_an_error_with_the_tool_s_last_words(bench: Bench) -> None:
    """The session reports the refusal in text that is safe for a terminal, and goes on."""
    describe(bench, "--misbehave=exit")
    probe = network_probe(load_network(str(bench.model)))
    with open_session(load_inventory(bench.workspace.devices)[DEVICE]) as session:
        session.acquire("the test")
        with pytest.raises(BackendError, match=r"exit code 3.*delegate not supported") as caught:
            session.put(load_request(probe))
        assert str(caught.value).isprintable()
        assert session.status()["busy"] is False


def test_nothing_of_a_tool_without_latencies_enters_the_journal(bench: Bench) -> None:
    """Without a latency there is no sample and no table; the journal holds the reason for each probe."""
    model = build_network(bench.root / "small.onnx", widths=(8,))
    describe(bench, "--misbehave=exit")
    with pytest.raises(BackendError, match=r"every probe.*exit code 3.*--fresh"):
        bench.profile(model, device=DEVICE, connect=open_session, policy=RepeatPolicy(runs=3))
    with pytest.raises(HarnessError):
        bench.build(DEVICE)
    assert samples_of(bench) == 0
    with Journal(bench.workspace.journal) as journal:
        records = [one for campaign in journal.campaigns(DEVICE) for one in journal.probes(campaign.id).values()]
    assert records and all("exit code 3" in (one.refused or "") for one in records)


def test_the_end_of_the_time_names_what_the_device_refused(bench: Bench) -> None:
    """If the time ends while a device refuses probes, the error has their number and the first reason."""
    for wall_s in (1, 5, 25, 125):  # a busy machine may take seconds to reach the first refusal
        describe(bench, run=["sh", "-c", f"sleep {wall_s / 5}; echo model too large >&2; exit 3", "{model}"])
        with pytest.raises(DeviceTooSlow) as ended:
            bench.profile(device=DEVICE, connect=open_session, policy=RepeatPolicy(runs=3, wall_s=wall_s))
        if "refused" in str(ended.value):
            break
    assert re.search(r"The device refused \d+, the first because: .*model too large", str(ended.value))


def describe_limited(bench: Bench) -> None:
    """Describe a tool that refuses models of 40 kB or more."""
    call = " ".join(f"'{word}'" for word in (*TOOL, f"--num_runs={RUNS}", "--json"))
    limit = '[ "$(wc -c < "$0")" -lt 40000 ] || { echo "model too large" >&2; exit 3; }'
    words = f"{limit}; exec {call} --graph=$0".replace("{", "{{").replace("}", "}}")
    describe(bench, run=["sh", "-c", words, "{model}"])


def test_a_strict_benchmark_ends_at_the_first_network_that_the_device_refuses(bench: Bench) -> None:
    """Networks behind it are measured only without `strict`."""
    small = build_network(bench.root / "small.onnx", widths=(8, 8))
    large = build_network(bench.root / "large.onnx", widths=(8, 64, 64))
    describe_limited(bench)
    options = {"device": DEVICE, "workspace": bench.workspace, "runs": 2}
    with pytest.raises(UnsupportedNetwork, match=str(large)):
        benchmark([large, small], strict=True, **options)  # type: ignore[arg-type]
    assert samples_of(bench) == 0
    found = benchmark([large, small], **options)  # type: ignore[arg-type]
    assert [one.network for one in found.networks] == ["small"] and samples_of(bench) > 0


def test_an_estimate_does_not_advise_to_measure_what_the_device_refused(bench: Bench, tmp_path: Path) -> None:
    """Refused layers are listed with the device's reason; those that were not tried are to be profiled."""
    small = build_network(bench.root / "small.onnx", widths=(8,))
    large = build_network(bench.root / "large.onnx", widths=(64, 64))
    bench.set_device(name=DEVICE)  # the table is that of the formula, as in the test below
    bench.profile(small, device=DEVICE, policy=RepeatPolicy(runs=3))
    bench.build(DEVICE)
    describe_limited(bench)
    harness = Harness(bench.root, tmp_path / "leases", tmp_path)
    call = ("estimate", large, "--device", DEVICE)
    assert f"with `harness profile --device {DEVICE} MODEL.onnx`" in harness(*call).stderr
    bench.profile(large, device=DEVICE, connect=open_session, policy=RepeatPolicy(runs=3))
    bench.build(DEVICE)
    found = harness(*call)
    assert found.code == 6 and "harness profile" not in found.stderr
    assert "the device refused it: " in found.stderr and "model too large" in found.stderr


def test_a_network_that_the_device_refuses_does_not_end_the_validation_of_others(bench: Bench) -> None:
    """A covered network that the tool refuses is left out of all processes and figures, and listed with its file."""
    small = build_network(bench.root / "small.onnx", widths=(8, 8))
    large = build_network(bench.root / "large.onnx", widths=(8, 64, 64))
    bench.set_device(name=DEVICE)  # the table is that of the formula; the tool then stands for an update of the device
    bench.profile(small, large, device=DEVICE, connect=open_session, policy=RepeatPolicy(runs=3))
    bench.build(DEVICE)
    describe_limited(bench)
    options = {"device": DEVICE, "workspace": bench.workspace, "policy": RepeatPolicy(runs=3), "processes": 2}
    result = validate([small, large], **options)  # type: ignore[arg-type]
    assert [one.name for one in result.networks] == ["small"]
    (refused,) = result.refused_networks
    assert (refused.file, refused.kind) == (str(large), "UnsupportedNetwork") and "model too large" in refused.why
    for models, strict in (([small, large], True), ([large], False)):
        with pytest.raises(UnsupportedNetwork, match=str(large)):
            validate(models, strict=strict, **options)  # type: ignore[arg-type]


def test_a_missing_tool_is_reported_when_the_session_opens(bench: Bench) -> None:
    """`devices check` and `profile` name the missing program."""
    describe(bench, run=["no-such-benchmark", "{model}"])
    device = load_inventory(bench.workspace.devices)[DEVICE]
    (backend,) = [check for check in check_device(device) if check.name == "backend"]
    assert backend.ok is False and "no-such-benchmark" in backend.found
    with pytest.raises(BackendError, match="no-such-benchmark"):
        bench.profile(device=DEVICE, connect=open_session)


def test_a_tool_that_fails_once_costs_no_sample(bench: Bench, tmp_path: Path) -> None:
    """Earlier samples are kept, the failed one is not among them, and the worker has ended."""
    describe(bench, "--misbehave=exit", "--at=2", f"--counter={tmp_path / 'calls'}", runs=2)
    device = load_inventory(bench.workspace.devices)[DEVICE]
    probe = network_probe(load_network(str(bench.model)))
    arrived = []
    with open_session(device) as session:
        session.acquire("the test")
        session.put(load_request(probe))
        with pytest.raises(WorkerDied, match=r"exit code 3.*delegate not supported") as caught:
            for series, _ in session.run([Visit(probe.id, 0, 1)] * 5):
                arrived += series
    assert caught.value.retry_helps
    assert [one.visit for one in arrived] == [0, 1]
    assert all(sample.device_ns for one in arrived for sample in one.samples)


def test_the_tool_runs_behind_ssh(bench: Bench, sshd: Sshd) -> None:
    """Over SSH the same agent calls the tool, with a key restricted to the agent."""
    describe(bench)
    known = load_inventory(bench.workspace.devices)[DEVICE]
    device = sshd.device(DEVICE, "command").model_copy(update={"options": known.options})
    probe = network_probe(load_network(str(bench.model)))
    with open_session(device) as session:
        assert session.hello.fingerprint["runtime_version"] == "stand-in 1.4.2"
        session.acquire("the test")
        session.put(load_request(probe))
        ((series, _),) = list(session.run([Visit(probe.id, 1, 2)]))
    expected_ns = round(bench.truth.network_s(bench.model) * 1e9)
    assert [sample.device_ns for sample in series[0].samples] == [expected_ns] * 2
