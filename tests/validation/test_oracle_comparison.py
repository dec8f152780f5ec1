"""Comparison of a table with the truth: the layers compared, and the summary."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from nullbench import build_network

from device_agents.messages import TrueLayer, TrueOverhead, Truth
from harness.errors import ProtocolError
from harness.estimation.layer_estimates import LayerEstimate
from harness.estimation.network_estimate import NetworkEstimate
from harness.latency.overhead import Coefficient, Overhead
from harness.network.fusion.fusion_rules import DEFAULT_RULES
from harness.network.layers import Layer, cut
from harness.network.model_references import load_network
from harness.probe.probe import network_probe
from harness.validation.oracle_comparison import LayerTruth, NetworkTruth, compare_network, report_truth

OVERHEAD_S = 1e-3
OPS = ["Conv+Relu", "Conv+Relu", "Conv+Relu", "GlobalAveragePool", "Flatten", "Gemm"]


class Compared:
    """The bench's network of six layers, each estimated at one millisecond unless given."""

    def __init__(self, folder: Path, latencies_s: Mapping[int, float] | None = None) -> None:
        network = load_network(str(build_network(folder / "chain.onnx")))
        self.layers = cut(network, DEFAULT_RULES)
        self.names = network_probe(network).model.names
        self.emitted = {index: name for name, index in self.names.nodes.items()}
        estimates = tuple(
            LayerEstimate(layer.name, layer.op, layer.key.digest, own_s, 1e-5, "measured", remainder_s=own_s)
            for at, layer in enumerate(self.layers)
            for own_s in [(latencies_s or {}).get(at, 1e-3)]
        )
        self.estimate = NetworkEstimate("net", None, None, 0.0, OVERHEAD_S, {}, estimates, ())

    def nodes(self, *layers: int, part: slice = slice(None)) -> tuple[str, ...]:
        """Return the names, in the model sent to the device, of the nodes of these layers."""
        chosen: list[Layer] = [self.layers[at] for at in layers]
        return tuple(self.emitted[node.index] for layer in chosen for node in layer.graph.nodes[part])

    def __call__(self, *executed: tuple[tuple[str, ...], float]) -> NetworkTruth:
        """Return the comparison for a device that executes these nodes in these times."""
        return self.over_processes(executed)

    def over_processes(self, *processes: Sequence[tuple[tuple[str, ...], float]]) -> NetworkTruth:
        """Return the comparison for processes that each report the times of these nodes."""
        truths = []
        for executed in processes:
            reported = tuple(TrueLayer(f"layer {at}", nodes, time_s) for at, (nodes, time_s) in enumerate(executed))
            truths.append(Truth(None, sum(one.latency_s for one in reported), reported))
        return compare_network(self.estimate, self.layers, self.names, truths)


def test_a_layer_is_compared_with_the_mean_over_processes(tmp_path: Path) -> None:
    """The true time is the mean of what processes report, and their difference is the floor of layers.

    The share of a layer is of the network's latency, the overhead included.
    """
    compared = Compared(tmp_path)
    quick = [(compared.nodes(at), 1e-3) for at in range(6)]
    slow = [(compared.nodes(at), 3e-3 if at == 0 else 1e-3) for at in range(6)]
    found = compared.over_processes(quick, slow)
    assert [layer.true_s for layer in found.layers] == pytest.approx([2e-3, *[1e-3] * 5])
    assert found.layers[0].processes_s == pytest.approx((1e-3, 3e-3))
    assert found.true_s == pytest.approx(7e-3)
    assert [layer.share for layer in found.layers] == pytest.approx([2 / 8, *[1 / 8] * 5])
    overhead = _overhead(a=2e-10, b=1e-12, c=1e-4)
    assert report_truth(overhead, PROFILE, [found]).repeatability == pytest.approx(2 / 7)
    assert report_truth(overhead, PROFILE, [compared(*quick)]).repeatability is None


def test_layers_that_one_process_executes_as_one_are_one_in_all(tmp_path: Path) -> None:
    """If one process fuses two layers and another does not, their sums are compared."""
    compared = Compared(tmp_path)
    apart = [(compared.nodes(at), 1e-3) for at in range(6)]
    fused = [(compared.nodes(0, 1), 4e-3), *apart[2:]]
    found = compared.over_processes(apart, fused)
    assert len(found.layers) == 5
    assert found.layers[0].processes_s == pytest.approx((2e-3, 4e-3))


def test_layers_are_compared_one_by_one(tmp_path: Path) -> None:
    """Layers that the device executes as cut are each compared with their own entry."""
    compared = Compared(tmp_path)
    found = compared(*((compared.nodes(at), 2e-3) for at in range(6)))
    assert [layer.op for layer in found.layers] == OPS
    for layer in found.layers:
        assert (layer.true_s, layer.estimated_s) == (2e-3, 1e-3)
        assert (layer.error, layer.share) == (pytest.approx(-0.5), pytest.approx(2 / 13))
    assert (found.true_s, found.unassigned_s) == (pytest.approx(12e-3), 0)
    assert found.estimated_s == pytest.approx(6e-3)


def test_several_layers_of_the_device_in_one_of_ours_add_up(tmp_path: Path) -> None:
    """A layer that the device executes in several steps is compared with their sum."""
    compared = Compared(tmp_path)
    first, second = compared.nodes(0, part=slice(1)), compared.nodes(0, part=slice(1, 2))
    found = compared((first, 3e-4), (second, 2e-4), (second, 4e-4), *((compared.nodes(at), 1e-3) for at in range(1, 6)))
    assert found.layers[0].true_s == pytest.approx(9e-4)
    assert len(found.layers) == 6


def test_layers_that_the_device_executes_as_one_are_compared_together(tmp_path: Path) -> None:
    """Layers that the device executes as one are compared as one, with joined names and summed entries."""
    compared = Compared(tmp_path, {3: 5e-4, 4: 0.0})
    found = compared(*((compared.nodes(at), 1e-3) for at in range(3)), (compared.nodes(3, 4, 5), 3e-3))
    assert len(found.layers) == 4
    joined = found.layers[-1]
    assert joined.op == "GlobalAveragePool + Flatten + Gemm"
    assert (joined.true_s, joined.estimated_s) == (pytest.approx(3e-3), pytest.approx(1.5e-3))
    assert joined.error == pytest.approx(-0.5)


def test_layers_that_cost_nothing_have_no_error(tmp_path: Path) -> None:
    """A layer that takes the device no time is listed with its estimate and without an error."""
    compared = Compared(tmp_path, {4: 1e-6})
    found = compared(*((compared.nodes(at), 1e-3) for at in (0, 1, 2, 3, 5)))
    assert (found.layers[4].true_s, found.layers[4].estimated_s, found.layers[4].error) == (0.0, 1e-6, None)


def test_time_for_no_node_is_listed_separately(tmp_path: Path) -> None:
    """Time that the device spends on no node belongs to no layer but to the total."""
    compared = Compared(tmp_path)
    found = compared(*((compared.nodes(at), 1e-3) for at in range(6)), ((), 5e-4))
    assert found.unassigned_s == pytest.approx(5e-4)
    assert found.true_s == pytest.approx(6.5e-3)


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """Return the network, read once for many comparisons."""
    return Compared(tmp_path_factory.mktemp("model"))


@given(data=st.data())
def test_nothing_is_lost_or_counted_twice(data: st.DataObject, standing: Compared) -> None:
    """For any grouping of nodes, true times and estimates of the comparisons add up to those of the network."""
    nodes = standing.nodes(*range(6))
    groups = data.draw(st.lists(st.lists(st.sampled_from(nodes), max_size=3, unique=True), min_size=1, max_size=8))
    found = standing(*((tuple(group), 1e-3) for group in groups))
    assert sum(layer.true_s for layer in found.layers) + found.unassigned_s == pytest.approx(1e-3 * len(groups))
    assert sum(layer.estimated_s for layer in found.layers) == found.estimated_s == pytest.approx(6e-3)
    assert sum(len(layer.name.split(" + ")) for layer in found.layers) == 6


def test_unknown_nodes_are_refused(tmp_path: Path) -> None:
    """A node that the model does not have is refused."""
    with pytest.raises(ProtocolError, match="n99"):
        Compared(tmp_path)((("n99",), 1e-3))


def _overhead(**values: float) -> Overhead:
    names = {"input_bytes": values["a"], "output_bytes": values["b"], "runs": values["c"]}
    coefficients = {name: Coefficient(value, 0.0, value, value) for name, value in names.items()}
    return Overhead(coefficients, (), {}, 1.0, 1.0, 1.0, 0.0, 10)


def _network(errors: Sequence[float], share: float = 0.1) -> NetworkTruth:
    layers = tuple(LayerTruth(f"l{at}", "Conv", 1.0, 1 + error, share, error) for at, error in enumerate(errors))
    return NetworkTruth("net", 1.0, 1.0, 0.0, layers)


TRUTH = Truth(TrueOverhead(1e-10, 0.0, 1e-4), 1.0, ())
PROFILE = Truth(None, 1.0, ())


def test_overhead_is_compared_with_the_fit() -> None:
    """Each of a, b and c is compared with its true value; a true value of zero has no error."""
    found = report_truth(_overhead(a=2e-10, b=1e-12, c=1e-4), TRUTH, [_network([0.1])]).overhead
    assert (found["a_s_per_byte"].true, found["a_s_per_byte"].fitted) == (1e-10, 2e-10)
    assert found["a_s_per_byte"].error == pytest.approx(1.0)
    assert found["b_s_per_byte"].error is None
    assert found["c_s"].error == pytest.approx(0.0)


def test_summary_is_over_the_layers_that_matter() -> None:
    """Median and 95th percentile cover the absolute errors of layers above 1 % of their network's time."""
    fitted = _overhead(a=1e-10, b=0.0, c=1e-4)
    errors = [(-1) ** at * at / 100 for at in range(101)]
    found = report_truth(fitted, TRUTH, [_network(errors), _network([9.0, -9.0], share=0.01)])
    assert found.counted == 101
    assert (found.median_error, found.p95_error) == (pytest.approx(0.5), pytest.approx(0.95))
    assert [layer.error for _, layer in found.worst(3)] == pytest.approx([1.0, -0.99, 0.98])


def test_without_layers_that_matter_there_is_no_summary() -> None:
    """Without counted layers, median and percentile are None."""
    found = report_truth(_overhead(a=1e-10, b=0.0, c=1e-4), TRUTH, [_network([0.5], share=0.001)])
    assert (found.counted, found.median_error, found.p95_error, found.worst(5)) == (0, None, None, ())


def test_a_runtime_profile_has_no_overhead_to_compare() -> None:
    """A runtime's profile without a, b, c gives a comparison of layers alone."""
    found = report_truth(_overhead(a=2e-10, b=1e-12, c=1e-4), PROFILE, [_network([0.1])])
    assert found.overhead == {}
    assert found.median_error == pytest.approx(0.1)


def test_long_layers_and_all_layers_have_their_own_sums() -> None:
    """Estimates of 66, 30 and 1 us for 60, 40 and 0 us have a time-weighted error of 17 % and one long layer."""
    pairs = [(60e-6, 66e-6), (40e-6, 30e-6), (0.0, 1e-6)]
    layers = [
        LayerTruth(f"l{at}", "Conv", true_s, estimated_s, 0.0, estimated_s / true_s - 1 if true_s else None)
        for at, (true_s, estimated_s) in enumerate(pairs)
    ]
    network = NetworkTruth("net", 1e-4, 97e-6, 0.0, tuple(layers))
    found = report_truth(_overhead(a=1e-10, b=0.0, c=1e-4), PROFILE, [network])
    assert found.time_weighted_error == pytest.approx((6 + 10 + 1) / 100)
    assert found.mean_error_long == pytest.approx(0.1)
    nothing = report_truth(_overhead(a=1e-10, b=0.0, c=1e-4), PROFILE, [_network([])])
    assert (nothing.time_weighted_error, nothing.mean_error_long) == (None, None)
