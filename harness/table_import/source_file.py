"""The file of latencies: read within limits, row by row, each with its line."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.errors import ConfigurationError, reason_of
from harness.files import read_file
from harness.table_import.cells import BadRow, Row
from harness.table_import.mapping import ImportMapping
from harness.text import did_you_mean, printable

MAX_FILE_BYTES = 64 << 20
MAX_ROWS = 1_000_000
MAX_COLUMNS = 1_000
_SHOWN = 60


@dataclass(frozen=True)
class SourceFile:
    """The content of a file of latencies and what its mapping says of the format; `name` is safe to show."""

    name: str
    sha256: str
    text: str
    mapping: ImportMapping

    def rows(self) -> Iterator[Row | tuple[int, BadRow]]:
        """Yield each row, or its line and what is wrong with it; raises ConfigurationError for the header."""
        reader = csv.reader(io.StringIO(self.text, newline=""), delimiter=self.mapping.delimiter)
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
        repeated = next((name for at, name in enumerate(names) if name in names[:at]), None) if len(names) < 1e4 else ""
        if repeated is not None or len(names) > MAX_COLUMNS:
            what = f"The column {repeated[:_SHOWN]!r} occurs twice" if repeated else "It has too many columns"
            raise self._unusable(what, "Give each column a name of its own, or list them as `columns` in the mapping")
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
