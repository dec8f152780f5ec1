"""Files that the `harness npu` commands write."""

from __future__ import annotations

from pathlib import Path

from harness.cli.npu_errors import shortened
from harness.errors import ConfigurationError, reason_of

_STEP = "Name a file in a folder that exists"


def write_file(path: Path, content: bytes) -> None:
    """Writes a result; raises ConfigurationError naming the file."""
    try:
        path.write_bytes(content)
    except OSError as error:
        why = reason_of(error)
        raise ConfigurationError(f"{shortened(str(path))} cannot be written", why=why, next_step=_STEP) from error


def check_folder(path: Path) -> None:
    """Raises ConfigurationError where there is no folder for a result, before the work is done in vain."""
    if not path.parent.is_dir():
        what = f"{shortened(str(path))} cannot be written"
        raise ConfigurationError(what, why="There is no such folder", next_step=_STEP)
