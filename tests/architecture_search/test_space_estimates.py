"""Estimates of candidates from the tables of a space."""

import copy
import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from onnx import checker, helper, parser
from synthetic_tables import table_of

from benchmarks.search.mobile_space import mobile_space
from harness.architecture_search import position_tables
from harness.architecture_search.search_space import SearchSpace
from harness.architecture_search.space_estimator import SpaceEstimator
from harness.errors import InvalidNetwork, UnsupportedNetwork, UsageError
from harness.estimation.network_estimate import estimate_network
from harness.latency.overhead import Overhead
from harness.lut.table import Lut
from harness.network.model_references import load_network
from harness.network.network import Network
from harness.predictor.features.layer_features import LayerFeatures
from harness.predictor.predictor import Predictor
from harness.predictor.roofline.weight_loads import WeightLoads

CANDIDATES = 6
KINDS = ("plain", "neighbourhoods", "chained", "missing", "predicted", "few warm", "loads ahead")
PREDICTED = ("predicted", "few warm", "loads ahead")


@pytest.fixture(scope="module")
def space() -> SearchSpace:
    """Return a space of 80 networks."""
    return SearchSpace.read(mobile_space((8, 16, 24), edge=16, blocks=1))


def slow_loads(_: Predictor, layers: Sequence[LayerFeatures]) -> WeightLoads:
    """Return the loads of a device that loads the weights of each layer at a rate of its own, beside other work."""
    weight_bytes = np.array([one.weight_bytes for one in layers], dtype=np.float64)
    others_s = np.array([one.macs for one in layers]) / 1e11
    loads_s = weight_bytes / 2e10 * (1.0 + others_s % 1e-8 * 1e8)
    launch_s, picks = np.full(len(layers), 1e-7), np.zeros(len(layers), dtype=bool)
    return WeightLoads(weight_bytes, loads_s, others_s, others_s / 4, launch_s, 2.0, picks)


def load_ahead(monkeypatch: pytest.MonkeyPatch, ahead_bytes: int) -> None:
    """Let all tables be of a device with slow loads and a buffer of this size."""
    monkeypatch.setattr(Lut, "weights_ahead", ahead_bytes)
    monkeypatch.setattr(Lut, "chain_error", 0.1)
    monkeypatch.setattr(Predictor, "weight_loads", slow_loads)


def drawn(space: SearchSpace, count: int, seed: int = 1) -> np.ndarray:
    """Return random candidates, and those whose neighbourhoods the synthetic tables list."""
    random = np.random.default_rng(seed).integers(0, space.sizes, (count, len(space.sizes)))
    return np.concatenate([random, [[at % size for size in space.sizes] for at in range(max(space.sizes))]])


@pytest.fixture(scope="module")
def networks(space: SearchSpace) -> list[Network]:
    """Return the networks of candidates, read from their own ONNX files."""
    return [load_network(space.model(row)) for row in drawn(space, CANDIDATES)]


@pytest.mark.parametrize("kind", KINDS)
def test_estimates_are_those_of_the_assembled_networks(
    space: SearchSpace, networks: list[Network], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Latency, interval and coverage equal those of `estimate` for the candidate's own ONNX file, to 1e-9.

    So do they where the table has too few warm layers for networks between warm and cold, where the device loads
    weights ahead of their layers and some candidates take less than their transfers, and in the copy that other
    processes get.
    """
    if kind == "loads ahead":
        load_ahead(monkeypatch, 1 << 10)
    if kind == "few warm":
        monkeypatch.setattr("harness.lut.table.FEWEST_WARM", 1 << 20)
    table = table_of(space, "predicted" if kind in PREDICTED else kind)
    rows = drawn(space, CANDIDATES)
    if kind == "loads ahead":
        plain = SpaceEstimator.of(space, table)
        layers_s = float(np.median(plain.latency_s(rows))) - plain.overhead_s
        monkeypatch.setattr(Overhead, "exchange", lambda *_sizes: (layers_s, (0.1 * layers_s) ** 2))
    estimator = copy.deepcopy(SpaceEstimator.of(space, table))
    found, coverage = estimator.intervals_s(rows), estimator.coverage(rows)
    sources = set()
    for at, network in enumerate(networks):
        whole = estimate_network(network, table)
        sources.update(layer.source for layer in whole.layers)
        assert {name: counts[at] for name, counts in coverage.items()} == dict(whole.coverage)
        if whole.latency_s is None or whole.interval_s is None:
            assert np.isnan([found.latency_s[at], found.low_s[at], found.high_s[at]]).all()
            continue
        expected = (whole.latency_s, *whole.interval_s)
        assert (found.latency_s[at], found.low_s[at], found.high_s[at]) == pytest.approx(expected, rel=1e-9)
    assert ("unknown" in sources) == (kind == "missing")
    assert bool(sources & {"interpolated", "extrapolated"}) == (kind in PREDICTED)
    assert (len(estimator.tables) == 2) == (kind in PREDICTED)
    saved = [one.ahead.saved_s(rows.T.astype(np.uint8)) for one in estimator.tables if one.ahead is not None]
    assert any(one.any() for one in saved) == (kind == "loads ahead")


PARALLEL = """
    <ir_version: 8, opset_import: ["" : 17]>
    parallel (float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y)
    {
        small = Constant <value = int64[4] {16, 16, 1, 1}> ()
        large = Constant <value = int64[4] {16, 16, 3, 3}> ()
        wa1 = ConstantOfShape <value = float[1] {0.1}> (small)
        wa3 = ConstantOfShape <value = float[1] {0.2}> (large)
        wb1 = ConstantOfShape <value = float[1] {0.3}> (small)
        wb3 = ConstantOfShape <value = float[1] {0.4}> (large)
        a1 = Conv (x, wa1)
        a3 = Conv <pads = [1, 1, 1, 1]> (x, wa3)
        b1 = Conv (x, wb1)
        b3 = Conv <pads = [1, 1, 1, 1]> (x, wb3)
        a = Sum (a1, a3)
        b = Sum (b1, b3)
        y = Add (a, b)
    }
"""


def test_loads_follow_the_order_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that joins the result of a later position runs after the layers of that position, as in the network."""
    model = parser.parse_model(PARALLEL)
    for number, node in enumerate(model.graph.node):
        node.name = f"choice:{node.output[0]}" if node.op_type == "Sum" else f"{node.op_type}_{number}"
    space = SearchSpace.read(model)
    table = dataclasses.replace(table_of(space, "predicted"), entries=(), correlations=b"")
    rows = list(itertools.product(range(2), repeat=2))
    plain_s = SpaceEstimator.of(space, dataclasses.replace(table)).latency_s(rows)
    load_ahead(monkeypatch, 1 << 12)
    found_s = SpaceEstimator.of(space, table).latency_s(rows)
    expected = [estimate_network(space.network_of(row), table).latency_s for row in rows]
    assert found_s == pytest.approx(expected, rel=1e-9)
    assert (found_s < plain_s).any()


def test_weights_among_the_inputs_are_no_inputs_of_a_candidate() -> None:
    """The file of a candidate has the inputs of its network, also where the super-network lists weights as inputs."""
    model = mobile_space((8, 16), edge=16, blocks=1)
    model.graph.input.extend(
        helper.make_tensor_value_info(one.name, one.data_type, one.dims) for one in model.graph.initializer
    )
    space = SearchSpace.read(model)
    for row in drawn(space, 2):
        assert load_network(space.model(row)).inputs == space.network_of(row).inputs == space.network.inputs


def test_a_network_of_a_candidate_is_that_of_its_file(space: SearchSpace) -> None:
    """The network that is cut for the tables has the operators, types and constants of the candidate's ONNX file."""
    for row in drawn(space, 5):
        model = space.model(row)
        checker.check_model(model)
        own, read = space.network_of(row), load_network(model)
        assert [node.op for node in own.nodes] == [node.op for node in read.nodes]
        assert (own.input_sizes, own.output_sizes) == (read.input_sizes, read.output_sizes)
        assert own.constant_bytes(own.nodes) == read.constant_bytes(read.nodes)


def test_any_number_of_candidates_and_any_integers(space: SearchSpace) -> None:
    """Estimates do not depend on how many candidates are asked at once, or on the type of their numbers."""
    estimator = SpaceEstimator.of(space, table_of(space, "plain"))
    rows = np.random.default_rng(2).integers(0, space.sizes, (20_000, len(space.sizes)))
    whole = estimator.latency_s(rows)
    assert estimator.latency_s(rows[:0]).shape == (0,)
    for part in (rows[9_999:10_001].astype(np.int8), rows[9_999:10_001].tolist()):
        assert estimator.latency_s(part) == pytest.approx(whole[9_999:10_001], rel=1e-12)


@pytest.mark.parametrize("rows", [[[0, 0]], [[0, 0, 0.5]], [0, 0, 0], [[0, 4, 0]], [[-1, 0, 0]], [[0, 300, 0]]])
def test_invalid_candidates_are_refused(space: SearchSpace, rows: object) -> None:
    """An array of another shape or type, or with a choice that does not exist, is a usage error."""
    estimator = SpaceEstimator.of(space, table_of(space, "plain"))
    with pytest.raises(UsageError):
        estimator.latency_s(rows)


def test_far_couplings_are_refused(space: SearchSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table whose entries hold in longer neighbourhoods than can be looked up is refused, not approximated."""
    monkeypatch.setattr(position_tables, "MOST_COMBINATIONS", 20)
    with pytest.raises(UnsupportedNetwork, match="depends on the choices of positions"):
        SpaceEstimator.of(space, table_of(space, "neighbourhoods"))


def test_networks_without_valid_choices_are_refused() -> None:
    """A network without a position, one with a position of unequal branches, and wrong names are no search spaces."""
    with pytest.raises(InvalidNetwork, match="not a super-network"):
        SearchSpace.read("builtin:squeezenet")
    model = mobile_space((8,), edge=8, blocks=1)
    (choice,) = [node for node in model.graph.node if node.name.startswith("choice:")]
    choice.doc_string = "one,two"
    with pytest.raises(InvalidNetwork, match="names of the choices"):
        SearchSpace.read(model)
    model = mobile_space((8,), edge=8, blocks=1)
    pooled = helper.make_node("GlobalAveragePool", [model.graph.node[1].output[0]], ["pooled"], "pooled")
    at = next(at for at, node in enumerate(model.graph.node) if node.name.startswith("choice:"))
    model.graph.node.insert(at, pooled)
    model.graph.node[at + 1].input[0] = "pooled"
    with pytest.raises(InvalidNetwork, match="differ in type"):
        SearchSpace.read(model)
