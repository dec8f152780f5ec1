"""Networks cut into layers as a device executes them: by what it tells, by probes, or by default rules."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.device.session import AgentSession, Revealed
from harness.errors import BackendError, Interrupted, UnsupportedNetwork
from harness.measure.campaign import payload_of
from harness.measure.fusion import FusionSearch
from harness.measure.progress import Observer, Progress
from harness.network.context import place_of
from harness.network.fusion_rules import DEFAULT_RULES, FusionRule, learn_rules
from harness.network.layers import cut
from harness.network.network import Network
from harness.network.runtime_graph.formats import read_runtime_chains, read_runtime_graph
from harness.network.runtime_graph.reported import RuntimeGraph
from harness.probe.chain_plan import plan_chains
from harness.probe.probe import Probe, network_probe
from harness.probe.probe_plan import CutNetwork

_EMITTED_NODE = re.compile(r"\bn[0-9]+\b")


def cut_as_reported(
    session: AgentSession, networks: Sequence[Network], observe: Observer, stop: threading.Event
) -> tuple[list[CutNetwork], tuple[FusionRule, ...]]:
    """Cuts networks by the fusion that the device tells, or by the default rules where it does not.

    The default serves where nothing may be probed, and where there is nothing to find: a null device fuses nothing.
    Raises UnsupportedNetwork where the device refuses one.
    """
    if "fusion" not in session.hello.reveals:
        return [
            CutNetwork(network, cut(network, DEFAULT_RULES), _convolutional(network)) for network in networks
        ], DEFAULT_RULES
    told: list[RuntimeGraph] = []
    for number, network in enumerate(networks):
        if stop.is_set():
            raise Interrupted("Stopped on request", why="Nothing was measured yet")
        observe(Progress(f"asking how {network.name} is fused", number, len(networks), 0, 0, 0.0, None))
        told.append(_told(session, network))
    groups = [(network, graph.groups) for network, graph in zip(networks, told, strict=True)]
    rules = learn_rules(groups, session.hello.backend)
    cuts = [
        CutNetwork(network, cut(network, rules), graph.blocked, graph)
        for network, graph in zip(networks, told, strict=True)
    ]
    return cuts, rules


def with_chains(
    session: AgentSession, cuts: Sequence[CutNetwork], observe: Observer, stop: threading.Event
) -> list[CutNetwork]:
    """The networks with windows of the chains that the device tells of them; as they are where it tells none."""
    found = []
    for number, one in enumerate(cuts):
        if one.runtime_graph is None or not one.runtime_graph.chains:
            found.append(one)
            continue
        observe(Progress(f"asking how {one.network.name} is chained", number, len(cuts), 0, 0, 0.0, None))
        label = functools.partial(place_of, one.network, one.layers)
        chains, windows = plan_chains(one.network, one.layers, one.runtime_graph, label, _Chained(session, stop))
        found.append(replace(one, chains=chains, windows=windows))
    return found


@dataclass(frozen=True)
class _Chained:
    """Asks a device how it chains a window of a network; None where it refuses the window."""

    session: AgentSession
    stop: threading.Event

    def __call__(self, probe: Probe) -> RuntimeGraph | None:
        if self.stop.is_set():
            raise Interrupted("Stopped on request", why="Nothing was measured yet")
        try:
            revealed = self.session.put(payload_of(probe), reveal=True)
        except BackendError:  # the campaign will meet it again, and say so
            return None
        self.session.drop([probe.id])
        return None if revealed is None else read_runtime_chains(probe.model.names, revealed.format, revealed.content)


def cut_as_probed(search: FusionSearch, networks: Sequence[Network]) -> tuple[list[CutNetwork], tuple[FusionRule, ...]]:
    """Cuts networks by the fusion that probes of neighbouring operators show."""
    rules = search.run(networks)
    return [CutNetwork(network, cut(network, rules), _convolutional(network)) for network in networks], rules


def _told(session: AgentSession, network: Network) -> RuntimeGraph:
    probe = network_probe(network)
    try:
        revealed = put_network(session, network, probe, reveal=True)
    finally:
        session.drop([probe.id])
    if revealed is None:
        raise BackendError(f"The device does not tell how it fuses {network.name}")
    return read_runtime_graph(network, probe.model.names, revealed.format, revealed.content)


def put_network(session: AgentSession, network: Network, probe: Probe, *, reveal: bool = False) -> Revealed | None:
    """Loads a whole network; raises UnsupportedNetwork, in the network's own names, where the device refuses it."""
    try:
        return session.put(payload_of(probe), reveal=reveal)
    except BackendError as error:
        why, step = _in_names_of(network, probe, error.why), "Leave this network out, or measure it on another device"
        raise UnsupportedNetwork(f"The device cannot run {network.name}", why=why, next_step=step) from error


def _in_names_of(network: Network, probe: Probe, message: str) -> str:
    """What a device says of the nodes that it was sent, with the names that the network gives them."""
    names = {node.index: node.name for node in network.nodes}
    emitted = probe.model.names.nodes
    return _EMITTED_NODE.sub(lambda found: names[emitted[found[0]]] if found[0] in emitted else found[0], message)


def _convolutional(network: Network) -> frozenset[str]:
    """Tensors that a device which tells nothing is assumed to keep as convolutions like them."""
    return frozenset(name for name, kind in network.types.items() if len(kind.shape) == 4)
