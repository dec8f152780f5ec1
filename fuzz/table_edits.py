"""Edits of lookup tables that keep them consistent: other entries, numbers, rules, chains and correlations."""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from harness.latency.overhead import Coefficient
from harness.lut.chain_rows import VIEW, ChainRow
from harness.lut.error_correlations import pack
from harness.lut.table import Entry, Lut
from harness.network.fusion.fusion_rules import DEFAULT_RULES, UNSIGNED_PAIRS, FusionRule

_FACTORS = (0.5, 2.0, 1e-6, 1e6, 1e150, 1e-300)
_CONTEXTS = ("outside", "chip", "chip,outside", "chip@0123abcd", "outside@ffffffff")
_NETWORK = "0123456789abcdef"


def edited(table: Lut, signatures: Sequence[str], draw: random.Random) -> Lut:
    """Return a table with one consistent change; `signatures` are those of layers that it may hold."""
    changes = (_scaled, _moved, _removed, _added, _overhead, _rules, _chains, _numbers, _correlated, _without_predictor)
    return draw.choice(changes)(table, signatures, draw)


def _with_entries(table: Lut, entries: Sequence[Entry], draw: random.Random) -> Lut:
    """Return the table with other entries of distinct places, correlations of their number, and no other chains."""
    held = tuple({entry.place: entry for entry in entries}.values())
    places = {entry.place for entry in held}
    chains = tuple(row for row in table.chains if row.place in places)
    covariance = np.eye(len(held)) + draw.choice((0.0, 0.25, 0.99))
    return replace(table, entries=held, correlations=pack(covariance) if len(held) > 1 else b"", chains=chains)


def _pick(table: Lut, draw: random.Random) -> int:
    return draw.randrange(len(table.entries)) if table.entries else -1


def _scaled(table: Lut, _: Sequence[str], draw: random.Random) -> Lut:
    """Change the latency or the error of an entry."""
    at, factor = _pick(table, draw), draw.choice(_FACTORS)
    if at < 0:
        return table
    entry = table.entries[at]
    latency_s = min(1e300, entry.latency_s * factor) or 1e-9
    changed = draw.choice(
        (
            replace(entry, latency_s=latency_s, remainder_s=latency_s),
            replace(entry, stderr_s=entry.stderr_s * factor, remainder_stderr_s=entry.remainder_stderr_s * factor),
            replace(entry, remainder_s=-latency_s, resolved=False),
            replace(entry, samples=draw.choice((1, 1 << 40)), flags="chain +3.1 %", networks="0123abcd 89abcdef"),
        )
    )
    return replace(table, entries=(*table.entries[:at], changed, *table.entries[at + 1 :]))


def _moved(table: Lut, _: Sequence[str], draw: random.Random) -> Lut:
    """Give an entry another context, or add it there."""
    at = _pick(table, draw)
    if at < 0:
        return table
    moved = replace(table.entries[at], context=draw.choice(_CONTEXTS))
    rest = table.entries if draw.random() < 0.5 else (*table.entries[:at], *table.entries[at + 1 :])
    return _with_entries(table, (*rest, moved), draw)


def _removed(table: Lut, _: Sequence[str], draw: random.Random) -> Lut:
    at = _pick(table, draw)
    return _with_entries(table, (*table.entries[: max(0, at)], *table.entries[at + 1 :]), draw)


def _added(table: Lut, signatures: Sequence[str], draw: random.Random) -> Lut:
    """Add an entry of another layer with the numbers of one that there is."""
    at = _pick(table, draw)
    if at < 0:
        return table
    signature = draw.choice(signatures)
    key = hashlib.sha256(signature.encode()).hexdigest()[:16]
    return _with_entries(table, (*table.entries, replace(table.entries[at], key=key, signature=signature)), draw)


def _overhead(table: Lut, _: Sequence[str], draw: random.Random) -> Lut:
    """Change a coefficient or the quality of the overhead's fit, or give the table another fit beside it."""
    overhead, factor = table.overhead, draw.choice(_FACTORS)
    name = draw.choice(sorted(overhead.coefficients))
    value = min(1e300, overhead.coefficients[name].value * factor)
    coefficient = Coefficient(value, value / 10, value * 0.8, value * 1.2)
    changed = draw.choice(
        (
            replace(overhead, coefficients={**overhead.coefficients, name: coefficient}),
            replace(overhead, drift=draw.choice((0.0, 0.5, 1e300)), scatter=draw.choice((0.0, 1e300))),
            replace(overhead, misfit=draw.choice((0.0, 0.1)), misfit_p=draw.choice((0.0, 1e-9, 1.0))),
            replace(overhead, r2=draw.choice((-1e9, 0.0, 1.0)), condition=draw.choice((1.0, 1e300))),
        )
    )
    return replace(table, other_overhead=changed) if draw.random() < 0.3 else replace(table, overhead=changed)


def _rules(table: Lut, _: Sequence[str], draw: random.Random) -> Lut:
    """Give the table other rules of fusion."""
    found = list(draw.sample(DEFAULT_RULES, draw.randrange(6)))
    if draw.random() < 0.3:
        found.append(FusionRule(UNSIGNED_PAIRS, 1, 1, "board"))
    if draw.random() < 0.3:
        found.append(FusionRule("Add(x0,x1);Relu(0)", 9, draw.randrange(10), "probes", 0.9, draw.choice((0.0, 1.0))))
    return replace(table, rules=tuple(found))


def _chains(table: Lut, _: Sequence[str], draw: random.Random) -> Lut:
    """Put entries into chains, or take the chains away."""
    if not table.entries or draw.random() < 0.2:
        return replace(table, chains=())
    read, written, result, weight = (draw.choice((0, 64, 1 << 40)) for _ in range(4))
    rows = [
        ChainRow(
            _NETWORK, draw.choice((VIEW, 0, 0, 1)), *entry.place, read, written, result, weight, draw.random() < 0.5
        )
        for entry in draw.sample(table.entries, draw.randrange(1, len(table.entries) + 1))
    ]
    return replace(table, chains=tuple(rows))


def _numbers(table: Lut, _: Sequence[str], draw: random.Random) -> Lut:
    """Change a number or a text of the manifest."""
    choices: tuple[dict[str, Any], ...] = (
        {"additivity": draw.choice((None, 0.0, 3.0, 1e300))},
        {"sum_error": draw.choice((0.0, 0.1, 1e200))},
        {"repeatability": draw.choice((0.0, 0.05, 1e200))},
        {"network_errors": {_NETWORK: draw.choice((0.0, 0.2))}},
        {"machine": draw.choice(("", "noisy", "\x1b[31m"))},
        {"fingerprint": {**table.fingerprint, draw.choice(("cpu", "=1+1", "x" * 300)): "\u202e"}},
        {"clock": draw.choice(("cpu", "wall", "device"))},
        {"method": draw.choice(("joint", "chain", "difference", "regression"))},
    )
    return replace(table, **draw.choice(choices))


def _correlated(table: Lut, _: Sequence[str], draw: random.Random) -> Lut:
    return _with_entries(table, table.entries, draw)


def _without_predictor(table: Lut, _: Sequence[str], draw: random.Random) -> Lut:
    return replace(table, predictor=b"") if draw.random() < 0.3 else table
