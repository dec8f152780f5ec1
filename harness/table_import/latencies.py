"""The latency of a row with its standard error, and several rows of one layer as one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from harness.table_import.cells import BadRow, Column, Row, number, read_as, size
from harness.table_import.mapping import SECONDS, ImportMapping

MAX_S = 1e5
MIN_S = 1e-12


class NotMeasured(Exception):
    """The file says that this row was not measured."""


@dataclass(frozen=True)
class RowLatency:
    """The latency of a row in seconds, its standard error, and its number of runs."""

    latency_s: float
    stderr_s: float
    runs: int


def latency_of(mapping: ImportMapping, row: Row) -> RowLatency:
    """Return the latency of a row; raises NotMeasured, and BadRow for one that is not a positive time."""
    if mapping.is_unmeasured(row.cells[mapping.latency.column]):
        raise NotMeasured
    latency_s = read_as(number, "latency", mapping.latency, row) * SECONDS[mapping.unit]
    _check(mapping.latency.column, latency_s)
    runs = max(1, _runs(mapping, row) or 1)
    return RowLatency(latency_s, stated_error_s(mapping, latency_s, row), runs)


def stated_error_s(mapping: ImportMapping, latency_s: float, row: Row | None = None) -> float:
    """Return the standard error of a latency; without a row, what the mapping states for all."""
    stated = mapping.uncertainty
    relative_s = (stated.relative or 0.0) * latency_s
    return relative_s if row is None else math.hypot(_spread_s(mapping, row), relative_s)


def _spread_s(mapping: ImportMapping, row: Row) -> float:
    stated, unit_s = mapping.uncertainty, SECONDS[mapping.unit]
    runs = _runs(mapping, row)
    if stated.stderr is not None:
        return _deviation(stated.stderr, row) * unit_s
    if stated.std is not None and runs:
        return _deviation(stated.std, row) * unit_s / math.sqrt(runs)
    if stated.low is not None and stated.high is not None and runs:
        low, high = (read_as(number, "latency", column, row) for column in (stated.low, stated.high))
        if high < low:
            raise BadRow(f"{stated.high.column} is below {stated.low.column}")
        return (high - low) * unit_s / (2 * NormalDist().inv_cdf(0.5 + stated.level / 2) * math.sqrt(runs))
    return 0.0


def _deviation(column: Column, row: Row) -> float:
    found = read_as(number, "stderr", column, row)
    if not 0 <= found <= MAX_S / SECONDS["ns"]:
        raise BadRow(f"{column.column} is {found:g}, which is not a deviation")
    return found


def _runs(mapping: ImportMapping, row: Row) -> int | None:
    if mapping.uncertainty.n is None:
        return None
    found = read_as(size, "n", mapping.uncertainty.n, row)
    if found < 1:
        raise BadRow("the number of runs is 0")
    return found


def without_overhead(mapping: ImportMapping, latency: RowLatency, input_bytes: int, output_bytes: int) -> RowLatency:
    """Subtract the stated overhead if the file's latencies include it; raises BadRow if the result is not positive."""
    stated = mapping.overhead
    if not stated.included:
        return latency
    overhead_s = stated.a_s_per_byte * input_bytes + stated.b_s_per_byte * output_bytes + stated.c_s
    if latency.latency_s <= overhead_s:
        raise BadRow(f"its latency {latency.latency_s:.3g} s is not above the overhead of {overhead_s:.3g} s")
    return RowLatency(latency.latency_s - overhead_s, latency.stderr_s, latency.runs)


def _check(name: str, latency_s: float) -> None:
    if not MIN_S <= latency_s <= MAX_S:
        raise BadRow(f"{name} is {latency_s:.3g} s, which is not a latency")


def combined(latencies: Sequence[RowLatency]) -> RowLatency:
    """Return the median of several rows of one layer; the spread between them enters the standard error."""
    if len(latencies) == 1:
        return latencies[0]
    latency_s = statistics.median(one.latency_s for one in latencies)
    between_s = statistics.stdev(one.latency_s for one in latencies) / math.sqrt(len(latencies))
    within_s = statistics.median(one.stderr_s for one in latencies)
    return RowLatency(latency_s, math.hypot(between_s, within_s), sum(one.runs for one in latencies))
