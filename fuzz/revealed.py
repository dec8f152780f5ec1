"""The graphs that devices reveal: real ones of ONNX Runtime and the emulated NPU, and what harness learns from them."""

import contextlib
import functools
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz import network_seeds
from fuzz.edits.draft import BOUND_DIMS
from fuzz.mutation import json_text, mutate_bytes, mutate_json, mutate_message
from fuzz.outcome import Outcome
from harness.device.replies import check_graph_size, graph_limit_bytes
from harness.errors import ProtocolError
from harness.measure.device_requests import load_request
from harness.network.assemble import AssembledModel
from harness.network.fusion.fusion_rules import UNSIGNED_PAIRS, FusionRule, as_executed
from harness.network.fusion.rule_learning import learn_rules
from harness.network.layers import cut
from harness.network.network import Network
from harness.network.reading.limited_reading import prepared
from harness.network.reading.read import parse_model
from harness.network.runtime_graph.formats import READERS, read_runtime_chains, read_runtime_graph
from harness.network.runtime_graph.reported import RuntimeGraph
from harness.probe.chain_plan import plan_chains
from harness.probe.probe import Probe, network_probe

_FORMATS = tuple(READERS)
_HEAD_BYTES = 2
"""The number of the network, and that of the format."""


@dataclass(frozen=True)
class _Sent:
    """A network and the model of it that a device was sent."""

    network: Network
    model: AssembledModel


@functools.cache
def _sent() -> tuple[_Sent, ...]:
    found = []
    for content in network_seeds.plain():
        if b"weights.bin" not in content:  # no file lies beside it here
            network = prepared(parse_model("n", "n", content), BOUND_DIMS, None)
            found.append(_Sent(network, network_probe(network).model))
    return tuple(found)


def read(data: bytes, folder: Path) -> Outcome:  # noqa: ARG001 - nothing is written
    """Check and read a graph that a device revealed, learn rules from it, cut the network and plan its chains."""
    one, form, payload = _taken_apart(data)
    try:
        if len(payload) > graph_limit_bytes(one.model.content):  # the session reads no larger one
            return Outcome.REFUSED
        check_graph_size(form, payload, one.model.content, "board")
        graph = read_runtime_graph(one.network, one.model.names, form, payload)
        read_runtime_chains(one.model.names, form, payload)
    except ProtocolError:
        return Outcome.REFUSED
    _use(one.network, graph)
    return Outcome.ACCEPTED


def _use(network: Network, graph: RuntimeGraph) -> None:
    if {index for group in graph.groups for index in group} != {node.index for node in network.nodes}:
        raise AssertionError("the groups are not all nodes of the network")
    rewrites = [FusionRule(UNSIGNED_PAIRS, 1, 1, "board")] if graph.unsigned_pairs else []
    executed = as_executed(network, rewrites)
    layers = cut(executed, (*learn_rules([(executed, graph.groups)], "board"), *rewrites))
    if graph.chains:
        plan_chains(executed, layers, graph, lambda at: str(at), _no_chains)


def _no_chains(_probe: Probe) -> RuntimeGraph | None:
    return None


def _taken_apart(data: bytes) -> tuple[_Sent, str, bytes]:
    head = data[:_HEAD_BYTES].ljust(_HEAD_BYTES, b"\0")
    sent = _sent()
    return sent[head[0] % len(sent)], _FORMATS[head[1] % len(_FORMATS)], data[_HEAD_BYTES:]


@functools.cache
def seeds() -> list[bytes]:
    """Return what the runtimes reveal of small networks, in each format."""
    from device_agents.backends.emulated_npu import EmulatedNpuBackend
    from device_agents.backends.onnxruntime.onnxruntime_backend import OnnxRuntimeBackend

    found = []
    for at, one in enumerate(_sent()):
        nodes = sorted(one.model.names.nodes)
        layers: list[Any] = [{"name": name, "nodes": [name], "layout": "abcd"} for name in nodes]
        layers[0]["layout"] = "aBcd8b"
        found.append(_packed(at, "openvino", json.dumps({"layers": layers}).encode()))
        plain: Any = {"layers": [{"name": name, "nodes": [name]} for name in nodes], "free_nodes": []}
        plain["chains"] = [list(range(len(nodes)))]
        found.append(_packed(at, "emulated-npu", json.dumps(plain).encode()))
        request = load_request(network_probe(one.network), reveal=True)
        for backend in (OnnxRuntimeBackend({}), EmulatedNpuBackend({})):
            with contextlib.suppress(Exception):  # the NPU does not compile all of them
                revealed = backend.load(request)
                if revealed is not None:
                    found.append(_packed(at, revealed.format, revealed.content))
    return found


def _packed(at: int, form: str, payload: bytes) -> bytes:
    return bytes([at, _FORMATS.index(form)]) + payload


def mutate(data: bytes, draw: random.Random) -> bytes:
    """Change a field of the graph or of the JSON; move nodes between layers; sometimes change bytes."""
    one, form, payload = _taken_apart(data)
    head = data[:_HEAD_BYTES].ljust(_HEAD_BYTES, b"\0")
    if draw.random() < 0.1:
        return head + mutate_bytes(payload, draw)
    if form == "onnxruntime":
        return head + _mutated_graph(payload, draw)
    try:
        report = json.loads(payload)
    except (ValueError, RecursionError):
        return head + mutate_bytes(payload, draw)
    if draw.random() < 0.7 and _rearrange(report, sorted(one.model.names.nodes), draw):
        return head + json.dumps(report).encode()
    return head + json_text(mutate_json(report, draw), draw)


def _rearrange(report: Any, names: list[str], draw: random.Random) -> bool:
    """Change a report so that it mostly stays consistent; returns whether it had the parts for that."""
    try:
        layers = report["layers"]
        one, other = draw.choice(layers), draw.choice(layers)
        kind = draw.randrange(5)
        if kind == 0 and one is not other:  # two layers become one
            one["nodes"] = [*one["nodes"], *other["nodes"]]
            layers.remove(other)
            report.pop("chains", None) is not None and report.update(chains=[])
        elif kind == 1:
            one["nodes"].append(draw.choice(names))
        elif kind == 2 and "layout" in one:
            one["layout"] = draw.choice(("", "abcd", "acdb", "aBcd16b", "a" * 32))
        elif kind == 3 and "chains" in report:
            numbers = draw.sample(range(len(layers)), draw.randrange(len(layers) + 1))
            at = draw.randrange(len(numbers) + 1)
            report["chains"] = [part for part in (numbers[:at], numbers[at:]) if part or draw.random() < 0.1]
        elif "free_nodes" in report:
            report["free_nodes"] = [*report["free_nodes"], *one["nodes"]]
            layers.remove(one)
            report["chains"] = []
    except (KeyError, TypeError, AttributeError, IndexError, ValueError):
        return False
    return True


def _mutated_graph(payload: bytes, draw: random.Random) -> bytes:
    import onnx
    from google.protobuf.message import DecodeError

    model = onnx.ModelProto()
    try:
        model.ParseFromString(payload)
    except DecodeError:
        return mutate_bytes(payload, draw)
    try:
        _edit(model, draw)
    except UnicodeDecodeError:  # an earlier mutation left a name that is not UTF-8
        mutate_message(model, draw)
    return bytes(model.SerializeToString())


def _edit(model: Any, draw: random.Random) -> None:
    """Change how nodes are named, connected and placed, or any field."""
    nodes = model.graph.node
    if draw.random() < 0.6 and nodes:
        node, other = draw.choice(nodes), draw.choice(nodes)
        kind = draw.randrange(5)
        if kind == 0:
            nodes.remove(node)
        elif kind == 1 and node.output and other.output:
            node.output[0] = f"{other.output[0]}_{draw.choice(('nchwc', 'token_1', 'x'))}"
        elif kind == 2:
            node.name = f"{draw.choice(('n', 't', 'k', 'w'))}{draw.randrange(12)}_fused"
        elif kind == 3:
            node.domain = draw.choice(("", "com.microsoft", "com.microsoft.nchwc"))
        elif node.output and other.input:
            other.input[0] = node.output[0]
    else:
        mutate_message(model, draw)
