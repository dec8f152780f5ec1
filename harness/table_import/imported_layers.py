"""Rows become layers with latencies; what cannot is collected with its line and reason."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from harness.errors import ConfigurationError
from harness.lut.entry_rows import MAX_ENTRIES
from harness.network.network import ITEM_BYTES
from harness.table_import.cells import BadRow, Row
from harness.table_import.layer_spec import spec_of
from harness.table_import.mapping import NetworkRows, NodeRows, OperatorRows
from harness.table_import.one_layer_network import PlacedLayer, keyed_layer
from harness.table_import.source_file import NotMeasured, RowLatency, SourceFile, combined, latency_of, without_overhead
from harness.text import printable

MAX_REASONS = 10
_TENSOR = re.compile(r"(?:x\d+|t[\d.]+):(\w+)\[([\d,]*)\]")

Section = OperatorRows | NodeRows | NetworkRows


@dataclass
class RowCounts:
    """What became of the rows; `invalid` has line and reason, the first ones only."""

    read: int = 0
    not_measured: int = 0
    unselected: int = 0
    invalid_count: int = 0
    invalid: list[tuple[int, str]] = field(default_factory=list)

    def refuse(self, line: int, reason: BadRow) -> None:
        """Count a row that cannot be used."""
        self.invalid_count += 1
        if len(self.invalid) < MAX_REASONS:
            self.invalid.append((line, printable(str(reason), 300)))

    def check(self, file: str, *, some_are_valid: bool) -> None:
        """Raise ConfigurationError if a row cannot be used."""
        if self.invalid_count:
            lines: dict[str, list[str]] = {}
            for line, reason in sorted(self.invalid):
                lines.setdefault(reason, []).append(str(line))
            whys = [f"line{'s' * (len(one) > 1)} {', '.join(one)}: {reason}" for reason, one in lines.items()]
            more = self.invalid_count - len(self.invalid)
            what = f"{self.invalid_count} of {self.read} rows of {file} cannot be imported"
            why = "; ".join(whys) + (f"; and {more} more" if more else "")
            step = f"Correct the rows or the mapping{', or leave them out by --skip-invalid' if some_are_valid else ''}"
            raise ConfigurationError(what, why=why, next_step=step)


@dataclass(frozen=True)
class ImportedLayer:
    """One layer in one context: its rows as one latency, the lines they are in, and the networks it is from."""

    layer: PlacedLayer
    latency: RowLatency
    lines: tuple[int, ...]
    networks: tuple[str, ...] = ()


def selected(source: SourceFile, counts: RowCounts) -> list[tuple[Section, Row]]:
    """Return the rows with the section that each belongs to; raises ConfigurationError for a section without rows."""
    sections = source.mapping.sections
    used: Counter[int] = Counter()
    found = []
    for row in source.rows():
        counts.read += 1
        if isinstance(row, tuple):
            counts.refuse(*row)
            continue
        at = next((at for at, section in enumerate(sections) if section.selects(row)), None)
        if at is None:
            counts.unselected += 1
        else:
            used[at] += 1
            found.append((sections[at], row))
    idle = next((section for at, section in enumerate(sections) if not used[at]), None)
    if idle is not None:
        _refuse_idle(source, idle, sections)
    return found


def _refuse_idle(source: SourceFile, section: Section, sections: Sequence[Section]) -> NoReturn:
    kind = {OperatorRows: "operator", NodeRows: "layers", NetworkRows: "network"}[type(section)]
    number = [one for one in sections if type(one) is type(section)].index(section) + 1
    raise ConfigurationError(
        f"No row of {source.name} belongs to [[{kind}]] number {number}",
        why="No row matches its `where`, or earlier sections match them all",
        next_step="Correct `where`, or remove the section",
    )


def operator_layers(
    source: SourceFile, rows: Iterable[tuple[OperatorRows, Row]], counts: RowCounts, *, bounded: bool = True
) -> list[ImportedLayer]:
    """Return the layers of rows that describe operators, each layer once, with rows of equal layers combined.

    Unless not `bounded`, raises ConfigurationError for more layers than a table holds.
    """
    mapping = source.mapping
    found: dict[PlacedLayer, list[tuple[RowLatency, int]]] = defaultdict(list)
    for section, row in rows:
        try:
            latency = latency_of(mapping, row)
            layer = keyed_layer(spec_of(section, row), mapping.opset)
            latency = without_overhead(mapping, latency, *moved_bytes(layer.key))
            found[layer].append((latency, row.line))
            if bounded:
                check_count(source, len(found))
        except NotMeasured:
            counts.not_measured += 1
        except BadRow as error:
            counts.refuse(row.line, error)
    return [
        ImportedLayer(layer, combined([latency for latency, _ in parts]), tuple(line for _, line in parts))
        for layer, parts in found.items()
    ]


def check_count(source: SourceFile, layers: int) -> None:
    """Raise ConfigurationError for more layers than a table holds, before more time is spent on them."""
    if layers > MAX_ENTRIES:
        raise ConfigurationError(
            f"{source.name} holds more than {MAX_ENTRIES:,} different layers",
            why="A table can hold at most this many",
            next_step=f"Take a random part with --sample {MAX_ENTRIES}; the predictor covers the others",
        )


def moved_bytes(key: str) -> tuple[int, int]:
    """Return the bytes of a layer's inputs and outputs, from its key."""
    head, _, tail = key.rpartition("|->")
    inputs = [part for part in head.split("|") if part.startswith("x") and ":" in part]
    return sum(map(_bytes, _TENSOR.findall("|".join(inputs)))), sum(map(_bytes, _TENSOR.findall(tail)))


def _bytes(tensor: tuple[str, str]) -> int:
    dtype, sizes = tensor
    count = ITEM_BYTES.get(dtype, 4)
    for size in sizes.split(",") if sizes else ():
        count *= int(size)
    return count
