"""Chains of layers against the oracle: layers that hand results over on chip, compared as a whole."""

from __future__ import annotations

from collections.abc import Sequence

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
from harness.validation.oracle_comparison import COUNTED_SHARE


def chain_errors(device: str, table: Lut, models: Sequence[str]) -> list[float]:
    """Return relative errors of the chains above COUNTED_SHARE of their network's time.

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
    latencies_s = [layer.remainder_s or 0.0 for layer in estimate_network(network, table).layers]
    sums = [(sum(true_s[at] for at in group), sum(latencies_s[at] for at in group)) for group in together.groups()]
    return [estimated / true - 1 for true, estimated in sums if true > COUNTED_SHARE * truth.makespan_s]
