"""Rows and sentences that the tables of all devices in docs/accuracy.md share."""

import statistics
from collections.abc import Callable, Mapping, Sequence

from benchmarks.accuracy.devices import REJECTED_P, TENTH, TWENTIETH, Errors, Measured, holds_at_90, p_of_90
from benchmarks.accuracy.page import reached
from benchmarks.generated_page import Reached, microseconds, percent, signed, table, yes
from harness.validation.oracle_comparison import OracleReport
from harness.validation.results import NetworkValidation

COEFFICIENTS = {
    "a_s_per_byte": ("a", "input_bytes", "ns/B", 1e9),
    "b_s_per_byte": ("b", "output_bytes", "ns/B", 1e9),
    "c_s": ("c", "runs", "µs", 1e6),
}
SHOWN_LAYERS = 10
ESTIMATE_HEADER = (
    *("`joint`", "95 % interval holds", "90 %"),
    *("`difference` (S1.7)", "`regression` (plain S1)", "naive sum"),
)


_FIGURES: Mapping[str, Callable[[Errors], str]] = {
    "mean absolute": lambda errors: percent(errors.mean),
    "median absolute": lambda errors: percent(errors.median),
    "RMSPE": lambda errors: percent(errors.rmspe),
    "worst": lambda errors: percent(errors.worst),
    "within 5 %": lambda errors: errors.share(TWENTIETH),
    "within 10 %": lambda errors: errors.share(TENTH),
}


def estimate_cells(network: NetworkValidation, measured: Measured) -> tuple[str, ...]:
    """Return the errors of one network by all estimators, in the order of ESTIMATE_HEADER."""
    return (
        f"**{signed(network.error)}**",
        yes(network.within_interval),
        yes(holds_at_90(network)),
        *(signed(_other_error(network, measured, method)) for method in ("difference", "regression")),
        signed(network.naive_error),
    )


def summary_rows(measured: Measured, last: Sequence[object], floor: str | None = None) -> list[tuple[object, ...]]:
    """Return rows over all networks: how often intervals hold, then figures of the errors of each estimator.

    `last` fills the columns of layers.
    """
    networks = measured.networks
    columns: list[list[float | None]] = [
        [network.error for network in networks],
        *([_other_error(network, measured, method) for network in networks] for method in ("difference", "regression")),
        [network.naive_error for network in networks],
    ]
    known = [Errors(tuple(error for error in column if error is not None)) for column in columns]
    in_front = ("",) if floor is None else ("", floor)
    held = [
        f"{sum(holds)} of {len(networks)}"
        for holds in ([one.within_interval for one in networks], [*map(holds_at_90, networks)])
    ]
    rows: list[tuple[object, ...]] = [("**all**", *in_front, "", *held, *[""] * len(columns[1:]), *last)]
    for name, figure in _FIGURES.items():
        joint, *others = [figure(errors) if errors.errors else "–" for errors in known]
        rows.append((f"**{name}**", *[""] * len(in_front), f"**{joint}**", "", "", *others, *[""] * len(last)))
    return rows


def cost_sentence(measured: Measured) -> str:
    """Return the numbers of probes, samples, seconds and entries in a sentence."""
    found, entries = measured.profiled, measured.table.entries
    unresolved = sum(not entry.resolved for entry in entries)
    flagged = sum(bool(entry.flags) for entry in entries)
    return (
        f"{found.probes:,} probes ({found.refused} refused, {found.unsettled} did not reach the 1 % target), "
        f"{found.samples:,} samples, a median of {found.median_runs:.0f} runs per probe, {found.device_seconds:.1f} s "
        f"on the device and {found.wall_seconds:.0f} s in total. The table has {len(entries):,} entries; {unresolved} "
        f"are below resolution, {flagged} are flagged by another estimator. {measured.predicted} layers without an "
        "entry were predicted."
    )


def overhead_table(measured: Measured, oracle: OracleReport) -> str:
    """Return the table of true and fitted a, b and c."""
    rows = []
    for name, (letter, column, unit, scale) in COEFFICIENTS.items():
        truth, fitted = oracle.overhead[name], measured.table.overhead.coefficients[column]
        low, high = fitted.low * scale, fitted.high * scale
        holds = yes(fitted.low <= truth.true <= fitted.high)
        true, value = f"{truth.true * scale:.4g} {unit}", f"{fitted.value * scale:.4g}"
        rows.append((letter, true, value, f"[{low:.4g}, {high:.4g}]", holds, signed(truth.error)))
    return table(("", "true", "fitted", "95 % interval", "holds", "error"), rows)


def interval_sentence(measured: Measured) -> str:
    """Return how often the intervals of networks hold, in a sentence."""
    networks = measured.networks
    held_95 = sum(network.within_interval for network in networks)
    held_90 = sum(map(holds_at_90, networks))
    halfwidths = [(one.interval_s[1] - one.interval_s[0]) / 2 / one.estimated_s for one in networks]
    return (
        f"The 95 % interval contains the measured latency of {held_95} of {len(networks)} networks, the 90 % interval "
        f"that of {held_90} (exact binomial test against 90 %: p = {p_of_90(held_90, len(networks)):.2g}). The median "
        f"half-width of the 95 % interval is ±{percent(statistics.median(halfwidths))}."
    )


def interval_target(device: str, measured: Measured) -> Reached:
    """Return the target about the 90 % intervals of networks."""
    held, count = sum(map(holds_at_90, measured.networks)), len(measured.networks)
    p = p_of_90(held, count)
    return reached(f"{device}: 90 % intervals of networks hold", f"{held} of {count}, p = {p:.2g}", p >= REJECTED_P)


def furthest_table(oracle: OracleReport) -> str:
    """Return the table of layers with the largest errors relative to their network's time."""
    found = [(network, layer) for network in oracle.networks for layer in network.layers]
    found.sort(key=lambda item: -abs(item[1].estimated_s - item[1].true_s) / item[0].true_s)
    rows = [
        (
            network.name,
            f"{_short(layer.name)} ({_short(layer.op)})",
            microseconds(layer.true_s),
            microseconds(layer.estimated_s),
            signed(layer.error),
            signed((layer.estimated_s - layer.true_s) / network.true_s),
        )
        for network, layer in found[:SHOWN_LAYERS]
    ]
    return table(("network", "layer", "true µs", "estimated µs", "error", "of the network"), rows)


def _other_error(network: NetworkValidation, measured: Measured, method: str) -> float | None:
    estimated_s = measured.others[method].get(network.name)
    return None if estimated_s is None else estimated_s / network.measured_s - 1


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:38]}…"
