"""`harness.import_lut`: measurements of another tool become a table, with stated overhead and provenance."""

from __future__ import annotations

import hashlib
import random
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from harness.arguments import checked, instance
from harness.errors import ConfigurationError, UsageError
from harness.estimation.network_estimate import NetworkEstimate
from harness.latency.layer_latency import RESOLUTION_SIGMAS
from harness.latency.overhead import COLUMNS, Coefficient, Overhead
from harness.lut.learning import learn_predictor
from harness.lut.table import IMPORT, Entry, Lut
from harness.lut.table_files import publish
from harness.network.fusion.fusion_rules import DEFAULT_RULES, FusionRule
from harness.network.fusion.rule_learning import ReportedGroups, learn_rules
from harness.predictor.features.key_features import describe
from harness.table_import.cells import Row
from harness.table_import.imported_layers import (
    ImportedLayer,
    RowCounts,
    Section,
    check_count,
    operator_layers,
    selected,
)
from harness.table_import.mapping import (
    ImportMapping,
    NetworkRows,
    NodeRows,
    OperatorRows,
    StatedOverhead,
    read_mapping,
)
from harness.table_import.measured_networks import compare_networks, measured_networks
from harness.table_import.named_nodes import Networks, node_layers
from harness.table_import.source_file import SourceFile, read_source
from harness.validation.results import Validation
from harness.workspace import AnyWorkspace, as_workspace

Note = Callable[[str], None]
Kind = TypeVar("Kind", OperatorRows, NodeRows, NetworkRows)
LEVEL = 0.9
"""The level of the predictor's intervals."""
VISIT = "imported"
"""The visit policy of imported entries: another tool chose it."""
RULE_SOURCE = "import"
_LINES_NAMED = 3


@dataclass(frozen=True)
class Sampling:
    """Rows of operators to take at random: `rows` become entries, all without a number; `held_out` others are tested.

    The same seed draws the same rows.
    """

    rows: int | None = None
    held_out: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.rows is not None and self.rows < 1) or self.held_out < 0:
            raise UsageError(
                f"{self.rows} rows and {self.held_out} held out cannot be drawn", next_step="Give 1 or more"
            )
        if self.held_out and self.rows is None:
            raise UsageError("Rows can only be held out of a sample", next_step="Give --sample as well")


EVERYTHING = Sampling()


@dataclass(frozen=True)
class TableImport:
    """A table made from a file, and what became of the file's rows.

    `table.path` is empty if nothing was written. `held_out` has the errors on held-out rows, `validation` those of
    whole networks with their `estimates`, both None without any; `uncovered` names networks without an estimate.
    """

    table: Lut
    counts: RowCounts
    held_out: HeldOutErrors | None = None
    validation: Validation | None = None
    estimates: tuple[NetworkEstimate, ...] = ()
    uncovered: tuple[str, ...] = ()


@checked(sampling=instance(Sampling))
def import_lut(
    file: str | Path,
    mapping: str | Path,
    *,
    workspace: AnyWorkspace = None,
    skip_invalid: bool = False,
    sampling: Sampling = EVERYTHING,
    write: bool = True,
    note: Note = lambda _: None,
) -> TableImport:
    """Make a table from a CSV file of latencies that another tool measured, as a mapping file describes it.

    docs/import.md describes the mapping. With `skip_invalid`, rows that cannot be used are left out and counted;
    without `write`, everything is checked and computed, and no table is written. `note` receives a line before each
    long step. Raises ConfigurationError for the files, and NetworkError for networks that the mapping names.
    """
    described = read_mapping(Path(mapping))
    source = read_source(Path(file), described)
    counts = RowCounts()
    rows = selected(source, counts)
    kept, tested = _drawn(_of(OperatorRows, rows), sampling)
    networks = Networks(Path(mapping).parent)
    note(f"{len(rows)} of {counts.read} rows belong to a section")
    operators = operator_layers(source, kept, counts)
    nodes = node_layers(source, _of(NodeRows, rows), counts, networks)
    whole = measured_networks(described, _of(NetworkRows, rows), counts, networks)
    spare = operator_layers(source, tested, counts, bounded=False)
    layers = _distinct(operators, nodes.layers)
    if not (skip_invalid and layers):
        counts.check(source.name, some_are_valid=bool(layers))
    note(f"learning from {len(layers)} layers")
    draft = table_of(source, layers, Counter(one.layer.pattern for one in operators if one.layer.pattern), nodes.groups)
    compared = compare_networks(draft, whole)
    errors = errors_of(compared.table, spare)
    table = publish(compared.table, as_workspace(workspace).lut) if write else compared.table
    validation = compared.validation and replace(compared.validation, lut=table.name)
    return TableImport(table, counts, errors, validation, compared.estimates, compared.uncovered)


def _of(kind: type[Kind], rows: Sequence[tuple[Section, Row]]) -> list[tuple[Kind, Row]]:
    return [(section, row) for section, row in rows if isinstance(section, kind)]


def _drawn(
    rows: Sequence[tuple[OperatorRows, Row]], sampling: Sampling
) -> tuple[list[tuple[OperatorRows, Row]], list[tuple[OperatorRows, Row]]]:
    """Return the rows that become entries, and those held out, each in the order of the file."""
    if sampling.rows is None:
        return list(rows), []
    order = list(range(len(rows)))
    random.Random(sampling.seed).shuffle(order)  # noqa: S311 - a sample, no secret
    first, last = sampling.rows, sampling.rows + sampling.held_out
    return [rows[at] for at in sorted(order[:first])], [rows[at] for at in sorted(order[first:last])]


def _distinct(operators: Sequence[ImportedLayer], nodes: Sequence[ImportedLayer]) -> list[ImportedLayer]:
    """Return each layer once: where both kinds of rows have one, that of a network counts."""
    places = {(one.layer.key, one.layer.context): one for one in (*operators, *nodes)}
    return list(places.values())


@dataclass(frozen=True)
class HeldOutErrors:
    """Errors of the predictor on layers that are not in the table, as fractions.

    `layers` of the held-out ones were predicted; `unpredicted` belong to operators that no entry has. The intervals are
    the predictor's own of 90 %.
    """

    layers: int
    unpredicted: int
    median_error: float
    mean_error: float
    within_5: float
    within_10: float
    interval_coverage: float


def errors_of(table: Lut, held_out: Sequence[ImportedLayer]) -> HeldOutErrors | None:
    """Return the errors on layers whose key is not in the table; None without a predictor or such layers."""
    predictor = table.loaded_predictor
    known = {entry.signature for entry in table.entries}
    unseen = [one for one in held_out if one.layer.key not in known]
    layers = [(describe(one.layer.key, one.layer.context), one.latency.latency_s) for one in unseen]
    described = [(layer, latency_s) for layer, latency_s in layers if layer is not None]
    if predictor is None or not described:
        return None
    knows = predictor.knows([layer for layer, _ in described])
    asked = [pair for pair, is_known in zip(described, knows, strict=True) if is_known]
    if not asked:
        return None
    found = predictor.predict_all([layer for layer, _ in asked])
    pairs = [(one, latency_s) for one, (_, latency_s) in zip(found, asked, strict=True)]
    errors = [abs(one.latency_s / latency_s - 1) for one, latency_s in pairs]
    return HeldOutErrors(
        layers=len(asked),
        unpredicted=len(layers) - len(asked),
        median_error=statistics.median(errors),
        mean_error=statistics.fmean(errors),
        within_5=statistics.fmean(error <= 0.05 for error in errors),
        within_10=statistics.fmean(error <= 0.10 for error in errors),
        interval_coverage=statistics.fmean(one.low_s <= latency_s <= one.high_s for one, latency_s in pairs),
    )


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
        probe=_lines(imported.lines),
        baseline="",
        signature=layer.key,
        remainder_s=latency.latency_s,
        remainder_stderr_s=latency.stderr_s,
    )


def _lines(lines: Sequence[int]) -> str:
    """Return the lines of a layer; of many, the first ones."""
    return f"line {','.join(map(str, lines[:_LINES_NAMED]))}{',…' if len(lines) > _LINES_NAMED else ''}"


def _rules(mapping: ImportMapping, patterns: Counter[str], groups: Sequence[ReportedGroups]) -> tuple[FusionRule, ...]:
    """Return the rules by which networks are cut: what the tool executed as one, then the default ones if wanted."""
    found = {rule.pattern: rule for rule in learn_rules(groups, RULE_SOURCE)} if groups else {}
    for pattern, count in sorted(patterns.items()):
        known = found.get(pattern, FusionRule(pattern, 0, 0, RULE_SOURCE))
        found[pattern] = FusionRule(pattern, known.matched + count, known.fused + count, RULE_SOURCE)
    if mapping.fusion == "default":
        found.update({rule.pattern: rule for rule in DEFAULT_RULES if rule.pattern not in found})
    return tuple(found.values())
