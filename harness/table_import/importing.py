"""`harness.import_lut`: measurements of another tool become a table."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from harness.errors import UsageError
from harness.estimation.network_estimate import NetworkEstimate
from harness.lut.table import Lut
from harness.lut.table_files import publish
from harness.predictor.features.key_features import describe
from harness.table_import.cells import Row
from harness.table_import.imported_layers import (
    ImportedLayer,
    RowCounts,
    Section,
    operator_layers,
    patterns_of,
    selected,
)
from harness.table_import.imported_table import table_of
from harness.table_import.mapping import NetworkRows, NodeRows, OperatorRows, read_mapping
from harness.table_import.measured_networks import compare_networks, measured_networks
from harness.table_import.named_nodes import Networks, node_layers
from harness.table_import.source_file import read_source
from harness.validation.results import Validation
from harness.workspace import AnyWorkspace, as_workspace

Note = Callable[[str], None]
Kind = TypeVar("Kind", OperatorRows, NodeRows, NetworkRows)
LEVEL = 0.9
"""The level of the predictor's intervals."""


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
    if not skip_invalid:
        counts.check(source.name)
    layers = _distinct(operators, nodes.layers)
    note(f"learning from {len(layers)} layers")
    draft = table_of(source, layers, patterns_of(operators), nodes.groups)
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
