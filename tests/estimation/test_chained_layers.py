"""Known layers in unknown neighbourhoods, on a device that chains layers on chip."""

import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest
from nullbench import build_network

from device_agents.backends.emulated_npu import EmulatedNpuBackend
from harness import build_lut, estimate, profile
from harness.estimation.network_estimate import NetworkEstimate, estimate_network
from harness.lut.table import Lut
from harness.measure.device_requests import load_request
from harness.measure.policy import RepeatPolicy
from harness.network.model_references import load_network
from harness.probe.probe import network_probe
from harness.workspace import Workspace

DEVICES = """
[devices.npu]
backend = "emulated-npu"
options = { preset = "edge", noise = 0 }
"""
PROFILED = ((8, 64, 64, 64), (8, 64, 128, 128, 64))
UNSEEN = ((8, 64, 64, 64, 64, 64), (8, 64, 128, 128, 128, 64, 64), (8, 64, 64, 128, 64, 128, 64))
EDGE = 28


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Return a workspace with a quiet NPU, on which two networks were profiled."""
    workspace = Workspace(tmp_path_factory.mktemp("chained"))
    workspace.devices.write_text(DEVICES)
    networks = [_network(workspace.root, widths) for widths in PROFILED]
    profile(networks, device="npu", workspace=workspace, policy=RepeatPolicy(runs=3))
    return workspace


@pytest.fixture(scope="module")
def table(workspace: Workspace) -> Lut:
    """Return the table."""
    return build_lut("npu", workspace=workspace)


def _network(folder: Path, widths: Sequence[int]) -> Path:
    return build_network(folder / f"{'-'.join(map(str, widths))}.onnx", widths, EDGE)


def _true_s(path: Path) -> float:
    """Return the latency of a network on the NPU, without the host."""
    backend, probe = EmulatedNpuBackend({"preset": "edge", "noise": 0}), network_probe(load_network(str(path)))
    backend.load(load_request(probe))
    return backend.oracle(probe.id).makespan_s


def _on_npu_s(found: NetworkEstimate) -> float:
    assert found.latency_s is not None
    return found.latency_s - found.overhead_s


def test_mixes_of_known_layers_are_unbiased(workspace: Workspace, table: Lut) -> None:
    """Networks of known layers in other orders are estimated better than from layers alone, with honest intervals."""
    paths = [_network(workspace.root, widths) for widths in UNSEEN]
    errors, plain, outside = [], [], 0
    for path, found in zip(paths, estimate(paths, device="npu", workspace=workspace), strict=True):
        true_s = _true_s(path)
        errors.append(_on_npu_s(found) / true_s - 1)
        plain.append(_on_npu_s(_from_layers_alone(path, table)) / true_s - 1)
        assert found.latency_s is not None
        assert found.interval_s is not None
        low_s, high_s = (end - found.latency_s + _on_npu_s(found) for end in found.interval_s)
        outside += not low_s <= true_s <= high_s
    assert abs(statistics.fmean(errors)) < 0.05
    assert abs(statistics.fmean(errors)) < abs(statistics.fmean(plain))
    assert outside == 0


def _from_layers_alone(path: Path, table: Lut) -> NetworkEstimate:
    """Return the estimate from layers alone in their contexts, as from a table that knows nothing of chains."""
    entries = tuple(one for one in table.entries if "@" not in one.context)
    return estimate_network(
        load_network(str(path)), dataclasses.replace(table, entries=entries, chains=(), correlations=b"")
    )


def test_unknown_neighbourhoods_are_named_by_their_class(workspace: Workspace, table: Lut) -> None:
    """A row names the neighbourhood by its digest if it is known, and else by the sides on which it is chained."""
    (known,) = estimate([_network(workspace.root, PROFILED[0])], device="npu", workspace=workspace)
    assert {layer.context for layer in known.layers} <= {entry.context for entry in table.entries}
    (unseen,) = estimate([_network(workspace.root, UNSEEN[0])], device="npu", workspace=workspace)
    classes = {layer.context.partition("@")[2] for layer in unseen.layers}
    assert classes & {"front", "behind", "both", "none"}
    assert all(layer.stderr_s is not None and layer.stderr_s > 0 for layer in unseen.layers if layer.op == "Conv+Relu")
    assert {layer.source for layer in unseen.layers} == {"measured"}


def test_a_profiled_network_keeps_its_own_neighbourhoods(workspace: Workspace, table: Lut) -> None:
    """The chains of a table do not change the estimates of the networks that it was measured on."""
    path = _network(workspace.root, PROFILED[1])
    (found,) = estimate([path], device="npu", workspace=workspace)
    without = estimate_network(load_network(str(path)), dataclasses.replace(table, chains=()))
    assert found.latency_s == pytest.approx(without.latency_s, rel=1e-12)
    assert found.interval_s == pytest.approx(without.interval_s, rel=1e-12)
