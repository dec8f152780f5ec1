"""The part of docs/accuracy.md about kinds of auxiliary layers (S1.1) and the methods of S1, on npu01 and cpu01."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.accuracy.devices import TENTH, Errors, Run, patiently, references, truth_of
from benchmarks.accuracy.page import reached
from benchmarks.generated_page import Section, percent, table
from benchmarks.parts import say
from device_agents.messages import Truth
from harness import build_lut, profile, validate
from harness.device.inventory import BUILT_IN
from harness.device.session import open_session
from harness.errors import HarnessError
from harness.estimation.network_estimate import NetworkEstimate, estimate_network
from harness.latency.method_names import LatencyMethod
from harness.lut.table import Lut
from harness.measure.policy import RepeatPolicy
from harness.network.layers import cut
from harness.network.network import Network
from harness.network.network_list import load_networks
from harness.probe.auxiliary import AuxiliaryKind, auxiliary_for
from harness.probe.probe import network_probe
from harness.validation.oracle_comparison import NetworkTruth, compare_network, report_truth
from harness.workspace import Workspace

METHODS: tuple[LatencyMethod, ...] = ("regression", "regression-terms", "difference", "joint")
CPU_NETWORKS = ("squeezenet", "mobilenetv2", "resnet18", "dscnn", "bert_mini")
"""Fewer than on npu01, so that four campaigns fit into minutes of a quiet machine."""
MOST_PLAIN_ERROR = 0.11
_HEADER = (
    *(
        *("auxiliary layer", "method", "networks: mean error", "median", "worst", "within 10 %"),
        "inside the 95 % interval",
    ),
    *("half-width", "layers: median error", "95th percentile", "weighted by time"),
)


@dataclass(frozen=True)
class Known:
    """A network as it is: its measured latency, and the device's own account of its layers."""

    network: Network
    measured_s: float
    truth: Truth


@dataclass(frozen=True)
class Score:
    """How far the estimates of one table are off: networks, their 95 % intervals, and layers."""

    networks: Errors
    held: int
    halfwidth: float
    layers: tuple[float | None, float | None, float | None]

    def cells(self) -> tuple[str, ...]:
        """Return the row of the table, without its first two columns."""
        errors = self.networks
        shares = (percent(errors.mean), percent(errors.median), percent(errors.worst))
        counts = (errors.share(TENTH), f"{self.held} of {len(errors.errors)}", f"±{percent(self.halfwidth, 0)}")
        return *shares, *counts, *("–" if one is None else percent(one) for one in self.layers)


def auxiliary_section(run: Run) -> Section:
    """Profile with each kind, build a table by each method, and compare all with one measurement of the networks."""
    texts, targets = [], []
    for device, names in (("npu01", run.networks), ("cpu01", [one for one in CPU_NETWORKS if _chosen(run, one)])):
        scores, machine = measure_kinds(run, device, names)
        default = auxiliary_for("device" if device == "npu01" else "cpu")
        rows = [
            (f"{kind}{' (default)' if kind == default else ''}", f"`{method}`", *(one.cells() if one else ()))
            for (kind, method), one in scores.items()
        ]
        texts.append(f"**{device}**, {len(names)} networks; machine {machine}.\n\n{table(_HEADER, rows)}")
        plain = scores[default, "regression"]
        if plain is not None:
            mean = plain.networks.mean
            met = mean <= MOST_PLAIN_ERROR if device == "npu01" else None
            targets.append(reached(f"{device}: plain S1, networks, mean error", percent(mean), met))
            figure = f"{plain.held} of {len(plain.networks.errors)}, median half-width {percent(plain.halfwidth, 0)}"
            targets.append(reached(f"{device}: plain S1, 95 % intervals of networks", figure, None))
    return Section("\n\n".join(texts), tuple(targets))


def _chosen(run: Run, name: str) -> bool:
    return not run.quick or name in run.networks


def measure_kinds(
    run: Run, device: str, names: Sequence[str]
) -> tuple[Mapping[tuple[AuxiliaryKind, LatencyMethod], Score | None], str]:
    """Return a score for each kind and method, None where no table could be built, and the verdict on the machine."""
    found: dict[tuple[AuxiliaryKind, LatencyMethod], Score | None] = {}
    known: list[Known] = []
    verdict = "not known"
    for kind in AuxiliaryKind:
        workspace = run.workspace(f"kinds-{device}-{kind}")
        say(f"kinds: {device}, {kind}: profiling {len(names)} networks")
        _profile(device, names, kind, workspace)
        tables = {method: _table(device, workspace, method) for method in METHODS}
        default = tables["joint"]
        if not known and default is not None:
            known, verdict = _measure(device, names, default, workspace)
        found |= {(kind, method): None if one is None else _score(one, known) for method, one in tables.items()}
    return found, verdict


def _profile(device: str, names: Sequence[str], kind: AuxiliaryKind, workspace: Workspace) -> None:
    patiently(
        lambda: profile(
            references(names), device=device, workspace=workspace, policy=RepeatPolicy(), auxiliary=kind.value
        )
    )


def _table(device: str, workspace: Workspace, method: LatencyMethod) -> Lut | None:
    try:
        return build_lut(device, workspace=workspace, method=method)
    except HarnessError as error:
        say(f"kinds: {device}: no table by {method}: {error}")
        return None


def _measure(device: str, names: Sequence[str], known: Lut, workspace: Workspace) -> tuple[list[Known], str]:
    """Measure the networks in three processes, and ask the device for their layers."""
    models = references(names)
    validation = patiently(lambda: validate(models, device=device, lut=known.path, workspace=workspace))
    measured_s = {network.name: network.measured_s for network in validation.networks}
    found = []
    with open_session(BUILT_IN[device], "validation") as session:
        session.acquire()
        for network in load_networks(models):
            found.append(Known(network, measured_s[network.name], truth_of(session, network)))
    return found, "not known" if validation.machine is None else validation.machine.text


def _score(one: Lut, known: Sequence[Known]) -> Score:
    estimates = [estimate_network(each.network, one) for each in known]
    covered = [(each, own) for each, own in zip(known, estimates, strict=True) if own.latency_s and own.interval_s]
    errors, held, widths = [], 0, []
    for each, own in covered:
        (low, high), latency_s = own.interval_s or (0.0, 0.0), own.latency_s or 0.0
        errors.append(latency_s / each.measured_s - 1)
        held += low <= each.measured_s <= high
        widths.append((high - low) / 2 / latency_s)
    report = report_truth(one.overhead, known[0].truth, [_compared(one, each, own) for each, own in covered])
    layers = (report.median_error, report.p95_error, report.time_weighted_error)
    return Score(Errors(tuple(errors)), held, float(np.median(widths)), layers)


def _compared(one: Lut, known: Known, own: NetworkEstimate) -> NetworkTruth:
    layers = cut(known.network, one.rules)
    return compare_network(own, layers, network_probe(known.network).model.names, [known.truth])
