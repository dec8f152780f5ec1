"""The file of latencies: read within limits, row by row, each with its line; and the latency of a row or of several."""

import csv
import hashlib
import io
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

from harness.errors import ConfigurationError, reason_of
from harness.files import read_file
from harness.table_import.cells import BadRow, Column, Row, number, read_as, size
from harness.table_import.mapping import SECONDS, ImportMapping
from harness.text import did_you_mean, printable

MAX_FILE_BYTES = 64 << 20
MAX_ROWS = 1_000_000
MAX_COLUMNS = 1_000
_SHOWN = 60
MAX_S = 1e5
MIN_S = 1e-12


@dataclass(frozen=True)
class SourceFile:
    """The content of a file of latencies and what its mapping says of the format; `name` is safe to show."""

    name: str
    sha256: str
    text: str
    mapping: ImportMapping

    def rows(self) -> Iterator[Row | tuple[int, BadRow]]:
        """Yield each row, or its line and what is wrong with it; raises ConfigurationError for the header."""
        reader = csv.reader(io.StringIO(self.text, newline=""), delimiter=self.mapping.delimiter, strict=True)
        last = 0
        try:
            names = self.mapping.columns or [cell.strip() for cell in next(reader, [])]
            self._check_header(names)
            last = reader.line_num
            for count, cells in enumerate(reader):
                if count == MAX_ROWS:
                    raise self._unusable(f"It has more than {MAX_ROWS:,} rows", "Divide it")
                line, last = last + 1, reader.line_num
                if not cells or (len(cells) == 1 and not cells[0].strip()):
                    continue
                if len(cells) != len(names):
                    yield line, BadRow(f"it has {len(cells)} cells instead of {len(names)}")
                else:
                    yield Row(line, dict(zip(names, cells, strict=True)))
        except csv.Error as error:
            raise self._unusable(f"Line {last + 1}: {error}", "Correct the line") from error

    def _check_header(self, names: list[str]) -> None:
        if len(names) > MAX_COLUMNS:
            why = f"It has too many columns: {len(names):,}; the limit is {MAX_COLUMNS:,}"
            raise self._unusable(why, "Remove those that the mapping does not name")
        repeated = next((name for at, name in enumerate(names) if name in names[:at]), None)
        if repeated is not None:
            why = f"The column {repeated[:_SHOWN]!r} occurs twice" if repeated else "Several columns have no name"
            raise self._unusable(why, "Give each column a name of its own, or list them as `columns` in the mapping")
        if not names:
            step = "Put a header in the first line, or list the columns as `columns` in the mapping"
            raise self._unusable("It has no header", step)
        for name in sorted(self.mapping.columns_read - set(names)):
            label = "Name one of its columns in the mapping"
            near = did_you_mean(name, [one[:_SHOWN] for one in names[:30]], label)
            raise self._unusable(f"It has no column {name[:_SHOWN]!r}", near)

    def _unusable(self, why: str, step: str) -> ConfigurationError:
        return ConfigurationError(f"{self.name} cannot be imported", why=printable(why), next_step=printable(step))


def read_source(path: Path, mapping: ImportMapping) -> SourceFile:
    """Read a file of latencies of at most 64 MiB in UTF-8; raises ConfigurationError."""
    name = printable(str(path), 200)
    try:
        content = read_file(path, MAX_FILE_BYTES)
        text = content.decode("utf-8-sig")
    except OSError as error:
        step = "Name a CSV file that you may read; divide a larger one"
        raise ConfigurationError(f"{name} cannot be read", why=reason_of(error), next_step=step) from error
    except UnicodeDecodeError as error:
        why = f"Byte {error.start + 1} is not UTF-8 text"
        raise ConfigurationError(f"{name} is not a text file", why=why, next_step="Save it as UTF-8") from error
    return SourceFile(name, hashlib.sha256(content).hexdigest(), text, mapping)


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
