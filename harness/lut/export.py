"""Export the entries of a table as one file for other tools.

Each row also has the table's device, name, method, clock and overhead, so that the file needs nothing beside it.
"""

from __future__ import annotations

import json
from pathlib import Path

from harness.errors import UsageError
from harness.files import spreadsheet_cell, write_whole
from harness.lut.table import Lut

FORMATS = (".csv", ".json", ".parquet")


def export_entries(table: Lut, path: Path) -> None:
    """Write the entries; the file name's ending selects CSV, JSON (a list of records) or Parquet.

    pandas cannot write Parquet without pyarrow: raises UsageError, which names the extra.
    """
    if path.suffix not in FORMATS:
        raise UsageError(f"{path} has an unknown ending", next_step=f"Choose from {', '.join(FORMATS)}")
    frame = table.to_pandas()
    try:
        if path.suffix == ".csv":
            content = frame.map(spreadsheet_cell).to_csv(index=False).encode()
        elif path.suffix == ".json":
            content = (json.dumps(frame.to_dict("records"), indent=1) + "\n").encode()
        else:
            content = frame.to_parquet(index=False)
    except ImportError as error:
        raise UsageError("Parquet needs pyarrow", next_step="pip install 'harness[parquet]'") from error
    write_whole(path, content)
