"""Conformal intervals and coverage classes."""

import math

import numpy as np
import pytest
import tiled_machine
from convolutions import convolution
from layer_keys import described
from scipy.stats import binomtest

from harness.predictor.features.layer_arrays import layer_arrays
from harness.predictor.features.layer_features import LayerFeatures
from harness.predictor.uncertainty.coverage import Coverage, hull_of
from harness.predictor.uncertainty.intervals import ANY, LEVEL, Residuals, calibrate, conformal_quantile

LONG_S = 1e-3
"""The latency of all layers, so that only relative errors matter."""


def residuals(errors: list[float], coverage: Coverage = Coverage.INSIDE, operator: str = "Conv") -> Residuals:
    """Return held-out layers of one operator and class, without spread."""
    count = len(errors)
    zeros = np.zeros(count)
    return Residuals((operator,) * count, (coverage,) * count, np.array(errors), zeros, zeros, np.full(count, LONG_S))


def test_quantiles_by_hand() -> None:
    """Of 9 scores the highest is the 90 % quantile; 8 are too few, and the quantile is infinite."""
    assert conformal_quantile([5.0, 9.0, 1.0, 2.0, 3.0, 4.0, 6.0, 7.0, 8.0]) == 9.0
    assert conformal_quantile([1.0] * 8) == math.inf


def test_calibrated_intervals_hold_at_their_level() -> None:
    """Over 1,000 calibrations on 60 layers, 90 % of further layers are within their intervals."""
    generator = np.random.default_rng(7)
    held = 0
    for _ in range(1000):
        errors = generator.pareto(2.0, 61)
        calibration = calibrate(residuals(errors[:60].tolist()))
        width = calibration.half_widths(["Conv"], [Coverage.INSIDE], np.zeros(1), np.zeros(1), np.full(1, LONG_S))
        held += bool(errors[60] <= width[0])
    # 55 of 61 ranks are at or below the 55th of 60 scores
    assert binomtest(held, 1000, 55 / 61).pvalue > 0.01
    assert pytest.approx(LEVEL, abs=0.005) == 55 / 61


def test_errors_in_sums_are_standard_deviations_that_single_layers_hardly_move() -> None:
    """Normal errors of 10 % are 10 % in sums; that 1 % of the layers are far off adds less than a tenth."""
    errors = np.abs(np.random.default_rng(7).normal(0.0, 0.1, 2000))
    asked = (["Conv"], np.zeros(1), np.zeros(1), np.full(1, LONG_S))
    usual = calibrate(residuals(errors.tolist())).errors(*asked)[0]
    assert usual == pytest.approx(0.1, rel=0.05)
    errors[:20] = 3.0
    assert usual < calibrate(residuals(errors.tolist())).errors(*asked)[0] < 1.1 * usual


def test_disagreement_and_distance_widen() -> None:
    """Intervals widen with disagreement of the trees and with each doubling outside the hull."""
    calibration = calibrate(residuals([0.01 * step for step in range(1, 101)]))
    near, unsure, far = calibration.half_widths(
        ["Conv"] * 3,
        [Coverage.INSIDE, Coverage.INSIDE, Coverage.OUTSIDE],
        np.array([0.0, 1.0, 0.0]),
        np.array([0, 0, 2.0]),
        np.full(3, LONG_S),
    )
    assert near < unsure
    assert far >= 3.0 * near


def test_short_layers_widen_only_their_own_operator() -> None:
    """Where short layers of one operator have large errors, its long ones and other operators keep narrow intervals."""
    errors = np.concatenate([np.full(50, 0.5), np.full(150, 0.02)])
    latency_s = np.concatenate([np.full(50, 1e-6), np.full(50, 1e-3), np.full(50, 1e-6), np.full(50, 1e-3)])
    operators = ("Conv",) * 100 + ("Pool",) * 100
    zeros = np.zeros(200)
    calibration = calibrate(Residuals(operators, (Coverage.INSIDE,) * 200, errors, zeros, zeros, latency_s))
    asked = [("Conv", 1e-6), ("Conv", 1e-3), ("Pool", 1e-6)]
    short, long, other = calibration.half_widths(
        [operator for operator, _ in asked],
        [Coverage.INSIDE] * 3,
        np.zeros(3),
        np.zeros(3),
        np.array([latency_s for _, latency_s in asked]),
    )
    assert short >= 0.5
    assert long < 0.1 and other < 0.1


def test_intervals_do_not_grow_without_end_as_layers_become_short() -> None:
    """An operator whose short layers have larger errors gives layers of no time at all a bounded interval."""
    errors = np.concatenate([np.full(50, 0.2), np.full(50, 0.02)])
    latency_s = np.concatenate([np.full(50, 1e-5), np.full(50, 1e-3)])
    zeros = np.zeros(100)
    calibration = calibrate(Residuals(("Conv",) * 100, (Coverage.INSIDE,) * 100, errors, zeros, zeros, latency_s))
    asked_s = np.array([1e-3, 1e-5, 1e-9, 1e-15])
    long, short, *none = calibration.half_widths(["Conv"] * 4, [Coverage.INSIDE] * 4, *np.zeros((2, 4)), asked_s)
    assert 0.02 <= long < short < none[0] == none[1] < 10 * short + 1e-9


@pytest.mark.parametrize("other_s", [20e-6, 10.1e-6])
def test_two_layers_say_little_of_how_errors_depend_on_latency(other_s: float) -> None:
    """With a bad and a good prediction of an operator, shorter layers are expected to be at most twice as bad."""
    zeros, latency_s = np.zeros(2), np.array([10e-6, other_s])
    found = calibrate(Residuals(("Conv",) * 2, (Coverage.INSIDE,) * 2, np.array([0.3, 0.01]), zeros, zeros, latency_s))
    asked_s = np.array([10e-6, 9e-6, 5e-6, 1e-9])
    known, *shorter = found.half_widths(["Conv"] * 4, [Coverage.INSIDE] * 4, *np.zeros((2, 4)), asked_s)
    assert max(shorter) <= 2 * known * (1 + 1e-9)


def test_further_out_is_never_narrower() -> None:
    """A coverage class with smaller errors than a nearer one gets the nearer one's quantile."""
    lucky = residuals([0.01] * 60, Coverage.EDGE)
    inside = residuals([0.1] * 60)
    both = Residuals(
        inside.operators + lucky.operators,
        inside.classes + lucky.classes,
        np.append(inside.errors, lucky.errors),
        *np.zeros((2, 120)),
        np.full(120, LONG_S),
    )
    quantiles = calibrate(both).quantiles
    assert quantiles["Conv", Coverage.INSIDE] == quantiles["Conv", Coverage.EDGE] == quantiles[ANY, Coverage.OUTSIDE]


def test_coverage_classes() -> None:
    """Learnt layers are inside, gaps between them edges, larger layers and new operators outside."""
    layers = [layer for layer in tiled_machine.random_layers(200, seed=5) if layer.operator == "Conv"]
    hull = hull_of(layer_arrays(layers), ("Conv",))

    def conv(channels: int, operator_kernel: int = 1) -> object:
        return convolution(
            batch=1, in_channels=channels, out_channels=64, size=(20, 20), kernel=(operator_kernel, operator_kernel)
        )

    known, beyond = hull.locate(layer_arrays(layers[:20]))
    assert set(known) == {Coverage.INSIDE}
    assert not beyond.any()
    pool = next(layer for layer in tiled_machine.random_layers(50, seed=6) if layer.operator == "MaxPool")
    classes, beyond = hull.locate(layer_arrays([conv(1024), conv(20, 2), pool]))  # type: ignore[list-item]
    assert classes == [Coverage.OUTSIDE, Coverage.EDGE, Coverage.OUTSIDE]
    assert beyond.tolist() == pytest.approx(
        [2.0, 0.0, 1.0]
    )  # the most channels were 256; a new operator counts as one doubling


def test_a_layer_that_joins_more_tensors_than_any_learnt_one_is_outside() -> None:
    """Each joined tensor has a start of its own: many small ones are unlike two that are as large together."""

    def joined(parts: int) -> LayerFeatures:
        read = ",".join(["x0"] * parts)
        return described(f"k1|x0:float32[1,{160 // parts}]|Concat({read}){{axis=1}}|->t0:float32[1,160]")

    learnt = layer_arrays([joined(parts) for parts in (2, 4, 5, 8)])
    classes, _ = hull_of(learnt, (learnt.operators[0],)).locate(layer_arrays([joined(4), joined(80)]))
    assert classes == [Coverage.INSIDE, Coverage.OUTSIDE]
