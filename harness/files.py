"""Files that others read: whole, or not there at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from harness.errors import ConfigurationError


def write_whole(path: Path, content: bytes) -> None:
    """To a file beside it, synced, then renamed; what is no regular file is left alone. Raises ConfigurationError."""
    target = Path(os.path.realpath(path))
    aside = target.parent / f".writing-{secrets.token_hex(6)}{target.suffix}"
    try:
        if target.exists() and not target.is_file():
            raise ConfigurationError(
                f"{path} cannot be written", why="it is not a regular file", next_step="Name a file"
            )
        try:
            with aside.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(target)
        finally:
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        step = "Name a file in a folder that exists and that you may write to"
        raise ConfigurationError(f"{path} cannot be written", why=why, next_step=step) from error
