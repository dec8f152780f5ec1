"""Part of docs/accuracy.md about known layers in unknown neighbourhoods: mixes of built-in networks on npu01."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from benchmarks.accuracy.devices import Errors, Run, patiently, references
from benchmarks.accuracy.mixes import mixes
from benchmarks.accuracy.page import reached
from benchmarks.generated_page import Section, percent, signed, table
from benchmarks.parts import say
from harness.device.inventory import BUILT_IN
from harness.device.session import AgentSession, Truth, open_session
from harness.estimation.network_estimate import NetworkEstimate, estimate_network
from harness.lut.table import Lut
from harness.measure.device_requests import load_request
from harness.network.network import Network
from harness.network.network_list import load_networks
from harness.probe.probe import network_probe

MIXED = (
    ("resnet50", "inception_v2", "vgg19", "densenet121"),
    ("inception_v1", "shufflenet", "squeezenet", "alexnet", "zfnet512"),
    ("mobilenetv2", "resnet18", "efficientnet_b0", "vit_tiny", "dscnn"),
)
"""Networks of one operator set each."""
DRAWS, SEED = 30, 1
QUICK_DRAWS = 3
BIAS = 0.02


@dataclasses.dataclass(frozen=True)
class _Mix:
    """Relative errors of one mix: of the whole, on the processor, and that of a table without chains."""

    error: float
    on_processor: float
    from_layers: float
    within_interval: bool


def known_layers_section(run: Run) -> Section:
    """Estimate mixes of profiled networks, and compare them with the device's own times."""
    lut = run.device("npu01").table
    rows, found = [], []
    with open_session(BUILT_IN["npu01"], "validation") as session:
        patiently(session.acquire)
        for group in MIXED:
            names = [name for name in group if name in run.networks]
            say(f"npu01: mixes of {', '.join(names)}")
            errors = _errors(session, lut, names, QUICK_DRAWS if run.quick else DRAWS) if names else []
            found += errors
            rows += [_row(", ".join(names), errors)] if errors else []
    header = (
        "mixes of",
        "mixes",
        "mean error",
        "mean absolute",
        "worst",
        "on the processor",
        "from layers alone",
        "95 %",
    )
    last = [_row("**all**", found)] if found else []
    bias = statistics.fmean(one.error for one in found) if found else None
    target = reached(
        "npu01: known layers in unknown neighbourhoods, mean error",
        "–" if bias is None else signed(bias, 2),
        None if bias is None else abs(bias) <= BIAS,
    )
    return Section(table(header, [*rows, *last]), (target,))


def _errors(session: AgentSession, lut: Lut, names: Sequence[str], draws: int) -> list[_Mix]:
    known = {entry.key for entry in lut.entries}
    plain = dataclasses.replace(lut, chains=())
    networks = load_networks(references(names))
    found = []
    for mix in mixes(networks, lut.rules, known, draws, SEED):
        truth = _truth(session, mix)
        estimates = estimate_network(mix, lut), estimate_network(mix, plain)
        found.append(_compare(mix, truth, *estimates))
    return found


def _truth(session: AgentSession, mix: Network) -> Truth:
    probe = network_probe(mix)
    session.put(load_request(probe))
    truth = session.oracle(probe.id)
    session.drop([probe.id])
    return truth


def _compare(mix: Network, truth: Truth, found: NetworkEstimate, plain: NetworkEstimate) -> _Mix:
    overhead = truth.overhead
    if overhead is None or found.latency_s is None or plain.latency_s is None or found.interval_s is None:
        raise ValueError(f"{mix.name} is not covered, or npu01 does not report its overhead")
    true_s = truth.makespan_s + overhead.c_s
    true_s += overhead.a_s_per_byte * mix.input_bytes + overhead.b_s_per_byte * mix.output_bytes
    low_s, high_s = found.interval_s
    return _Mix(
        found.latency_s / true_s - 1,
        (found.latency_s - found.overhead_s) / truth.makespan_s - 1,
        plain.latency_s / true_s - 1,
        low_s <= true_s <= high_s,
    )


def _row(label: str, found: Sequence[_Mix]) -> tuple[str, ...]:
    errors = Errors(tuple(one.error for one in found))
    return (
        label,
        str(len(found)),
        signed(statistics.fmean(errors.errors)),
        percent(errors.mean),
        signed(max(errors.errors, key=abs)),
        signed(statistics.fmean(one.on_processor for one in found)),
        signed(statistics.fmean(one.from_layers for one in found)),
        f"{sum(one.within_interval for one in found)} of {len(found)}",
    )
