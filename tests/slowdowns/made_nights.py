"""Nights made by a formula: layers, null probes and a network on a device with a drifting host."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from harness.measure.journal.records import ProbeRecord
from harness.probe.overhead_terms import OverheadTerms
from harness.probe.probe import Role
from harness.slowdowns.findings import Subject
from harness.slowdowns.watch_series import WatchedLayer, WatchSeries

LAYERS = 12
HOST_S = (70e-6, 1e-9, 0.75e-9)
JITTER = 0.003


def layer_name(at: int) -> str:
    """Return the name of a layer by its number."""
    return f"layer{at}"


def own_s(at: int) -> float:
    """Return the latency of a layer."""
    return 10e-6 * 1.3**at


@dataclass(frozen=True)
class MadeDevice:
    """A device with factors on the latency of `slow` layers (by number), of the whole device, and of the host.

    `nightly` is the relative scatter of each probe from night to night.
    """

    slow: Mapping[int, float] = field(default_factory=dict)
    device: float = 1.0
    host: float = 1.0
    nightly: float = 0.0
    runs: int = 60
    clock: str = "device"
    fingerprint: Mapping[str, str] = field(default_factory=lambda: {"runtime_version": "1", "cpu": "made"})
    layers: int = LAYERS

    def night(self, number: int, seed: int = 0) -> WatchSeries:
        """Return the watch of a night, by its number."""
        random = np.random.default_rng([seed, number])
        probes: dict[str, ProbeRecord] = {}
        totals: dict[str, tuple[float, float]] = {}
        watched: list[WatchedLayer] = []

        def add(probe: str, role: Role, label: str, terms: OverheadTerms, own: float) -> None:
            host = (HOST_S[0] + HOST_S[1] * terms.input_bytes + HOST_S[2] * terms.output_bytes) * self.host
            probes[probe] = ProbeRecord(probe, role, label, None, terms, "cold", None)
            totals[probe] = (host, own * self.device)

        for number_of, edge in enumerate((8, 16, 32, 64, 96, 128)):
            for stride in (1, 4):
                terms = OverheadTerms(12 * edge**2, 12 * (edge // stride) ** 2, auxiliaries=1)
                add(f"c{number_of}{stride}", "calibration", f"null {edge} /{stride}", terms, 0.0)
        for at in range(self.layers):
            terms = OverheadTerms(2000 * (at + 1), 500 * (at + 1), auxiliaries=1)
            add(f"n{at}", "null", f"null of {at}", terms, 1e-6)
            inside = replace(terms, output_bytes=700 * (at + 1))
            add(f"p{at}", "context", layer_name(at), inside, 1e-6 + own_s(at) * self.slow.get(at, 1.0))
            watched.append(WatchedLayer(Subject("layer", layer_name(at), "Conv", ("net",)), f"p{at}", f"n{at}", 1))
        whole = sum(own_s(at) * self.slow.get(at, 1.0) for at in range(self.layers))
        add("whole", "network", "net", OverheadTerms(602_112, 4000), whole)
        samples = {}
        for probe, (host, own) in totals.items():
            off = 1 + self.nightly * random.standard_normal()
            spikes = np.where(random.random(self.runs) < 0.005, random.exponential(2e-3, self.runs), 0.0)
            taken = host * random.lognormal(0.0, JITTER, self.runs) + own
            samples[probe] = np.round(taken * off * 1e9 + spikes * 1e9) / 1e9
        date = f"2026-{1 + number // 28:02d}-{1 + number % 28:02d}T01:00:00+00:00"
        return WatchSeries(
            number + 1, "made", date, self.clock, dict(self.fingerprint), tuple(watched), probes, (samples,)
        )
