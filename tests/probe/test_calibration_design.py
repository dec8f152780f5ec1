"""The calibration probes have sizes that vary independently, so that a, b and c can be separated (S1.4)."""

import numpy as np
import pytest
from probe_models import executed_by_openvino, graph_of, run_on_onnxruntime

from harness.errors import IllConditionedDesign
from harness.latency.overhead import COLUMNS, row_of
from harness.latency.overhead_fit import fit_overhead
from harness.measure.summary import Measurement
from harness.probe.auxiliary import AuxiliaryKind, auxiliary_for
from harness.probe.calibration import BUSY_EDGE, calibration_probes
from harness.probe.overhead_terms import LATER_TERMS, OverheadTerms
from harness.probe.probe import Probe

every_kind = pytest.mark.parametrize("kind", AuxiliaryKind)
every_size = pytest.mark.parametrize("largest", [0, 602_112, 4_000_000])
TRUE = {
    "runs": 8e-6,
    "input_bytes": 2e-11,
    "output_bytes": 5e-11,
    "auxiliaries": 2e-6,
    "auxiliary_input_bytes": 1e-11,
    "auxiliary_output_bytes": 4e-11,
    "slices": 3e-6,
    "slice_bytes": 6e-11,
    "views": 7e-7,
    "loaded_bytes": 6e-11,
    "stored_bytes": 7e-11,
    "accesses": 1e-7,
    "stacks": 1e-5,
    "stacked_rows": 8e-7,
    "last_bytes": 6e-10,
    "further_inputs": 6e-7,
    "further_outputs": 3e-7,
    "input_pairs": 1e-8,
}
MAX_CORRELATION = 0.9


def total(terms: OverheadTerms) -> float:
    """Return the latency on a device with the coefficients of `TRUE`."""
    return sum(TRUE[name] * amount for name, amount in zip(COLUMNS, row_of(terms), strict=True))


def measured(probes: tuple[Probe, ...], noise: float = 0.0) -> list[tuple[OverheadTerms, Measurement]]:
    """Return measurements of the probes on a device of known overhead."""
    random = np.random.default_rng(1)
    found = []
    for probe in probes:
        seconds = total(probe.terms) * (1 + noise * random.standard_normal())
        found.append((probe.terms, Measurement(seconds, 0.002 * seconds, 0.004 * seconds, 30, 0, "cpu")))
    return found


@every_kind
@every_size
def test_input_and_output_sizes_vary_independently(kind: AuxiliaryKind, largest: int) -> None:
    """Input and output sizes are nearly independent: the correlation of their logarithms is bounded."""
    terms = [probe.terms for probe in calibration_probes(kind, largest)]
    sizes = np.log([[each.input_bytes, each.output_bytes] for each in terms])
    assert abs(np.corrcoef(sizes, rowvar=False)[0, 1]) < MAX_CORRELATION


@every_kind
@every_size
def test_each_input_size_comes_with_several_output_sizes(kind: AuxiliaryKind, largest: int) -> None:
    """Some probes of one input size differ in output size, and the other way round."""
    sizes = {(probe.terms.input_bytes, probe.terms.output_bytes) for probe in calibration_probes(kind, largest)}
    for side in (0, 1):
        repeated = [pair[side] for pair in sizes]
        assert len(set(repeated)) < len(repeated)


@every_kind
@every_size
def test_the_design_gives_the_true_coefficients_back(kind: AuxiliaryKind, largest: int) -> None:
    """On a device without noise, the regression finds the true a, b, c and cost of the auxiliary layer."""
    overhead = fit_overhead(measured(calibration_probes(kind, largest)))
    found = {name: overhead.coefficients[name].value for name in overhead.least_squares}
    assert found == pytest.approx({name: TRUE[name] for name in found}, rel=1e-3)
    beside_host = {"loaded_bytes", "stored_bytes", "accesses", "stacks", "stacked_rows", "last_bytes"}
    on_chip = {"auxiliary_output_bytes", *LATER_TERMS}
    assert set(COLUMNS) - set(found) == (on_chip if kind.layer.device_memory else beside_host)


@every_kind
def test_noise_of_one_percent_leaves_a_usable_fit(kind: AuxiliaryKind) -> None:
    """With 1 % noise every null probe is predicted within 5 %."""
    probes = calibration_probes(kind, 602_112)
    overhead = fit_overhead(measured(probes, noise=0.01))
    assert overhead.r2 > 0.98
    for probe in probes:
        assert overhead.of(row_of(probe.terms))[0] == pytest.approx(total(probe.terms), rel=0.05)


def test_half_a_design_is_refused() -> None:
    """Probes whose outputs are as large as their inputs are refused as ill-conditioned."""
    probes = [probe for probe in calibration_probes(AuxiliaryKind.CONV1X1, 0) if " /1" in probe.label]
    equal = tuple(probe for probe in probes if probe.label.startswith("null 12x"))
    with pytest.raises(IllConditionedDesign):
        fit_overhead(measured(equal))


@every_kind
def test_calibration_reaches_the_networks_at_hand(kind: AuxiliaryKind) -> None:
    """The largest null probe has an input of at least 190 kB and of at least the size asked for."""
    for largest, least in ((0, 190_000), (602_112, 602_112), (3_000_000, 3_000_000)):
        assert max(probe.terms.input_bytes for probe in calibration_probes(kind, largest)) >= least


@every_kind
def test_calibration_probes_are_distinct_and_hold_no_layer(kind: AuxiliaryKind) -> None:
    """Null probes are distinct and consist of auxiliary layers, slices and views, all counted in their terms."""
    probes = calibration_probes(kind, 602_112)
    assert len({probe.id for probe in probes}) == len(probes)
    for probe in probes:
        if probe.terms.stacks:
            continue
        ops = [node.op_type for node in graph_of(probe.model).node]
        assert set(ops) <= {"AveragePool", "Conv", "MatMul", "Slice", "Unsqueeze"}
        assert ops.count("Slice") == probe.terms.slices
        assert len(ops) == probe.terms.slices + probe.terms.views + probe.terms.auxiliaries
        assert probe.role == "calibration"


@every_kind
def test_calibration_probes_run_on_onnxruntime(kind: AuxiliaryKind) -> None:
    """Every null probe runs, and its outputs have the size in its terms."""
    for probe in calibration_probes(kind, 602_112):
        outputs = run_on_onnxruntime(probe.model)
        assert sum(value.nbytes for value in outputs) == probe.terms.output_bytes


@every_kind
def test_stacks_are_executed_as_stacks(kind: AuxiliaryKind, tmp_path_factory: pytest.TempPathFactory) -> None:
    """ONNX Runtime does not merge the auxiliary layers of a stack, which would remove their fixed cost."""
    import onnx

    for probe in calibration_probes(kind, 0):
        if probe.terms.auxiliaries > 1 and not probe.terms.stacks:
            path = str(tmp_path_factory.mktemp("graph") / "optimised.onnx")
            run_on_onnxruntime(probe.model, path)
            ops = [node.op_type for node in onnx.load_model(path).graph.node]
            assert len([op for op in ops if not op.startswith("Reorder")]) == probe.terms.auxiliaries


@every_kind
def test_probes_count_the_tensors_that_cross_to_the_host(kind: AuxiliaryKind) -> None:
    """Terms count the inputs and outputs beyond one of each, except where a device's own memory waits for each."""
    for probe in calibration_probes(kind, 0):
        graph = graph_of(probe.model)
        further = len(graph.input) - 1, len(graph.output) - 1
        counted = (0, 0) if kind.layer.device_memory else further
        assert (probe.terms.further_inputs, probe.terms.further_outputs) == counted
        assert probe.terms.input_pairs == sum(range(counted[0] + 1))


def test_openvino_reorders_nothing_in_null_probes() -> None:
    """Each executes its pools and views only, as often as it holds them: a, b and c have no reorders in them."""
    for probe in calibration_probes(AuxiliaryKind.AVGPOOL, 0):
        executed = executed_by_openvino(probe.model)
        assert "Reorder" not in executed
        assert executed.count("Pooling") == probe.terms.auxiliaries


def test_busy_stacks_differ_only_in_their_outputs() -> None:
    """Busy stacks of one height compute the same, read all of it, and return 1/256 of it, or half of it as well."""
    every = [probe for probe in calibration_probes(AuxiliaryKind.ROWPOOL, 0) if probe.terms.stacks]
    heights = sorted({probe.terms.stacked_rows for probe in every})
    assert len(heights) > 1
    for rows in heights:
        stacks = [probe for probe in every if probe.terms.stacked_rows == rows]
        few, more = [[node.SerializeToString() for node in graph_of(probe.model).node] for probe in stacks]
        assert few == more
        for node in graph_of(stacks[0].model).node[-2:]:
            attributes = {item.name: list(item.ints) for item in node.attribute}
            assert attributes["kernel_shape"] == attributes["strides"]
        sizes = [probe.terms.output_bytes for probe in stacks]
        assert max(sizes) == (128 + 1) * min(sizes)
        assert [probe.terms.last_bytes * rows for probe in stacks] == sizes
        assert {(one.terms.input_bytes, one.terms.loaded_bytes, one.terms.stored_bytes) for one in stacks} == {
            (4 * BUSY_EDGE * rows, 0, 0)
        }


def test_only_devices_beside_their_host_get_busy_stacks() -> None:
    """Only kinds for devices with their own memory have busy stacks, and such devices get such a kind."""
    assert auxiliary_for("device") == AuxiliaryKind.ROWPOOL
    assert auxiliary_for("cpu") == auxiliary_for("wall") == AuxiliaryKind.AVGPOOL
    for kind in AuxiliaryKind:
        hidden = any(probe.terms.stacks for probe in calibration_probes(kind, 0))
        assert hidden == kind.layer.device_memory
