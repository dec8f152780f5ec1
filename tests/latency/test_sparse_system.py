"""The sparse system: exact values, bounds, intervals, robustness, and refusal of ambiguous designs."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.optimize import nnls

from harness.errors import IllConditionedDesign
from harness.latency.sparse_system import Equation, Solution, solve
from harness.latency.unknowns import Unknown, coefficient, in_front

SEEDS = st.integers(0, 2**32 - 1)
RUN = coefficient("runs")


def layer(name: str) -> Unknown:
    """Return the unknown of a layer, which may be negative."""
    return Unknown("layer", (name,))


def probes(truth: dict[Unknown, float], seed: int, relative: float, outliers: float = 0.0) -> list[Equation]:
    """Return layers behind three shared producers, each layer also alone, and null probes, each with the overhead."""
    draw = np.random.default_rng(seed)
    layers = [one for one in truth if one.kind == "layer"]
    held: list[dict[Unknown, float]] = [{RUN: 1.0} for _ in range(4)]
    held += [{in_front(f"{at}"): 1.0, RUN: 1.0} for at in range(3) for _ in range(2)]
    held += [{one: 1.0, in_front(f"{at % 3}"): 1.0, RUN: 1.0} for at, one in enumerate(layers)]
    held += [{one: float(copies), RUN: 1.0} for one in layers for copies in (1, 2, 4)]
    equations = []
    for amounts in held:
        total_s = sum(truth[one] * amount for one, amount in amounts.items())
        stderr_s = max(relative, 1e-9) * total_s
        slow = 1.5 if draw.random() < outliers else 1.0
        seen_s = slow * total_s + relative * total_s * draw.standard_normal()
        equations.append(Equation(amounts, seen_s, stderr_s))
    return equations


def times(seed: int, layers: int = 12) -> dict[Unknown, float]:
    """Return true times between a microsecond and ten milliseconds."""
    draw = np.random.default_rng(seed)
    unknowns = [RUN, *(in_front(f"{at}") for at in range(3)), *(layer(f"{at}") for at in range(layers))]
    return dict(zip(unknowns, 10 ** draw.uniform(-6, -2, len(unknowns)), strict=True))


def found(solution: Solution) -> dict[Unknown, float]:
    """Return the values by unknown."""
    return dict(zip(solution.unknowns, solution.values, strict=True))


@given(SEEDS)
@settings(max_examples=15)
def test_exact_totals_give_the_exact_times(seed: int) -> None:
    """Without noise every unknown has its true value, over four orders of magnitude."""
    truth = times(seed)
    solution = solve(probes(truth, seed, 0.0))
    assert found(solution) == pytest.approx(truth, rel=1e-5)
    assert solution.scale < 1


@given(SEEDS)
@settings(max_examples=25)
def test_no_time_is_negative_and_the_bound_is_the_optimum(seed: int) -> None:
    """Where noise would give negative times, the solution is that of non-negative least squares."""
    draw = np.random.default_rng(seed)
    design = draw.uniform(0, 2, (14, 8)) * (draw.random((14, 8)) < 0.5) + np.eye(14, 8)
    total = design @ (draw.uniform(0, 1, 8) * (draw.random(8) < 0.5)) + 0.01 * draw.standard_normal(14)
    equations = [
        Equation({in_front(f"{at}"): amount for at, amount in enumerate(row)}, value, 1.0)  # large errors: no outliers
        for row, value in zip(design.tolist(), total.tolist(), strict=True)
    ]
    solution = solve(equations)
    best, _ = nnls(design, total)
    assert (solution.values >= 0).all()
    assert solution.values == pytest.approx(best, abs=1e-7)


def test_intervals_hold_as_often_as_they_say() -> None:
    """Of the times of 40 noisy campaigns, 95 % are within 1.96 standard errors."""
    held = []
    for seed in range(40):
        truth = times(seed)
        solution = solve(probes(truth, seed, 0.01))
        stderr = np.sqrt(solution.variances)
        true = np.array([truth[one] for one in solution.unknowns])
        held.extend(abs(solution.values - true) < 1.96 * stderr)
    assert 0.92 < np.mean(held) < 0.985


def test_slow_totals_among_many_have_little_effect() -> None:
    """With a tenth of the totals slower by half, most times stay within 3 %."""
    errors = []
    for seed in range(20):
        truth = times(seed)
        solution = solve(probes(truth, seed, 0.01, outliers=0.1))
        errors.extend(abs(found(solution)[one] / truth[one] - 1) for one in truth if truth[one] > 1e-4)
    assert np.median(errors) < 0.03


def test_the_covariance_is_that_of_the_normal_equations() -> None:
    """For two unknowns the covariance is (AᵀWA)⁻¹."""
    a, b = layer("a"), layer("b")
    equations = [Equation({a: 1, b: 1}, 3.0, 0.1), Equation({a: 1}, 1.0, 0.2), Equation({b: 2}, 4.0, 0.3)]
    design, weight = np.array([[1, 1], [1, 0], [0, 2]]), np.diag([100.0, 25.0, 1 / 0.09])
    solution = solve(equations)
    assert solution.covariance.between(np.arange(2)) == pytest.approx(np.linalg.inv(design.T @ weight @ design))
    assert solution.values == pytest.approx([1.0, 2.0])


def test_layers_that_never_occur_apart_are_refused_by_name() -> None:
    """Unknowns that only occur together are refused; the error names them and a probe that would separate them."""
    equations = [
        Equation({layer("conv"): 1, layer("relu"): 1, RUN: 1}, 3.0, 0.1),
        Equation({layer("conv"): 2, layer("relu"): 2, RUN: 1}, 5.0, 0.1),
        Equation({RUN: 1}, 1.0, 0.1),
    ]
    with pytest.raises(IllConditionedDesign) as refusal:
        solve(equations)
    assert "layer conv and layer relu" in str(refusal.value.why)
    assert "without" in str(refusal.value.next_step)
