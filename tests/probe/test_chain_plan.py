"""Windows of chains on the emulated NPU have the network's borders, and their sum is the network's latency."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import pytest
from nullbench import build_network
from onnx import TensorProto, helper, numpy_helper

from device_agents.backends.emulated_npu import EmulatedNpuBackend
from device_agents.messages import LoadRequest
from harness.errors import ProtocolError
from harness.measure.journal.journal import Journal
from harness.measure.journal.records import CampaignKey
from harness.network.assemble import EmittedNames, ModelBuilder
from harness.network.fusion.rule_learning import learn_rules
from harness.network.layers import Layer, cut
from harness.network.model_references import load_network
from harness.network.network import Network, TensorType
from harness.network.runtime_graph.formats import read_runtime_chains, read_runtime_graph
from harness.network.runtime_graph.reported import RuntimeGraph
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.batches import Batch
from harness.probe.chain_plan import ChainProbes, plan_chains
from harness.probe.probe import Probe, network_probe
from harness.probe.probe_plan import ProbePlan
from harness.probe.window_probes import materialise, window_probes


@dataclass
class Npu:
    """An NPU without noise, in this process, with its reports and latencies by probe."""

    backend: EmulatedNpuBackend = field(default_factory=lambda: EmulatedNpuBackend({"noise": 0}))
    reports: dict[str, bytes] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def content(self, probe: Probe) -> bytes:
        """Return the report on a probe."""
        if probe.id not in self.reports:
            inputs = [spec.wire() for spec in probe.model.inputs]
            request = LoadRequest(probe.id, probe.model.content, [], inputs, probe.model.output_bytes, reveal=True)
            revealed = self.backend.load(request)
            assert revealed is not None
            self.reports[probe.id] = revealed.content
            self.seconds[probe.id] = self.backend.oracle(probe.id).makespan_s
        return self.reports[probe.id]

    def ask(self, probe: Probe) -> RuntimeGraph:
        """Return the chains of a probe."""
        return read_runtime_chains(probe.model.names, "emulated-npu", self.content(probe))

    def time_s(self, probe: Probe) -> float:
        """Return the latency of a probe on chip, in seconds."""
        self.content(probe)
        return self.seconds[probe.id]


@dataclass(frozen=True)
class Planned:
    """A network planned on an NPU; `windows` are all its windows, also those that are of no use."""

    npu: Npu
    network: Network
    layers: tuple[Layer, ...]
    runtime_graph: RuntimeGraph
    makespan_s: float
    chains: tuple[ChainProbes, ...]
    probes: dict[str, Probe]
    windows: tuple[Probe, ...]


def planned(network: Network) -> Planned:
    """Cut a network as the NPU reports and plan its windows."""
    npu, whole = Npu(), network_probe(network)
    built: list[Probe] = []
    graph = read_runtime_graph(network, whole.model.names, "emulated-npu", npu.content(whole))
    layers = cut(network, learn_rules([(network, graph.groups)], "emulated-npu"))
    chains, probes = plan_chains(network, layers, graph, lambda place: f"place {place}", npu.ask, built.extend)
    found = {probe.id: probe for probe in probes}
    windows = tuple(probe for probe in built if probe.role == "window")
    return Planned(npu, network, layers, graph, npu.time_s(whole), chains, found, windows)


def branched(path: Path) -> Path:
    """Write a network of convolutions, a sum of two of them, and a transpose in front of a matrix product."""
    shape, weights, nodes = (1, 16, 24, 24), [], []

    def convolution(source: str, name: str) -> str:
        weights.append(numpy_helper.from_array(np.full((16, 16, 3, 3), 0.01, "float32"), f"w{name}"))
        nodes.append(helper.make_node("Conv", [source, f"w{name}"], [f"c{name}"], f"conv{name}", pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{name}"], [f"r{name}"], f"relu{name}"))
        return f"r{name}"

    first = convolution("x", "0")
    second = convolution(convolution(first, "1"), "2")
    nodes.append(helper.make_node("Add", [first, second], ["sum"], "sum"))
    third = convolution("sum", "3")
    nodes.append(helper.make_node("MaxPool", [third], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]))
    weights.append(numpy_helper.from_array(np.array([1, 16, 144]), "rows"))
    nodes.append(helper.make_node("Reshape", ["p", "rows"], ["tokens"], "tokens"))
    nodes.append(helper.make_node("Transpose", ["tokens"], ["turned"], "turned", perm=[0, 2, 1]))
    weights.append(numpy_helper.from_array(np.full((16, 32), 0.01, "float32"), "m"))
    nodes.append(helper.make_node("MatMul", ["turned", "m"], ["y"], "product"))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 144, 32))]
    graph = helper.make_graph(nodes, "branched", inputs, outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Planned, ...]:
    """Return networks that compile quickly."""
    folder = tmp_path_factory.mktemp("networks")
    references = (str(branched(folder / "branched.onnx")), "builtin:dscnn", "builtin:squeezenet")
    return tuple(planned(load_network(reference)) for reference in references)


def _ops(probe: Probe) -> list[tuple[str, str]]:
    """Return names and operators of the nodes of a probe."""
    return [(node.name, node.op_type) for node in onnx.load_model_from_string(probe.model.content).graph.node]


def _crossings(probe: Probe) -> list[tuple[str, str]]:
    """Return writer and reader of each tensor behind a producer that crosses the window's border."""
    graph, inside = onnx.load_model_from_string(probe.model.content).graph, probe.model.names.nodes
    writer = {tensor: node.name for node in graph.node for tensor in node.output}
    edges = [(writer[tensor], node) for node in graph.node for tensor in node.input if tensor in writer]
    return [
        (name, node.name)
        for name, node in edges
        if (name in inside) != (node.name in inside) or (node.name not in inside and node.op_type == "Gather")
    ]


@pytest.mark.parametrize(
    ("shape", "picked"),
    [
        ((1, 8, 6, 5), (1, 8, 1, 5)),
        ((2, 7, 3), (2, 1, 3)),
        ((4, 9), (4, 1)),
        ((70,), (1,)),
        ((1, 96, 1, 1), (1, 1, 1, 1)),
        ((80, 1), (1, 1)),
        ((1, 2, 3, 4, 5), (1, 2, 1, 4, 5)),
    ],
)
def test_a_materialiser_reads_one_slice(shape: tuple[int, ...], picked: tuple[int, ...]) -> None:
    """It reads one row of a picture or one step of a sequence, or along the longest axis if that has size 1."""
    builder = ModelBuilder(13)
    result = materialise(builder, builder.input(TensorType("float32", shape)))
    assert builder.type_of(result).shape == picked
    model = builder.build([result])
    assert model.inputs[-1].dtype == "int64"
    assert model.inputs[-1].high == max(size for size, left in zip(shape, picked, strict=True) if size != left)


def test_windows_begin_and_end_in_materialisers(small: Sequence[Planned]) -> None:
    """Every result of a window is that of a Gather, an output of the network, or too small to matter."""
    for plan in small:
        for probe in plan.windows:
            graph = onnx.load_model_from_string(probe.model.content).graph
            gathered = {node.output[0] for node in graph.node if node.op_type == "Gather"}
            for result in {info.name for info in graph.output} - gathered:
                origin = probe.model.names.tensors[result]
                assert origin in plan.network.outputs or plan.network.types[origin].elements < 64


def test_no_chain_spans_the_border_of_a_window(small: Sequence[Planned]) -> None:
    """On the NPU no chain holds both the writer of a border tensor and one of its readers."""
    crossings = 0
    for plan in small:
        for probe in plan.windows:
            report = json.loads(plan.npu.content(probe))
            layers = report["layers"]
            chains = [{name for layer in chain for name in layers[layer]["nodes"]} for chain in report["chains"]]
            for writer, reader in _crossings(probe):
                crossings += 1
                assert not any({writer, reader} <= chain for chain in chains), f"{plan.network.name}: {probe.label}"
    assert crossings > 30


def test_nulls_are_the_windows_without_their_layers(small: Sequence[Planned]) -> None:
    """The nodes in front of a window's layers are those of its null window; without producers there is none."""
    compared = 0
    for plan in small:
        for chain in plan.chains:
            for window, null in ((chain.alone, chain.alone_null), (chain.meeting, chain.meeting_null)):
                if window:
                    probe = plan.probes[window]
                    nodes = _ops(probe)
                    layers = next(at for at, (name, _) in enumerate(nodes) if name in probe.model.names.nodes)
                    assert nodes[:layers] == (_ops(plan.probes[null]) if null else [])
                    compared += bool(null)
    assert compared > 5


def test_chains_and_meetings_add_up_to_the_network(small: Sequence[Planned]) -> None:
    """Without noise the sum is the makespan within 4 %, and each layer that takes time is in one chain.

    The compiler compares more choices in a window than in a network of many chains, or other ones, and pairs of chains
    do not show what three save: sums are not exact.
    """
    for plan in small:
        time_s = {probe.id: plan.npu.time_s(probe) for probe in plan.probes.values()} | {"": 0.0}
        alone = [time_s[chain.alone] - time_s[chain.alone_null] for chain in plan.chains]
        meetings = [
            time_s[chain.meeting] - time_s[chain.meeting_null] - alone[at] - alone[at + 1]
            for at, chain in enumerate(plan.chains)
            if chain.meeting
        ]
        assert sum(alone) + sum(meetings) == pytest.approx(plan.makespan_s, rel=0.04), plan.network.name
        places = [label for chain in plan.chains for _, label in chain.places]
        assert len(places) == len(set(places))
        executed = [
            f"place {place}"
            for place, layer in enumerate(plan.layers)
            if any(node.index not in plan.runtime_graph.views for node in layer.graph.nodes)
        ]
        assert sorted(places) == sorted(executed)


def test_what_costs_nothing_goes_with_its_reader(small: Sequence[Planned]) -> None:
    """A layer of views is in the window of its reader and in no chain of its own."""
    network = small[0].network
    layers = cut(network, ())
    places = {layer.name: place for place, layer in enumerate(layers)}
    views = {places["tokens"], places["turned"]}
    probe, null = window_probes(network, layers, [places["product"]], views)
    assert [op for name, op in _ops(probe) if name in probe.model.names.nodes] == ["Reshape", "Transpose", "MatMul"]
    assert null is not None
    assert [op for _, op in _ops(null)] == ["Conv", "Relu", "Gather"]
    assert (probe.role, null.role) == ("window", "window-null")
    # Into the window go the producer's four channels of 12 x 12 floats and the index; out come the slice of the
    # picture, a row of 12 floats of 16 channels, and the network's result.
    assert probe.terms.input_bytes == 4 * 4 * 144 + 8
    assert probe.terms.output_bytes == 4 * 16 * 12 + 4 * 144 * 32
    assert (null.terms.input_bytes, null.terms.output_bytes) == (4 * 4 * 144 + 8, 4 * 16 * 12)


Answer = Callable[[Probe], RuntimeGraph | None]


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> tuple[Network, tuple[Layer, ...]]:
    """Return three convolutions with activations, pooling and a classifier, cut into one layer per node."""
    network = load_network(str(build_network(tmp_path_factory.mktemp("line") / "line.onnx")))
    return network, cut(network, ())


def _chained(*chains: set[int]) -> RuntimeGraph:
    return RuntimeGraph((), frozenset(), tuple(frozenset(chain) for chain in chains))


def _as_reported(graph: RuntimeGraph, torn: Sequence[frozenset[int]] = ()) -> Answer:
    """Return a device that chains windows as the network, but in `torn` windows has no chains."""

    def answer(probe: Probe) -> RuntimeGraph:
        held = frozenset(probe.model.names.nodes.values())
        if held in torn:
            return _chained(*({index} for index in held))
        return _chained(*(set(chain & held) for chain in graph.chains if chain & held))

    return answer


def _joining(answer: Answer, windows: Sequence[frozenset[int]]) -> Answer:
    """Return a device that joins all layers of some windows in one chain, and answers otherwise as given."""

    def joined(probe: Probe) -> RuntimeGraph | None:
        held = frozenset(probe.model.names.nodes.values())
        return _chained(set(held)) if held in windows else answer(probe)

    return joined


def test_a_meeting_that_the_network_does_not_have_is_dropped(line: tuple[Network, tuple[Layer, ...]]) -> None:
    """Pairs that run otherwise than in the network are left out, unless one of their chains alone does so too."""
    network, layers = line
    graph = _chained({0, 1}, {2, 3, 4}, {5, 6, 7, 8})
    pairs = [frozenset({0, 1, 2, 3, 4}), frozenset({2, 3, 4, 5, 6, 7, 8})]
    whole = frozenset(range(9))
    cases: list[tuple[Sequence[frozenset[int]], tuple[bool, ...]]] = [
        ((), (True, True, True)),
        ((pairs[0], whole), (False, True, True)),
        ((pairs[0], frozenset({0, 1})), (True, True, True)),
        ((pairs[1], whole, frozenset({0, 1})), (True, False, True)),
    ]
    for torn, agrees in cases:
        chains, probes = plan_chains(network, layers, graph, str, _as_reported(graph, torn))
        assert tuple(chain.agrees for chain in chains) == agrees
        assert [chain.meeting != "" for chain in chains] == [agrees[0], agrees[1], False]
        roles = ("alone", "alone_null", "meeting", "meeting_null", "check", "check_null")
        named = {getattr(chain, role) for chain in chains for role in roles}
        assert not any(chain.check for chain in chains)  # it would be the whole network
        assert named - {""} == {probe.id for probe in probes}
        assert [len(chain.places) for chain in chains] == [2, 3, 4]
        assert chains[0].places[1] == (layers[1].key.digest, "1")
        assert chains[0].alone_null == ""


def test_chains_that_share_a_layer_are_one_group(line: tuple[Network, tuple[Layer, ...]]) -> None:
    """Chains that share a layer form one group; a layer in no chain is a group of its own."""
    network, layers = line
    graph = _chained({0, 1, 2}, {2, 3}, {4, 5})
    chains, _ = plan_chains(network, layers, graph, str, _as_reported(graph))
    assert [[int(label) for _, label in chain.places] for chain in chains] == [[0, 1, 2, 3], [4, 5], [6], [7], [8]]


def test_chains_know_what_crosses_their_borders(small: Sequence[Planned]) -> None:
    """Border and weight sizes are those computed by hand; tensors pass through layers that take no time."""
    network = small[0].network
    layers = cut(network, ())
    # x, and what each convolution and the sum write: 16 x 24 x 24 floats; pooled and turned 16 x 12 x 12 floats.
    large, pooled, result = 4 * 16 * 24 * 24, 4 * 16 * 12 * 12, 4 * 144 * 32
    views = frozenset({10, 11})
    graph = RuntimeGraph((), frozenset(), tuple(map(frozenset, ({0, 1}, {2, 3, 4, 5, 6}, {7, 8}, {9}, {12}))), views)
    chains, _ = plan_chains(network, layers, graph, str, _as_reported(graph))
    assert [chain.borders for chain in chains] == [
        ((large,), (large,)),
        ((large,), (), (), (), (large, large)),
        ((large,), (large,)),
        ((large, pooled),),
        ((pooled, result),),
    ]
    window = 4 * 16 * 16 * 9
    weights = [(window, 0), (window, 0, window, 0, 0), (window, 0), (0,), (4 * 16 * 32,)]
    assert [chain.weight_bytes for chain in chains] == weights
    graph = RuntimeGraph((), frozenset(), (frozenset({9, 12}),), views)
    chains, _ = plan_chains(network, layers, graph, str, _as_reported(graph))
    assert chains[-1].borders == ((large,), (result,))


def test_chains_are_in_the_journal_as_planned(small: Sequence[Planned], tmp_path: Path) -> None:
    """The journal returns places, windows, borders and weights of every chain unchanged and in order."""
    chains = tuple(chain for plan in small for chain in plan.chains)
    plan = ProbePlan({}, (), (Batch(()),), "r", (), AuxiliaryKind.AVGPOOL, chains=chains)
    with Journal(tmp_path / "journal.sqlite") as journal:
        assert journal.chains(journal.begin(CampaignKey("d", plan.id, {}, {}), plan, "device").id) == chains


def test_a_device_without_chains_needs_no_windows(line: tuple[Network, tuple[Layer, ...]]) -> None:
    """If no chains are reported, no windows are planned and no questions asked."""
    network, layers = line
    assert plan_chains(network, layers, _chained(), str, lambda _: pytest.fail("asked")) == ((), ())


def test_chains_of_a_part_leave_other_nodes_out() -> None:
    """Nodes outside the network are left out of chains and views, and chains of such nodes alone are left out."""
    names = EmittedNames({}, {"n2": 7, "n3": 8, "n4": 9})
    layers = [{"name": node, "nodes": [node]} for node in ("n0", "n1", "n2", "n3", "n5")]
    content = json.dumps({"layers": layers, "free_nodes": ["n4", "n6"], "chains": [[0], [1, 2], [3, 4]]}).encode()
    graph = read_runtime_chains(names, "emulated-npu", content)
    assert (graph.chains, graph.views) == ((frozenset({7}), frozenset({8})), frozenset({9}))
    assert read_runtime_chains(names, "openvino", b"").chains == ()
    with pytest.raises(ProtocolError, match="cannot be read"):
        read_runtime_chains(names, "emulated-npu", content.replace(b"[3, 4]", b"[3, 5]"))


@pytest.fixture(scope="module")
def long_line(tmp_path_factory: pytest.TempPathFactory) -> tuple[Network, tuple[Layer, ...]]:
    """Return a network of fifteen layers, one behind the other."""
    network = load_network(str(build_network(tmp_path_factory.mktemp("long") / "long.onnx", widths=(8,) * 7)))
    return network, cut(network, ())


@pytest.mark.parametrize(
    ("count", "checked", "across"),
    [
        (3, [], []),
        (4, [(0, 3), (1, 3)], []),
        (7, [(0, 4), (2, 5)], []),
        (8, [(0, 5), (3, 5)], []),
        (9, [(0, 3), (3, 3), (6, 3)], [0, 3]),
        (15, [(0, 5), (5, 5), (10, 5)], [0, 5]),
    ],
)
def test_long_windows_hold_every_border_between_groups(
    long_line: tuple[Network, tuple[Layer, ...]], count: int, checked: list[tuple[int, int]], across: list[int]
) -> None:
    """Long windows and those across two of them hold every border, however they are chained; none is the network."""
    network, layers = long_line
    graph = _chained(*({at} for at in range(count - 1)), set(range(count - 1, len(layers))))
    for torn in ((), [frozenset(range(at, at + size)) for at, size in checked]):
        chains, probes = plan_chains(network, layers, graph, str, _joining(_as_reported(graph), torn))
        assert len(chains) == count
        assert [(at, chain.checked) for at, chain in enumerate(chains) if chain.check] == checked
        assert [at for at, chain in enumerate(chains) if chain.across] == across
        assert {chain.across for chain in chains} <= {probe.id for probe in probes} | {""}
    ends = dict(checked)
    held = [(at, at + size) for at, size in checked] + [(at, at + ends[at] + ends[at + ends[at]]) for at in across]
    assert all(stop - start < count for start, stop in held)
    borders = range(1, count) if held else ()
    assert all(any(start < border < stop for start, stop in held) for border in borders)


def test_a_pair_that_two_long_windows_hold_counts_once(long_line: tuple[Network, tuple[Layer, ...]]) -> None:
    """The pair in which two long windows overlap has a window although the device runs it otherwise."""
    network, layers = long_line
    graph = _chained(*({at} for at in range(6)), set(range(6, len(layers))))
    for pair, used in ((2, True), (1, False)):
        torn = [frozenset({pair, pair + 1})]
        chains, _ = plan_chains(network, layers, graph, str, _joining(_as_reported(graph), torn))
        assert (chains[pair].meeting != "") == used


@pytest.mark.parametrize("count", [3, 6, 11])
def test_windows_are_prepared_together_and_long_ones_raise_no_question(
    long_line: tuple[Network, tuple[Layer, ...]], count: int
) -> None:
    """One request prepares all probes; after it each group and each pair is asked about once, and nothing else."""
    network, layers = long_line
    graph = _chained(*({at} for at in range(count - 1)), set(range(count - 1, len(layers))))
    answer = _as_reported(graph)
    prepared: list[Sequence[Probe]] = []
    asked: list[str] = []

    def ask(probe: Probe) -> RuntimeGraph | None:
        assert len(prepared) == 1
        asked.append(probe.id)
        return answer(probe)

    chains, probes = plan_chains(network, layers, graph, str, ask, prepared.append)
    assert {probe.id for probe in prepared[0]} == {probe.id for probe in probes}
    assert sorted(asked) == sorted(name for chain in chains for name in (chain.alone, chain.meeting) if name)
    assert any(chain.check for chain in chains) == (count > 3)
