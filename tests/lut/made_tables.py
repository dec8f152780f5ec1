"""Entries and unpublished tables with plain values."""

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

from harness.latency.overhead import COLUMNS, Coefficient, Overhead
from harness.lut.table import Entry, Lut
from harness.network.fusion.fusion_rules import DEFAULT_RULES


def entry(signature: str, **changed: Any) -> Entry:
    """Return an entry of a layer with this signature."""
    key = hashlib.sha256(signature.encode()).hexdigest()[:16]
    plain = Entry(
        key, "chip", "Conv+Relu", 1.25e-4, 1e-6, 10, True, "cold", "", "", 1, "p", "", signature, 1.25e-4, 1e-6
    )
    return dataclasses.replace(plain, **changed)


def table(entries: list[Entry] | tuple[Entry, ...] = (), **changed: Any) -> Lut:
    """Return an unpublished table."""
    coefficients = {name: Coefficient(1e-9, 1e-11, 0.98e-9, 1.02e-9) for name in COLUMNS}
    covariance = tuple(tuple(1e-22 * (i == j) for j in range(len(COLUMNS))) for i in range(len(COLUMNS)))
    overhead = Overhead(coefficients, covariance, {"runs": 1e-4}, 0.99, 0.98, 12.0, 0.01, 25)
    plain = Lut(
        path=Path(),
        device="board",
        created="2026-01-02T03:04:05+00:00",
        clock="device",
        method="joint",
        fingerprint={"cpu": "x"},
        overhead=overhead,
        rules=DEFAULT_RULES,
        entries=tuple(entries),
    )
    return dataclasses.replace(plain, **changed)
