"""Cut networks into layers as a device executes them: as it reports, as probes show, or by default rules."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace

from pydantic import TypeAdapter

from harness import cache
from harness.device.session import AgentSession, Revealed
from harness.errors import BackendError, Interrupted, UnsupportedNetwork
from harness.measure.device_requests import load_request
from harness.measure.device_run import DeviceRun
from harness.measure.fusion.probed_fusion import FusionSearch
from harness.measure.loaded_probes import prepare
from harness.measure.progress import Observer, Progress, begin, in_phase
from harness.network.effort import compile_effort, networks_effort, side_by_side
from harness.network.fusion.fusion_rules import DEFAULT_RULES, REWRITES, UNSIGNED_PAIRS, FusionRule, as_executed
from harness.network.fusion.rule_learning import learn_rules
from harness.network.layers import cut, place_of
from harness.network.network import Network
from harness.network.runtime_graph.formats import read_runtime_chains, read_runtime_graph
from harness.network.runtime_graph.reported import RuntimeGraph
from harness.probe.chain_plan import plan_chains
from harness.probe.probe import Probe, network_probe
from harness.probe.probe_plan import CutNetwork
from harness.version import VERSION

_EMITTED_NODE = re.compile(r"\bn[0-9]+\b")
_RULES = TypeAdapter(tuple[FusionRule, ...])

CUTTING, _EXAMPLES, CHAINS, PLANNING = "cutting networks", "cutting examples", "cutting chains", "planning probes"
"""Phases of a command."""
Refuse = Callable[[Network, UnsupportedNetwork], None]
"""Called with a network that the device refuses; it raises if the others cannot go on."""


def end_all(_network: Network, error: UnsupportedNetwork) -> None:
    """Raise the error: without all networks there is nothing to do."""
    raise error


def cut_as_reported(
    session: AgentSession,
    networks: Sequence[Network],
    observe: Observer,
    stop: threading.Event,
    refuse: Refuse = end_all,
) -> tuple[list[CutNetwork], tuple[FusionRule, ...]]:
    """Cut networks by the fusion that the device reports, or by the default rules if it reports none.

    Networks that the device refuses are passed to `refuse` and left out.
    """
    if "fusion" not in session.hello.reveals:
        return [_cut_by(network, DEFAULT_RULES) for network in networks], DEFAULT_RULES
    reported: list[tuple[Network, RuntimeGraph]] = []
    probes = [network_probe(network) for network in networks]
    efforts = [compile_effort(probe.model.products) for probe in probes]
    effort, following = side_by_side(efforts), sum(efforts)
    is_new = _kept_rules(_cache_key(session)) is None
    begin(observe, CUTTING, effort, ahead={_EXAMPLES: float(is_new), CHAINS: following, PLANNING: following})
    cutting = in_phase(observe, CUTTING, effort)
    prepare(session, probes, cutting, stop)
    for number, (network, probe) in enumerate(zip(networks, probes, strict=True)):
        _check_stop(stop)
        cutting(Progress(f"reading how {network.name} is fused", number, len(networks)))
        try:
            reported.append((network, _runtime_graph(session, network, probe)))
        except UnsupportedNetwork as error:
            refuse(network, error)
    source = session.hello.backend
    if is_new:
        begin(observe, _EXAMPLES, 1.0)
    examples = _rules_of_examples(session)
    rewrites = [rule for rule in examples if rule.pattern in REWRITES]
    executed = [(as_executed(network, rewrites), graph) for network, graph in reported]
    groups = [(network, graph.groups) for network, graph in executed]
    known = [rule for rule in examples if rule not in rewrites]
    rules = (*learn_rules(groups, source, known), *rewrites)
    return [CutNetwork(network, cut(network, rules), graph.blocked, graph) for network, graph in executed], rules


@functools.lru_cache(maxsize=1)
def _rules_of_examples(session: AgentSession) -> tuple[FusionRule, ...]:
    """Return what the device fuses of the examples; nothing if it refuses them. They are small and never measured.

    Loading them takes a second, so the cache keeps the rules by board and fingerprint. A device with its own clock
    reports no rewrites, which are those of ONNX Runtime.
    """
    key = _cache_key(session)
    kept = _kept_rules(key)
    if kept is not None:
        return kept
    from harness.measure.fusion.fusion_examples import example_rules  # loads onnx

    for examples in _examples_for(session):
        with contextlib.suppress(UnsupportedNetwork):
            graph = _runtime_graph(session, examples, network_probe(examples), runs=False)
            break
    else:
        return ()
    rules = example_rules(examples, graph.groups, session.hello.backend)
    if graph.unsigned_pairs:
        rules = (*rules, FusionRule(UNSIGNED_PAIRS, 1, 1, session.hello.backend))
    if _compiles(session):
        rules = tuple(rule for rule in rules if rule.pattern not in REWRITES)
    if key:
        cache.put(key, json.dumps([asdict(rule) for rule in rules]).encode())
    return rules


def _compiles(session: AgentSession) -> bool:
    """Return whether a device compiles each operator, as one with its own clock does."""
    return session.hello.clock == "device"


def _examples_for(session: AgentSession) -> Iterator[Network]:
    """Yield the networks of examples, the newest opset first; of one alignment of channels if the device compiles."""
    from harness.measure.fusion.fusion_examples import ALL_ALIGNMENTS, OPSETS, fusion_examples  # loads onnx

    return (fusion_examples(1 if _compiles(session) else ALL_ALIGNMENTS, opset) for opset in OPSETS)


def _cache_key(session: AgentSession) -> str:
    """Return the key of the rules of examples in the cache, empty if there is no cache."""
    hello, code = session.hello, cache.code_version("harness", "onnx")
    facts = json.dumps([session.board, hello.backend, sorted(hello.fingerprint.items())])
    return cache.key_of("rules of examples 3", VERSION, code, facts) if code else ""


def _kept_rules(key: str) -> tuple[FusionRule, ...] | None:
    """Return the rules that the cache holds, None if it holds none."""
    content = cache.get(key) if key else None
    try:
        return None if content is None else _RULES.validate_json(content)
    except ValueError:
        return None


def with_chains(
    session: AgentSession, cuts: Sequence[CutNetwork], observe: Observer, stop: threading.Event
) -> list[CutNetwork]:
    """Add windows of the chains that the device reports to the networks that have any."""
    found = []
    observe = in_phase(observe, CHAINS, _effort_of_chains(cuts))
    for number, one in enumerate(cuts):
        if one.runtime_graph is None or not one.runtime_graph.chains:
            found.append(one)
            continue
        observe(Progress(f"reading how {one.network.name} is chained", number, len(cuts)))
        label = functools.partial(place_of, one.network, one.layers)
        loaded: list[str] = []
        chains_of = functools.partial(_chains_of, session, stop, loaded)
        ready = functools.partial(prepare, session, observe=observe, stop=stop)
        chains, windows = plan_chains(one.network, one.layers, one.runtime_graph, label, chains_of, ready)
        session.drop(loaded)
        found.append(replace(one, chains=chains, windows=windows))
    return found


def _effort_of_chains(cuts: Sequence[CutNetwork]) -> float:
    """Return the effort of compiling windows: those of a network hold it several times.

    The only window of a single chain is the network.
    """
    chained = [one.network for one in cuts if one.runtime_graph is not None and len(one.runtime_graph.chains) > 1]
    return networks_effort(chained)


def _chains_of(session: AgentSession, stop: threading.Event, loaded: list[str], probe: Probe) -> RuntimeGraph | None:
    """Return the chains of a window of a network, which is then `loaded`; None if the device refuses the window."""
    _check_stop(stop)
    try:
        revealed = session.put(load_request(probe, reveal=True))
    except BackendError:  # the campaign loads the probe again and reports the refusal
        return None
    loaded.append(probe.id)
    return None if revealed is None else read_runtime_chains(probe.model.names, revealed.format, revealed.content)


def refuse_unplaced(run: DeviceRun, networks: Sequence[Network], refuse: Refuse) -> None:
    """Load each network once and pass those that the device refuses to `refuse`, if it knows where each node runs.

    Probes of such a network would only show that layers are missing.
    """
    observe = in_phase(run.observe, CUTTING)
    for number, network in enumerate(networks if "placement" in run.session.hello.reveals else ()):
        _check_stop(run.stop)
        observe(Progress(f"loading {network.name}", number, len(networks)))
        probe = network_probe(network)
        try:
            put_network(run.session, network, probe)
        except UnsupportedNetwork as error:
            refuse(network, error)
        finally:
            run.session.drop([probe.id])


def cut_as_probed(search: FusionSearch, networks: Sequence[Network]) -> tuple[list[CutNetwork], tuple[FusionRule, ...]]:
    """Cut networks by the fusion that probes of neighbouring operators show."""
    rules = search.run(networks)
    return [_cut_by(network, rules) for network in networks], rules


def _cut_by(network: Network, rules: Sequence[FusionRule]) -> CutNetwork:
    """A network cut by rules; tensors of four axes are assumed to have the layout of convolutions."""
    convolutional = frozenset(name for name, kind in network.types.items() if len(kind.shape) == 4)
    return CutNetwork(network, cut(network, rules), convolutional)


def _check_stop(stop: threading.Event) -> None:
    if stop.is_set():
        raise Interrupted("Stopped on request", why="Nothing was measured yet")


def _runtime_graph(session: AgentSession, network: Network, probe: Probe, *, runs: bool = True) -> RuntimeGraph:
    try:
        revealed = put_network(session, network, probe, reveal=True, runs=runs)
    finally:
        session.drop([probe.id])
    if revealed is None:
        raise BackendError(f"The device does not report how it fuses {network.name}")
    return read_runtime_graph(network, probe.model.names, revealed.format, revealed.content)


def put_network(
    session: AgentSession, network: Network, probe: Probe, *, reveal: bool = False, runs: bool = True
) -> Revealed | None:
    """Load a whole network; raises UnsupportedNetwork, in the network's own names, if the device refuses it."""
    try:
        return session.put(load_request(probe, reveal=reveal, runs=runs))
    except BackendError as error:
        raise refused_by_device(network, probe, error.why) from error


def refused_by_device(network: Network, probe: Probe, why: str) -> UnsupportedNetwork:
    """Return the error for a whole network that the device refuses, in the network's own names."""
    what, step = f"{network.file or network.name}: The device cannot run it", "Measure it on another device, or omit it"
    return UnsupportedNetwork(what, why=_in_names_of(network, probe, why), next_step=step)


def _in_names_of(network: Network, probe: Probe, message: str) -> str:
    """A device's message about the nodes of a probe, with the names that the network gives these nodes."""
    names = {node.index: node.name for node in network.nodes}
    emitted = probe.model.names.nodes
    return _EMITTED_NODE.sub(lambda found: names[emitted[found[0]]] if found[0] in emitted else found[0], message)
