"""`harness.trace`: the layers of a network as devices execute them, as one trace with the table's estimates.

A runtime's own profile and the emulated NPU's report are answers of the same kind (`Truth`). So every device is a
process of the trace, and a layer has the same name in each. The file is in the Trace Event Format, which Perfetto and
chrome://tracing open.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from harness.arguments import check_fields, spread
from harness.device.inventory import Device, find_device, load_inventory
from harness.device.session import Truth
from harness.device.variant import Variant
from harness.errors import LutNotFound, ProtocolError, UsageError
from harness.estimation.layer_estimates import LayerEstimate
from harness.estimation.network_estimate import estimate_network
from harness.lut.table import Lut
from harness.lut.table_choice import open_lut
from harness.measure.busy_device import BusyWait, lease_when_free
from harness.measure.calls import DeviceCall
from harness.measure.device_requests import load_request
from harness.measure.progress import DONE, begin, effort_of, steps_of
from harness.network.fusion.fusion_rules import DEFAULT_RULES, FusionRule
from harness.network.layers import Layer, cut
from harness.network.model_references import Model, load_network
from harness.network.network import Network
from harness.probe.probe import Probe, network_probe
from harness.version import VERSION
from harness.workspace import as_workspace

Event = dict[str, Any]
_EXECUTED, _ESTIMATED = 1, 2
_US, _NS = 1e6, 1e9


@dataclass(frozen=True)
class TracedLayer:
    """A layer as the device executed it, with the names of the network's layers whose nodes it computes.

    `estimates` are those of these layers, none without a table. A layer of the network that several executed layers
    share has its estimate with the first of them, for which `is_whole` is false.
    """

    name: str
    layers: tuple[str, ...]
    operators: tuple[str, ...]
    latency_s: float
    estimates: tuple[LayerEstimate, ...] = ()
    is_whole: bool = True


@dataclass(frozen=True)
class DeviceTrace:
    """The executed layers of a network on one device, in order, and its estimated layers; `lut` names their table."""

    device: str
    clock: str
    layers: tuple[TracedLayer, ...]
    lut: str | None
    estimated: tuple[LayerEstimate, ...]


@dataclass(frozen=True)
class NetworkTrace:
    """A network on one device or several."""

    network: str
    devices: tuple[DeviceTrace, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the object of the Trace Event Format; times are microseconds from the start of the network."""
        events = [event for at, device in enumerate(self.devices, start=1) for event in _events(device, at)]
        facts = {"network": self.network, "tool": f"harness {VERSION}"}
        return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": facts}


@dataclass(frozen=True)
class TraceCall(DeviceCall):
    """The arguments of `trace`."""

    model: Model
    _: KW_ONLY
    devices: Sequence[str] = ()
    dims: Mapping[str, int] | None = None
    batch: int | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)


@spread(TraceCall)
def trace(call: TraceCall) -> NetworkTrace:
    """Ask devices for the times of a network's layers, and join them with the estimates of their newest tables.

    ONNX Runtime and OpenVINO answer with their own profile, without what profiling adds; the emulated NPU answers with
    its exact times. Raises UsageError for a device that reports no layers, and a DeviceError if it refuses the network.
    """
    workspace, variant = as_workspace(call.workspace), Variant(call.batch, call.threads)
    inventory = load_inventory(workspace.devices)
    chosen = [find_device(inventory, name) for name in dict.fromkeys(call.devices or (workspace.default_device,))]
    begin(call.observe, "reading the network", effort_of(1))
    network = load_network(call.model, call.dims, call.batch)
    step, found = steps_of(call.observe, "measuring layers"), []
    for number, device in enumerate(chosen):
        step(number, len(chosen))
        answer = _ask(variant.device(device), network, call)
        try:
            table = open_lut(device.name, workspace=workspace, batch=call.batch, threads=call.threads)
        except LutNotFound:
            table = None
        found.append(_joined(device.name, network, answer, table))
    call.observe(DONE)
    return NetworkTrace(network.name, tuple(found))


@dataclass(frozen=True)
class _Answer:
    """The clock of a device, the layers that it reports, and the network as it was sent."""

    clock: str
    truth: Truth
    probe: Probe


def _ask(device: Device, network: Network, patience: BusyWait) -> _Answer:
    with lease_when_free(device, patience, "validation") as session:
        if "oracle" not in session.hello.reveals:
            why = f"Its backend {device.backend!r} has no profile"
            step = "Choose a device with ONNX Runtime, OpenVINO or the emulated NPU"
            raise UsageError(f"{device.name} does not report the times of layers", why=why, next_step=step)
        probe = network_probe(network)
        session.put(load_request(probe))
        return _Answer(session.hello.clock, session.oracle(probe.id), probe)


def _joined(device: str, network: Network, answer: _Answer, table: Lut | None) -> DeviceTrace:
    """Join executed layers with the layers of the network and those of the table, through the nodes of both.

    The default rules cut the network for all devices, whatever they fuse, so that layers have the same names.
    """
    named, owners = _cut(network, DEFAULT_RULES)
    estimated = () if table is None else estimate_network(network, table).layers
    entries = {} if table is None else _cut(network, table.rules)[1]
    emitted = answer.probe.model.names.nodes
    shown: set[int] = set()
    layers = []
    executed = [
        [entries[emitted[name]] for name in layer.nodes if emitted.get(name) in entries]
        for layer in answer.truth.layers
    ]
    parts = Counter(at for own in executed for at in set(own))
    for layer in answer.truth.layers:
        unknown = next((name for name in layer.nodes if name not in emitted), None)
        if unknown is not None:
            raise ProtocolError(f"{device} reports a node {unknown[:40]!r} that was not sent")
        nodes = [emitted[name] for name in layer.nodes]
        touched = dict.fromkeys(owners[node] for node in nodes if node in owners)
        here = dict.fromkeys(entries[node] for node in nodes if node in entries and entries[node] not in shown)
        shown.update(here)
        names, operators = tuple(named[at].name for at in touched), tuple(named[at].op for at in touched)
        is_whole = all(parts[at] == 1 for at in here)
        own = tuple(estimated[at] for at in here)
        layers.append(TracedLayer(layer.name, names, operators, layer.latency_s, own, is_whole))
    return DeviceTrace(device, answer.clock, tuple(layers), None if table is None else table.name, estimated)


def _cut(network: Network, rules: Sequence[FusionRule]) -> tuple[tuple[Layer, ...], dict[int, int]]:
    """Return the layers that the rules make, and the place of the layer of each node."""
    layers = cut(network, rules)
    return layers, {node.index: at for at, layer in enumerate(layers) for node in layer.graph.nodes}


def _events(trace: DeviceTrace, process: int) -> Iterator[Event]:
    """Yield the events of one device: a track of executed layers, and one of estimated layers."""
    yield _metadata("process_name", process, 0, f"{trace.device} ({trace.clock} clock)")
    yield _metadata("thread_name", process, _EXECUTED, "executed layers")
    spans = [(" + ".join(layer.layers) or layer.name, layer.latency_s, _arguments(layer)) for layer in trace.layers]
    yield from _track(process, _EXECUTED, "Node", spans)
    if trace.lut is not None:
        yield _metadata("thread_name", process, _ESTIMATED, f"estimated layers, {trace.lut}")
        estimates = [(one.name, one.latency_s or 0.0, _entry(one)) for one in trace.estimated]
        yield from _track(process, _ESTIMATED, "Estimate", estimates)


def _track(
    process: int, track: int, category: str, spans: Sequence[tuple[str, float, dict[str, Any]]]
) -> Iterator[Event]:
    """Yield consecutive slices from one nanosecond to another; those of no time are omitted, as they have no width."""
    end_s, start_ns = 0.0, 0
    for name, latency_s, arguments in spans:
        end_s += latency_s
        end_ns = round(end_s * _NS)
        if latency_s > 0:
            end_ns = max(end_ns, start_ns + 1)
            times = {"ts": _us(start_ns), "dur": _us(end_ns - start_ns)}
            yield {"ph": "X", "pid": process, "tid": track, "name": name, "cat": category, **times, "args": arguments}
        start_ns = max(start_ns, end_ns)


def _us(ns: int) -> float:
    """Return nanoseconds in microseconds; Perfetto multiplies them by 1,000, rounds down, and gets them back."""
    us = ns / 1000
    return us if int(us * 1000) == ns else math.nextafter(us, math.inf)


def _arguments(layer: TracedLayer) -> dict[str, Any]:
    """Return what the trace shows of a selected layer."""
    found: dict[str, Any] = {
        "executed_as": layer.name,
        "op_name": " + ".join(layer.operators),
        "latency_us": layer.latency_s * _US,
    }
    if layer.estimates:
        estimated_s = sum(one.remainder_s or 0.0 for one in layer.estimates)
        found["estimated_us"] = estimated_s * _US
        # A part is not comparable with the estimate of the whole.
        found["error"] = estimated_s / layer.latency_s - 1 if layer.latency_s and layer.is_whole else None
        found["entries"] = [_entry(one) for one in layer.estimates]
    return found


def _entry(one: LayerEstimate) -> dict[str, Any]:
    return {
        "key": one.key,
        "context": one.context,
        "source": one.source,
        "latency_us": None if one.latency_s is None else one.latency_s * _US,
        "stderr_us": None if one.stderr_s is None else one.stderr_s * _US,
    }


def _metadata(kind: str, process: int, track: int, name: str) -> Event:
    return {"ph": "M", "pid": process, "tid": track, "name": kind, "args": {"name": name}}
