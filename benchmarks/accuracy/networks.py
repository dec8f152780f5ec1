"""Parts of docs/accuracy.md about whole networks and their layers: npu01, cpu01 and cpu-openvino."""

import statistics
from collections.abc import Sequence

import numpy as np

from benchmarks.accuracy.devices import TENTH, TWENTIETH, Errors, Measured, Run, patiently, references
from benchmarks.accuracy.page import reached
from benchmarks.accuracy.rows import (
    COEFFICIENTS,
    ESTIMATE_HEADER,
    cost_sentence,
    estimate_cells,
    furthest_table,
    interval_sentence,
    interval_target,
    overhead_table,
    summary_rows,
)
from benchmarks.generated_page import Reached, Section, milliseconds, percent, table
from harness.device.inventory import BUILT_IN
from harness.device.session import AgentSession, open_session
from harness.estimation.network_estimate import estimate_network
from harness.lut.table import Lut
from harness.measure.device_requests import load_request
from harness.network.disjoint_sets import DisjointSets
from harness.network.layers import cut
from harness.network.network import Network
from harness.network.network_list import load_networks
from harness.network.runtime_graph.formats import read_runtime_graph
from harness.probe.probe import network_probe
from harness.validation.oracle_comparison import (
    COUNTED_SHARE,
    LONG_LAYER_S,
    LayerTruth,
    NetworkTruth,
    OracleReport,
    layer_floor,
)

OPENVINO_NETWORKS = ("resnet50", "mobilenetv2", "squeezenet", "efficientnet_b0", "bert_mini")


def npu_section(run: Run) -> Section:
    """Compare overhead, networks, layers and chains of npu01 with the oracle."""
    measured = run.device("npu01")
    oracle = oracle_of(measured)
    by_name = {network.name: network for network in oracle.networks}
    rows = [
        (
            network.name,
            milliseconds(network.measured_s),
            *estimate_cells(network, measured),
            *_counted_cells(by_name[network.name]),
        )
        for network in measured.networks
    ]
    header = ("network", "measured ms", *ESTIMATE_HEADER, "layers counted", "median error", "95th percentile")
    last = (oracle.counted, percent(oracle.median_error), percent(oracle.p95_error))
    models = references(run.networks)
    chains = Errors(tuple(patiently(lambda: chain_errors("npu01", measured.table, models))))
    coefficients = [abs(one.error) for one in oracle.overhead.values() if one.error is not None]
    errors = Errors(tuple(network.error for network in measured.networks))
    text = "\n\n".join(
        (
            cost_sentence(measured),
            overhead_table(measured, oracle),
            table(header, [*rows, *summary_rows(measured, last)]),
            interval_sentence(measured),
            f"Only layers and chains that take more than {percent(COUNTED_SHARE, 0)} of their network's time are "
            "counted. " + _chain_sentence(chains),
            "The layers with the largest errors relative to their network's time:",
            furthest_table(oracle),
        )
    )
    targets = [
        _figure("npu01: layers against the oracle, median error", oracle.median_error, 0.01),
        _figure("npu01: layers against the oracle, 95th percentile", oracle.p95_error, 0.03),
        _figure("npu01: networks, worst error", errors.worst, TWENTIETH),
        _figure("npu01: networks, RMSPE", errors.rmspe, 0.015),
        _figure("npu01: a, b, c, worst error", max(coefficients), 0.02),
    ]
    return Section(text, (*targets, interval_target("npu01", measured)))


def cpu_section(run: Run) -> Section:
    """Measure networks of cpu01 in several processes, and compare layers with the runtime's own profile."""
    measured = run.device("cpu01")
    oracle = oracle_of(measured)
    errors = Errors(tuple(network.error for network in measured.networks))
    targets = [
        _figure("cpu01: layers against the profile, time-weighted error", oracle.time_weighted_error, 0.01),
        _figure("cpu01: layers above 50 µs, mean error", oracle.mean_error_long, 0.06),
        _figure("cpu01: networks, median error", errors.median, 0.015),
        _figure("cpu01: networks, mean error", errors.mean, 0.03),
        reached("cpu01: networks within 10 %", errors.share(TENTH), errors.has_share(TENTH, 1, 1)),
        reached("cpu01: networks within 5 %", errors.share(TWENTIETH), errors.has_share(TWENTIETH, 13, 15)),
    ]
    return Section(runtime_text(measured), (*targets, interval_target("cpu01", measured)))


def threads_section(run: Run) -> Section:
    """Measure networks of cpu01 with two threads."""
    measured = run.device("cpu01", threads=2)
    errors = Errors(tuple(network.error for network in measured.networks))
    figure = f"{errors.share(TENTH)}, median {percent(errors.median)}"
    return Section(runtime_text(measured), (reached("cpu01, 2 threads: networks within 10 %", figure, None),))


def openvino_section(run: Run) -> Section:
    """Measure cpu-openvino: the same table, with layers cut as this runtime reports its fusion."""
    networks = run.networks[-2:] if run.quick else OPENVINO_NETWORKS
    measured = run.device("cpu-openvino", networks)
    errors = Errors(tuple(network.error for network in measured.networks))
    fusing = [rule for rule in measured.table.rules if rule.holds]
    words = f"OpenVINO fuses {len(fusing)} patterns"
    if fusing:
        shown = sorted(fusing, key=lambda rule: -rule.fused)[:3]
        words += "; most often " + ", ".join(f"`{rule.pattern}` ({rule.fused} times)" for rule in shown)
    figure = f"{errors.share(TENTH)}, median {percent(errors.median)}"
    target = reached("cpu-openvino: networks within 10 %", figure, None)
    return Section(f"{runtime_text(measured)}\n\n{words}.", (target,))


def runtime_text(measured: Measured) -> str:
    """Return the tables of a runtime on a processor."""
    oracle = oracle_of(measured)
    by_name = {network.name: network for network in oracle.networks}
    header = (
        *("network", "measured ms, each process", "floor", *ESTIMATE_HEADER),
        *("beyond the floor", "layers, weighted by time", "floor of layers", "mean above 50 µs"),
    )
    rows = [
        (
            network.name,
            " / ".join(map(milliseconds, network.processes_s)),
            percent(network.repeatability),
            *estimate_cells(network, measured),
            percent(network.error_beyond_floor),
            percent(time_weighted(by_name[network.name].layers)),
            percent(layer_floor(by_name[network.name].layers)),
            percent(_mean_long(by_name[network.name].layers)),
        )
        for network in measured.networks
    ]
    beyond = percent(measured.validation.mape_beyond_floor)
    last = (beyond, percent(oracle.time_weighted_error), percent(oracle.repeatability), percent(oracle.mean_error_long))
    overhead = measured.table.overhead
    fitted = ", ".join(
        f"{letter} = {coefficient.value * scale:.3g} {unit} [{coefficient.low * scale:.3g}, "
        f"{coefficient.high * scale:.3g}]"
        for letter, column, unit, scale in COEFFICIENTS.values()
        for coefficient in [overhead.coefficients[column]]
    )
    quality = f"R² {overhead.r2:.4f}, condition number {overhead.condition:.1f}, {overhead.probes} null probes"
    return "\n\n".join(
        (
            cost_sentence(measured),
            f"Overhead: {fitted}; {quality}.",
            table(header, [*rows, *summary_rows(measured, last, floor=percent(measured.validation.floor))]),
            interval_sentence(measured),
            "The layers with the largest errors relative to their network's time:",
            furthest_table(oracle),
        )
    )


def oracle_of(measured: Measured) -> OracleReport:
    """Return the latencies that the device reports for its layers; exit if it reports none."""
    if measured.validation.oracle is None:
        raise SystemExit(f"{measured.validation.device} reports no latencies of its layers")
    return measured.validation.oracle


def time_weighted(layers: Sequence[LayerTruth]) -> float:
    """Return the sum of absolute errors over the sum of true times."""
    return sum(abs(one.estimated_s - one.true_s) for one in layers) / sum(one.true_s for one in layers)


def _mean_long(layers: Sequence[LayerTruth]) -> float | None:
    errors = [abs(layer.error or 0.0) for layer in layers if layer.true_s > LONG_LAYER_S]
    return statistics.fmean(errors) if errors else None


def _counted_cells(network: NetworkTruth) -> tuple[str, str, str]:
    errors = [abs(layer.error or 0.0) for layer in network.layers if layer.share > COUNTED_SHARE]
    return str(len(errors)), percent(statistics.median(errors)), percent(float(np.quantile(errors, 0.95)))


def _chain_sentence(chains: Errors) -> str:
    if not chains.errors:
        return "The device reports no chains."
    p95 = float(np.quantile(np.abs(chains.errors), 0.95))
    return (
        f"If the layers of each chain are summed, {len(chains.errors)} layers and chains are counted; their median "
        f"error is {percent(chains.median)}, the 95th percentile {percent(p95)}."
    )


def _figure(target: str, value: float | None, limit: float) -> Reached:
    return reached(target, percent(value, 2), None if value is None else value <= limit)


def chain_errors(device: str, table: Lut, models: Sequence[str]) -> list[float]:
    """Return relative errors of the chains above COUNTED_SHARE of their network's latency.

    A layer outside all chains counts as a chain of its own. Empty if the device reports no chains.
    """
    with open_session(BUILT_IN[device], "validation") as session:
        session.acquire()
        return [error for network in load_networks(models) for error in _errors_of(session, network, table)]


def _errors_of(session: AgentSession, network: Network, table: Lut) -> list[float]:
    probe = network_probe(network)
    revealed = session.put(load_request(probe, reveal=True))
    truth = session.oracle(probe.id)
    session.drop([probe.id])
    if revealed is None:
        return []
    runtime_graph = read_runtime_graph(network, probe.model.names, revealed.format, revealed.content)
    if not runtime_graph.chains:
        return []
    layers = cut(network, table.rules)
    owner = {node.index: at for at, layer in enumerate(layers) for node in layer.graph.nodes}
    together = DisjointSets(range(len(layers)))
    true_s = [0.0] * len(layers)
    for executed in truth.layers:
        touched = [owner[probe.model.names.nodes[node]] for node in executed.nodes]
        if touched:
            together.join(touched)
            true_s[touched[0]] += executed.latency_s
    for chain in runtime_graph.chains:
        together.join(sorted({owner[index] for index in chain}))
    known = estimate_network(network, table)
    latencies_s = [layer.remainder_s or 0.0 for layer in known.layers]
    sums = [(sum(true_s[at] for at in group), sum(latencies_s[at] for at in group)) for group in together.groups()]
    least_s = COUNTED_SHARE * (truth.makespan_s + known.overhead_s)
    return [estimated / true - 1 for true, estimated in sums if true > least_s]
