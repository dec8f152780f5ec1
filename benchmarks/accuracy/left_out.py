"""The part of docs/accuracy.md about networks whose layers were not measured: each network is left out in turn."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.accuracy.devices import REJECTED_P, TENTH, TWENTIETH, Errors, Measured, Run, p_of_90, references
from benchmarks.accuracy.page import reached
from benchmarks.generated_page import Reached, Section, milliseconds, percent, signed, table, yes
from benchmarks.parts import say
from harness.estimation.layer_estimates import MOSTLY
from harness.estimation.network_estimate import estimate_network
from harness.lut.learning import learn_predictor
from harness.lut.table import Lut
from harness.measure.summary import Z_95
from harness.network.layers import context_of, cut
from harness.network.network import Network
from harness.network.network_list import load_networks
from harness.predictor.features.key_features import describe
from harness.predictor.predictor import Predictor
from harness.predictor.uncertainty.intervals import NORMAL_90

DEVICES = ("npu01", "cpu01")
_HEADER = (
    *("network", "training entries", "measured ms", "predicted ms", "error", "90 % interval", "holds"),
    *("median error of layers", "weighted by time", "layers held"),
)
WITHIN = {"npu01": (0.03, 14), "cpu01": (0.06, 12)}
"""Targets of a device: the median error, and how many of 15 networks within 10 %."""


@dataclass(frozen=True)
class LeftOut:
    """A network predicted from a table without its layers.

    `training_entries` is the number of entries that the predictor learned from, `half_width_s` half the 90 % interval.
    `held` and `layer_errors` (relative) have one value for each distinct layer; `weighted` is the error of the layers
    weighted by time.
    """

    name: str
    training_entries: int
    measured_s: float
    estimated_s: float
    half_width_s: float
    layer_errors: tuple[float, ...]
    weighted: float
    held: tuple[bool, ...]

    @property
    def error(self) -> float:
        """The relative error against the measured network."""
        return self.estimated_s / self.measured_s - 1

    @property
    def holds(self) -> bool:
        """Whether the 90 % interval holds the measurement."""
        return abs(self.estimated_s - self.measured_s) <= self.half_width_s


def leave_out_section(run: Run) -> Section:
    """Leave out one network after the other on both devices."""
    texts, targets = [], []
    for device in DEVICES:
        text, rows = _device(run, device)
        texts.append(text)
        targets.extend(rows)
    return Section("\n\n".join(texts), tuple(targets))


def _device(run: Run, device: str) -> tuple[str, list[Reached]]:
    measured = run.device(device)
    names = run.networks[-1:] if run.quick else run.networks
    found = every_network(measured, names)
    if not found:
        return f"**{device}**: too few layers to leave a network out.", []
    draws = [hit for one in found for hit in one.held]
    errors = Errors(tuple(one.error for one in found))
    networks_held, share = sum(one.holds for one in found), statistics.fmean(draws)
    networks_p, layers_p = p_of_90(networks_held, len(found)), p_of_90(sum(draws), len(draws))
    text = "\n\n".join(
        (
            f"**{device}**",
            table(_HEADER, [_row(one) for one in found]),
            f"Networks: median {percent(errors.median)}, mean {percent(errors.mean)}, worst {percent(errors.worst)}, "
            f"within 5 %: {errors.share(TWENTIETH)}, within 10 %: {errors.share(TENTH)}. Inside their 90 % "
            f"interval are {networks_held} of {len(found)} networks (binomial test: p = {networks_p:.2g}) and "
            f"{percent(share)} of {len(draws):,} layers (p = {layers_p:.2g}).",
        )
    )
    median, count = WITHIN[device]
    layers_held = 0.88 <= share <= 0.92 if device == "npu01" else layers_p >= REJECTED_P
    return text, [
        reached(f"{device}, network left out: median error", percent(errors.median), errors.median <= median),
        reached(f"{device}, network left out: within 10 %", errors.share(TENTH), errors.has_share(TENTH, count, 15)),
        reached(
            f"{device}: left-out layers inside their 90 % interval",
            f"{percent(share)} of {len(draws):,}, p = {layers_p:.2g}",
            layers_held,
        ),
        reached(
            f"{device}: left-out networks inside their 90 % interval",
            f"{networks_held} of {len(found)}, p = {networks_p:.2g}",
            networks_p >= REJECTED_P,
        ),
    ]


def every_network(measured: Measured, names: Sequence[str]) -> list[LeftOut]:
    """Leave out each named network in turn; skip those without which too few layers are left to learn from."""
    measured_s = {network.name: network.measured_s for network in measured.networks}
    found = [
        left_out(measured.table, network, measured_s[network.name]) for network in load_networks(references(names))
    ]
    return [one for one in found if one is not None]


def left_out(known: Lut, network: Network, measured_s: float) -> LeftOut | None:
    """Estimate a network from the table without its layers, with a predictor that learned from the other entries.

    None if too few entries are left for a predictor, or if a layer of the network cannot be described.
    """
    layers = cut(network, known.rules)
    own = {layer.key.digest for layer in layers}
    kept = tuple(entry for entry in known.entries if entry.key not in own)
    broken = {row.network for row in known.chains if row.key in own}
    chains = tuple(row for row in known.chains if row.network not in broken)
    reduced = replace(known, entries=kept, correlations=b"", predictor=learn_predictor(kept, chains), chains=chains)
    estimated = estimate_network(network, reduced)
    if estimated.latency_s is None or estimated.interval_s is None:
        say(f"{network.name} cannot be left out: {len(kept)} entries, {len(estimated.unknown)} layers are unknown")
        return None
    say(f"{network.name} left out: {signed(estimated.latency_s / measured_s - 1)}")
    is_warm = known.cold_share(network.constant_bytes(network.nodes), measured_s) <= MOSTLY
    features = {
        layer.key.digest: describe(layer.key.text, context_of(network, layer), warm=is_warm) for layer in layers
    }
    described = {key: layer for key, layer in features.items() if layer is not None}
    intervals = dict(zip(described, Predictor(reduced.predictor).predict_all(list(described.values())), strict=True))
    tabled = [(one.key, one.latency_s) for one in estimate_network(network, known).layers if one.latency_s is not None]
    entries = [(intervals[key], latency_s) for key, latency_s in dict.fromkeys(tabled)]
    off_s = [abs(intervals[key].latency_s - latency_s) for key, latency_s in tabled]
    return LeftOut(
        network.name,
        len(kept),
        measured_s,
        estimated.latency_s,
        NORMAL_90 / Z_95 * (estimated.interval_s[1] - estimated.latency_s),
        tuple(one.latency_s / latency_s - 1 for one, latency_s in entries),
        math.fsum(off_s) / math.fsum(latency_s for _, latency_s in tabled),
        tuple(one.low_s <= latency_s <= one.high_s for one, latency_s in entries),
    )


def _row(one: LeftOut) -> tuple[object, ...]:
    return (
        one.name,
        one.training_entries,
        milliseconds(one.measured_s),
        milliseconds(one.estimated_s),
        f"**{signed(one.error)}**",
        f"±{percent(one.half_width_s / one.estimated_s)}",
        yes(one.holds),
        percent(statistics.median(map(abs, one.layer_errors))),
        percent(one.weighted),
        f"{sum(one.held)} of {len(one.held)}",
    )
