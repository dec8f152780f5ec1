"""A table of imported layers: entries, stated overhead, fusion rules and provenance."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from harness.errors import ConfigurationError
from harness.latency.layer_latency import RESOLUTION_SIGMAS
from harness.latency.overhead import COLUMNS, Coefficient, Overhead
from harness.lut.learning import learn_predictor
from harness.lut.table import IMPORT, Entry, Lut
from harness.network.fusion.fusion_rules import DEFAULT_RULES, FusionRule
from harness.network.fusion.rule_learning import ReportedGroups, learn_rules
from harness.table_import.imported_layers import ImportedLayer, check_count
from harness.table_import.mapping import ImportMapping, StatedOverhead
from harness.table_import.source_file import SourceFile

VISIT = "imported"
"""The visit policy of imported entries: another tool chose it."""
RULE_SOURCE = "import"


def table_of(
    source: SourceFile, layers: Sequence[ImportedLayer], patterns: Counter[str], groups: Sequence[ReportedGroups]
) -> Lut:
    """Return an unpublished table with a predictor if there are enough layers.

    `patterns` count the layers of several operators, `groups` are the nodes that the tool executed together. Raises
    ConfigurationError for no layers, or more than a table holds.
    """
    mapping = source.mapping
    if not layers:
        what = f"{source.name} holds no latency of a layer"
        raise ConfigurationError(what, next_step="Check `where` and `not_measured` in the mapping")
    check_count(source, len(layers))
    entries = tuple(sorted((_entry(layer) for layer in layers), key=lambda entry: entry.place))
    return Lut(
        path=Path(),
        device=mapping.device,
        created=datetime.now(UTC).isoformat(timespec="milliseconds"),
        clock=mapping.clock,
        method=IMPORT,
        fingerprint=provenance_of(source),
        overhead=stated_overhead(mapping.overhead),
        rules=_rules(mapping, patterns, groups),
        entries=entries,
        sum_error=mapping.uncertainty.relative or 0.0,
        predictor=learn_predictor(entries),
    )


def provenance_of(source: SourceFile) -> dict[str, str]:
    """Return where the latencies come from, as the table's fingerprint keeps it."""
    mapping = source.mapping
    stated = {name: str(value) for name, value in mapping.provenance.model_dump().items() if value}
    spread = {
        name: (f"column {value['column']}" if isinstance(value, dict) else f"{value}")
        for name, value in mapping.uncertainty.model_dump(exclude_none=True).items()
    }
    return {
        **stated,
        "file": Path(source.name).name,
        "file_sha256": source.sha256,
        "mapping_sha256": hashlib.sha256(mapping.model_dump_json().encode()).hexdigest(),
        "statistic": mapping.statistic,
        "unit": mapping.unit,
        "uncertainty": ", ".join(f"{name} {text}" for name, text in spread.items()),
    }


def stated_overhead(stated: StatedOverhead) -> Overhead:
    """Return an overhead that was stated and not fitted: no null probes, no errors."""
    given = {"runs": stated.c_s, "input_bytes": stated.a_s_per_byte, "output_bytes": stated.b_s_per_byte}
    values = {name: given.get(name, 0.0) for name in COLUMNS}
    return Overhead(
        coefficients={name: Coefficient(value, 0.0, value, value) for name, value in values.items()},
        covariance=tuple((0.0,) * len(COLUMNS) for _ in COLUMNS),
        least_squares={},
        r2=0.0,
        least_squares_r2=0.0,
        condition=0.0,
        scatter=0.0,
        probes=0,
    )


def _entry(imported: ImportedLayer) -> Entry:
    layer, latency = imported.layer, imported.latency
    return Entry(
        key=hashlib.sha256(layer.key.encode()).hexdigest()[:16],
        context=layer.context,
        op=layer.op,
        latency_s=latency.latency_s,
        stderr_s=latency.stderr_s,
        samples=latency.runs,
        resolved=latency.latency_s > RESOLUTION_SIGMAS * latency.stderr_s,
        visit=VISIT,
        flags="",
        networks=" ".join(imported.networks),
        campaign=0,
        probe=f"line {imported.lines}",
        baseline="",
        signature=layer.key,
        remainder_s=latency.latency_s,
        remainder_stderr_s=latency.stderr_s,
    )


def _rules(mapping: ImportMapping, patterns: Counter[str], groups: Sequence[ReportedGroups]) -> tuple[FusionRule, ...]:
    """Return the rules by which networks are cut: what the tool executed as one, then the default ones if wanted."""
    found = {rule.pattern: rule for rule in learn_rules(groups, RULE_SOURCE)} if groups else {}
    for pattern, count in sorted(patterns.items()):
        known = found.get(pattern, FusionRule(pattern, 0, 0, RULE_SOURCE))
        found[pattern] = FusionRule(pattern, known.matched + count, known.fused + count, RULE_SOURCE)
    if mapping.fusion == "default":
        found.update({rule.pattern: rule for rule in DEFAULT_RULES if rule.pattern not in found})
    return tuple(found.values())
