"""The part of docs/accuracy.md about networks whose layers were not measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from accuracy_devices import REJECTED_P, TENTH, TWENTIETH, Errors, Measured, Run, p_of_90, references, say
from accuracy_page import Reached, Section, milliseconds, percent, signed, table, yes
from leave_one_out import Measured as Tabled
from leave_one_out import samples_of

from harness.errors import UsageError
from harness.estimation.networks import estimate_network
from harness.lut.table import Lut
from harness.network.layers import cut
from harness.network.models import load_networks
from harness.predictor.described import describe
from harness.predictor.fit import fit_predictor
from harness.predictor.intervals import NORMAL_90
from harness.predictor.sums import stderr_of_sum

DEVICES = ("npu01", "cpu01")
FEWEST_DRAWS = 1_000
"""Layers are drawn again with another seed of the predictor until there are so many."""
MOST_SEEDS = 5
WITHIN = {"npu01": (0.03, 14), "cpu01": (0.06, 12)}
"""Wanted: the median error, and how many of 15 within 10 %."""


@dataclass(frozen=True)
class LeftOut:
    """A network that was predicted; errors are relative, `half_width` is of the 90 % interval.

    `held` and `layer_errors` are of its entries, each once; `weighted` is the error of its layers by time.
    """

    name: str
    learnt: int
    measured_s: float
    estimated_s: float
    half_width: float
    layer_errors: tuple[float, ...]
    weighted: float
    held: tuple[bool, ...]

    @property
    def error(self) -> float:
        """Against the network as it was measured."""
        return self.estimated_s / self.measured_s - 1

    @property
    def holds(self) -> bool:
        """Whether the 90 % interval holds the measurement."""
        return abs(self.estimated_s - self.measured_s) <= self.half_width * self.estimated_s


def leave_out_section(run: Run) -> Section:
    """Both devices, one network left out after the other."""
    texts, reached = [], []
    for device in DEVICES:
        text, rows = _device(run, device)
        texts.append(text)
        reached.extend(rows)
    return Section("\n\n".join(texts), tuple(reached))


def _device(run: Run, device: str) -> tuple[str, list[Reached]]:
    measured = run.device(device)
    names = run.networks[-1:] if run.quick else run.networks
    found = every_network(measured, names, seed=0)
    if not found:
        return f"**{device}**: too few layers to leave a network out.", []
    draws = [hit for one in found for hit in one.held]
    seeds = 1
    while len(draws) < FEWEST_DRAWS and seeds < MOST_SEEDS and not run.quick:
        draws += [hit for one in every_network(measured, names, seeds) for hit in one.held]
        seeds += 1
    errors = Errors(tuple(one.error for one in found))
    networks_held, share = sum(one.holds for one in found), statistics.fmean(draws)
    networks_p, layers_p = p_of_90(networks_held, len(found)), p_of_90(sum(draws), len(draws))
    header = (
        "network", "entries learnt", "measured ms", "predicted ms", "error", "90 % interval", "holds",
        "median error of layers", "by time", "layers held",
    )  # fmt: skip
    text = "\n\n".join(
        (
            f"**{device}**",
            table(header, [_row(one) for one in found]),
            f"Networks: median {percent(errors.median)}, mean {percent(errors.mean)}, worst {percent(errors.worst)}, "
            f"within 5 %: {errors.of(TWENTIETH)}, within 10 %: {errors.of(TENTH)}; 90 % intervals hold in "
            f"{networks_held} of {len(found)} (p = {networks_p:.2g}). Layers: 90 % intervals hold in "
            f"{percent(share)} of {len(draws):,} (p = {layers_p:.2g}; seeds of the predictor: {seeds}).",
        )
    )
    median, count = WITHIN[device]
    layers_held = 0.88 <= share <= 0.92 if device == "npu01" else layers_p >= REJECTED_P
    return text, [
        Reached(f"{device}, network left out: median error", percent(errors.median), errors.median <= median),
        Reached(f"{device}, network left out: within 10 %", errors.of(TENTH), errors.has_share(TENTH, count, 15)),
        Reached(
            f"{device}: 90 % intervals of left-out layers hold",
            f"{percent(share)} of {len(draws):,}, p = {layers_p:.2g}",
            layers_held,
        ),
        Reached(
            f"{device}: 90 % intervals of left-out networks hold",
            f"{networks_held} of {len(found)}, p = {networks_p:.2g}",
            networks_p >= REJECTED_P,
        ),
    ]


def every_network(measured: Measured, names: Sequence[str], seed: int) -> list[LeftOut]:
    """Leaves out one of the named networks after the other; those without which too few layers are left are passed over."""
    tabled = tabled_networks(measured.table, [network.name for network in measured.networks])
    measured_s = {network.name: network.measured_s for network in measured.networks}
    found = []
    for network in (one for one in tabled if one.name in names):
        try:
            found.append(left_out(measured.table, tabled, network, measured_s[network.name], seed))
        except UsageError as error:
            say(f"{network.name} cannot be left out: {error}")
    return found


def tabled_networks(table_of_device: Lut, names: Sequence[str]) -> list[Tabled]:
    """Networks by the table: the text of each layer's key with its latency."""
    found = []
    for network in load_networks(references(names)):
        estimated = estimate_network(network, table_of_device)
        layers = zip(cut(network, table_of_device.rules), estimated.layers, strict=True)
        known = [(layer.key.text, one.latency_s) for layer, one in layers if one.latency_s and one.source == "measured"]
        if len(known) == len(estimated.layers):
            found.append(Tabled(network.name, estimated.overhead_s, tuple(known)))
    return found


def left_out(known: Lut, networks: Sequence[Tabled], asked: Tabled, measured_s: float, seed: int) -> LeftOut:
    """Predicts a network by a predictor that has learnt no layer that the network has."""
    own = {signature for signature, _ in asked.layers}
    others = [network for network in networks if network is not asked]
    samples = samples_of([entry for entry in known.entries if entry.signature not in own], others)
    predictor = fit_predictor(samples, seed=seed)
    features = [describe(signature) for signature, _ in asked.layers]
    layers = [layer for layer in features if layer is not None]
    if len(layers) != len(features):
        raise SystemExit(f"{asked.name} has layers that the predictor does not describe")
    predicted = predictor.predict_all(layers)
    estimated_s = asked.overhead_s + math.fsum(one.latency_s for one in predicted)
    pairs = list(zip(asked.layers, predicted, strict=True))
    entries = {(signature, layer_s): one for (signature, layer_s), one in pairs}
    return LeftOut(
        asked.name,
        len(samples),
        measured_s,
        estimated_s,
        NORMAL_90 * stderr_of_sum(layers, predicted) / estimated_s,
        tuple(one.latency_s / layer_s - 1 for (_, layer_s), one in entries.items()),
        sum(abs(one.latency_s - layer_s) for (_, layer_s), one in pairs) / sum(layer_s for _, layer_s in asked.layers),
        tuple(one.low_s <= layer_s <= one.high_s for (_, layer_s), one in entries.items()),
    )


def _row(one: LeftOut) -> tuple[object, ...]:
    return (
        one.name,
        one.learnt,
        milliseconds(one.measured_s),
        milliseconds(one.estimated_s),
        f"**{signed(one.error)}**",
        f"±{percent(one.half_width)}",
        yes(one.holds),
        percent(statistics.median(map(abs, one.layer_errors))),
        percent(one.weighted),
        f"{sum(one.held)} of {len(one.held)}",
    )
