"""Training and prediction on measured convolutions and on a synthetic machine."""

import multiprocessing
from dataclasses import replace

import numpy as np
import pytest
import tiled_machine
import v100_convolutions
from hypothesis import given, strategies as st
from scipy.stats import binomtest

from harness.errors import LutCorrupt, UsageError
from harness.predictor import fit
from harness.predictor.features.layer_arrays import layer_arrays
from harness.predictor.features.layer_features import LEAST_SAMPLES, TrainingExample, matrix_product
from harness.predictor.fit import fit_predictor
from harness.predictor.predictor import Predictor
from harness.predictor.roofline.tiling_search import find_tiling
from harness.predictor.uncertainty.coverage import Coverage
from harness.predictor.uncertainty.intervals import LEVEL


@pytest.fixture(scope="module")
def machine() -> Predictor:
    """Return a predictor trained on 100 layers of three operators of the synthetic machine."""
    return fit_predictor(tiled_machine.measured(100, seed=1))


@pytest.fixture
def known_tiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings in this test do not search for the tiling, which takes most of their time."""
    monkeypatch.setattr("harness.predictor.fit.find_tiling", lambda *_: tiled_machine.TILING)


def within(predictor: Predictor, samples: list[TrainingExample], share: float) -> float:
    """Return the share of predictions within `share` of the measured latency."""
    predicted = predictor.predict_all([sample.layer for sample in samples])
    errors = [abs(each.latency_s / sample.latency_s - 1.0) for each, sample in zip(predicted, samples, strict=True)]
    return float(np.mean(np.array(errors) <= share))


def held(predictor: Predictor, samples: list[TrainingExample]) -> int:
    """Return the number of intervals that hold the measured latency."""
    predicted = predictor.predict_all([sample.layer for sample in samples])
    return sum(each.low_s <= sample.latency_s <= each.high_s for each, sample in zip(predicted, samples, strict=True))


def test_layers_never_measured_are_predicted(machine: Predictor) -> None:
    """100 measured layers predict most others within 10 %, with intervals that hold."""
    samples = tiled_machine.measured(400, seed=2)
    assert machine.operators == ("Conv", "MatMul", "MaxPool")
    assert within(machine, samples, 0.10) >= 0.8
    assert held(machine, samples) / 400 == pytest.approx(LEVEL, abs=0.1)  # calibrated on 100: a spread of 4 %


def test_beyond_what_was_learnt_intervals_are_wider(machine: Predictor) -> None:
    """A product sixteen times deeper than any learnt is outside, with a wider interval that holds."""
    usual = machine.predict(matrix_product(rows=30, depth=512, columns=512))
    deep = machine.predict(matrix_product(rows=30, depth=16 * 1024, columns=512))
    assert deep.coverage is Coverage.OUTSIDE
    assert deep.high_s / deep.low_s > usual.high_s / usual.low_s
    assert deep.low_s < tiled_machine.latency_s(matrix_product(rows=30, depth=16 * 1024, columns=512)) < deep.high_s


@pytest.mark.usefixtures("known_tiling")
def test_processes_do_not_change_what_is_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that several processes hold out give the predictor that one process learns."""
    samples, seen = tiled_machine.measured(60, seed=1), []
    alone = fit_predictor(samples)
    for name, value in (("_LEAST_SHARED", 0), ("cores", lambda: 3), ("may_fork", lambda: True)):
        monkeypatch.setattr(fit, name, value)
    together = fit_predictor(samples, progress=lambda done, count: seen.append((done, count)))
    assert together.content == alone.content
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert multiprocessing.active_children() == []


def test_an_operator_never_learnt_has_no_latency(machine: Predictor) -> None:
    """A layer of an operator that was never measured is not known, and predicting it is an error."""
    known = matrix_product(rows=40, depth=256, columns=256)
    layer = replace(known, operator="Gemm")
    assert machine.knows([known, layer]) == (True, False)
    with pytest.raises(UsageError, match="Gemm"):
        machine.predict(layer)


@given(power=st.integers(1, 12), operator=st.sampled_from(["Conv", "MatMul", "MaxPool"]))
def test_far_outside_predictions_are_not_absurd(machine: Predictor, power: int, operator: str) -> None:
    """A layer up to 4,096 times larger than any learnt one is outside, and predicted within a factor of four."""
    sample = next(one for one in tiled_machine.measured(100, seed=1) if one.layer.operator == operator)
    layer = replace(sample.layer, batch=2**power)
    prediction = machine.predict(layer)
    assert prediction.coverage is Coverage.OUTSIDE
    truth = tiled_machine.latency_s(layer)
    assert truth / 4 <= prediction.latency_s <= 4 * truth


def test_the_stored_form_predicts_the_same(machine: Predictor) -> None:
    """A predictor read from its stored form predicts the same to the last bit, in a batch as one by one."""
    layers = tiled_machine.random_layers(50, seed=3)
    loaded = Predictor(machine.content)
    assert loaded.predict_all(layers) == machine.predict_all(layers)
    one_by_one = [loaded.predict(layer) for layer in layers[:5]]
    for single, together in zip(one_by_one, loaded.predict_all(layers)[:5], strict=True):
        assert single.latency_s == pytest.approx(together.latency_s)
    assert loaded.predict_all([]) == ()


@pytest.mark.parametrize("content", [b"", b"not a predictor", b"{}\n", b"\xff\n", b"[" * 100_000])
def test_files_that_are_no_predictor_are_refused(content: bytes) -> None:
    """Other bytes are refused, and the error names the next step."""
    with pytest.raises(LutCorrupt, match=r"not a predictor.*harness lut build"):
        Predictor(content)


def test_a_predictor_of_another_version_is_named_as_such(machine: Predictor) -> None:
    """Parameters of another version are those of another version, whatever else is in the file."""
    with pytest.raises(LutCorrupt, match=r"another version of harness\. Its schema version is 99"):
        Predictor(b'{"schema_version":99}\n' + machine.content.partition(b"\n")[2])


@pytest.mark.usefixtures("known_tiling")
def test_training_is_deterministic_and_repeats_count_once() -> None:
    """Each example twice gives the same bytes as each example once."""
    samples = tiled_machine.measured(40, seed=1)
    assert fit_predictor(samples * 2).content == fit_predictor(samples).content


def test_units_are_found_from_the_data(machine: Predictor) -> None:
    """The search finds twelve units and their square tiles among a thousand units and thirty tiles."""
    tiling = machine.tiling
    assert tiling.units in (6, 12)  # two tiles a unit on 6 units are one tile a unit on 12
    assert any(rows == columns == tiled_machine.TILE for rows, columns, _ in tiling.tiles)


@pytest.mark.long
def test_the_search_finds_the_same_every_time(machine: Predictor) -> None:
    """The same layers give the same tiling."""
    samples = tiled_machine.measured(100, seed=1)
    arrays = layer_arrays([sample.layer for sample in samples])
    assert find_tiling(arrays, np.array([sample.latency_s for sample in samples]), seed=0) == machine.tiling


@pytest.mark.usefixtures("known_tiling")
def test_networks_are_held_out_whole() -> None:
    """Errors common to a network's layers widen intervals."""
    measured = tiled_machine.measured(60, seed=1)
    drift = [1.3, 0.7, 1.0]  # the factor of each network's layers that no feature explains
    samples = [
        TrainingExample(
            sample.layer, sample.latency_s * drift[place % 3], 0.01 * sample.latency_s, frozenset({f"n{place % 3}"})
        )
        for place, sample in enumerate(measured)
    ]
    predictor = fit_predictor(samples)
    (prediction,) = predictor.predict_all([measured[0].layer])
    assert prediction.operator == measured[0].layer.operator
    assert prediction.high_s / prediction.low_s > 1.3


def test_too_few_samples_are_refused() -> None:
    """Fewer different layers than the minimum are refused, however often each was measured."""
    samples = tiled_machine.measured(LEAST_SAMPLES - 1, seed=5)
    with pytest.raises(UsageError, match=f"at least {LEAST_SAMPLES}"):
        fit_predictor(samples * 3)


@pytest.mark.long
def test_intervals_hold_over_many_trainings() -> None:
    """Over eight trainings on 150 layers each, 88 to 92 % of the intervals of other layers hold."""
    parts = [
        (fit_predictor(tiled_machine.measured(150, seed)), tiled_machine.measured(400, 100 + seed)) for seed in range(8)
    ]
    assert sum(held(predictor, samples) for predictor, samples in parts) / 3200 == pytest.approx(LEVEL, abs=0.02)


@pytest.mark.long
@pytest.mark.parametrize(("known", "least"), [(3_000, 0.65), (10_000, 0.75)])
def test_measured_convolutions(known: int, least: float) -> None:
    """Of 15,000 convolutions on a real device, the given share is predicted within 10 %, and intervals hold."""
    train, test = v100_convolutions.split(0, known, 15_000)
    predictor = fit_predictor(train)
    assert within(predictor, test, 0.10) >= least
    assert binomtest(held(predictor, test[:1000]), 1000, LEVEL).pvalue > 0.01


@pytest.mark.long
def test_few_measured_convolutions() -> None:
    """100 measured convolutions predict a quarter of the others within 10 %."""
    train, test = v100_convolutions.split(1, 100, 1500)
    predictor = fit_predictor(train)
    assert within(predictor, test, 0.10) >= 0.25
    assert held(predictor, test) / len(test) == pytest.approx(LEVEL, abs=0.1)
