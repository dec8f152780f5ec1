"""Hand-made tables, estimates and validations."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from harness.estimation.layer_estimates import LayerEstimate
from harness.estimation.network_estimate import NetworkEstimate
from harness.latency.overhead import COLUMNS, Coefficient, Overhead
from harness.lut.table import Lut
from harness.network.network import FreeNode
from harness.validation.results import NetworkValidation, Validation


def make_table(device: str = "board", **fingerprint: str) -> Lut:
    """Return a table without entries: a = 1 ns per byte, b = 2 ns per byte, c = 5 µs per run."""
    values = {"input_bytes": 1e-9, "output_bytes": 2e-9, "runs": 5e-6}
    plain = {"input_bytes": 1.25e-9, "output_bytes": -3e-9, "runs": 6e-6}
    overhead = Overhead(
        coefficients=_coefficients(values),
        covariance=((0.0,) * len(COLUMNS),) * len(COLUMNS),
        least_squares=plain,
        r2=0.98765,
        least_squares_r2=0.87654,
        condition=12.345,
        scatter=0.0123,
        probes=17,
    )
    other = replace(overhead, coefficients=_coefficients(plain), r2=0.87654, model="plain")
    return Lut(
        path=Path("2026-01-02-0a1b2c3d"),
        device=device,
        created="2026-01-02T03:04:05+00:00",
        clock="cpu",
        method="joint",
        fingerprint=fingerprint or {"cpu": "Some CPU", "governor": "performance"},
        overhead=overhead,
        other_overhead=other,
        rules=(),
        entries=(),
    )


def _coefficients(values: Mapping[str, float]) -> dict[str, Coefficient]:
    """Return coefficients with an interval of ± 10 %."""
    amounts = {name: values.get(name, 0.0) for name in COLUMNS}
    return {
        name: Coefficient(value, 0, value - 0.1 * abs(value), value + 0.1 * abs(value))
        for name, value in amounts.items()
    }


def make_estimate(
    name: str = "net", layers: tuple[tuple[str, float | None], ...] = (("first", 3e-3), ("second", 1e-3))
) -> NetworkEstimate:
    """Return an estimate with these layers, no overhead, ± 10 %, and two nodes that take no time."""
    made = tuple(
        LayerEstimate(layer, "Conv", "0" * 16, seconds, seconds and seconds / 100, source, remainder_s=seconds)
        for layer, seconds in layers
        for source in ["unknown" if seconds is None else "measured"]
    )
    known = [layer.latency_s for layer in made if layer.latency_s is not None]
    whole, complete = sum(known), len(known) == len(made)
    return NetworkEstimate(
        name=name,
        latency_s=whole if complete else None,
        interval_s=(0.9 * whole, 1.1 * whole) if complete else None,
        covered_latency_s=whole,
        overhead_s=0.0,
        coverage={"measured": len(known), "unknown": len(made) - len(known)},
        layers=made,
        free=(FreeNode("w1", "Constant", "constant"), FreeNode("drop", "Dropout", "dropout at inference")),
    )


def make_validation(*estimates: NetworkEstimate, naive: float | None = 1.25) -> Validation:
    """Return a validation at 0.96 of each estimate; `naive` is the naive sum over the measured latency."""
    results = []
    for estimate in estimates:
        assert estimate.latency_s is not None and estimate.interval_s is not None
        measured = 0.96 * estimate.latency_s
        results.append(
            NetworkValidation(
                name=estimate.name,
                estimated_s=estimate.latency_s,
                interval_s=estimate.interval_s,
                measured_s=measured,
                measured_halfwidth_s=0.01 * measured,
                wall_s=1.5 * measured,
                error=1 / 0.96 - 1,
                within_interval=True,
                processes_s=(measured, 1.01 * measured),
                repeatability=0.01,
                error_beyond_floor=1 / 0.96 - 1.01,
                naive_s=naive and naive * measured,
                naive_error=naive and naive - 1,
            )
        )
    return Validation(
        "board", "board/2026-01-02-0a1b2c3d", "cpu", tuple(results), 0.0417, 1.0, 1.0, 1.0, 0.01, 0.0317, ("governor",)
    )
