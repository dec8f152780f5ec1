"""The last validation on each device of a workspace, which reports show beside estimates."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError

from harness.errors import ConfigurationError, reason_of
from harness.files import read_file, write_whole
from harness.lut.table import Lut
from harness.network.model_references import ModelReference, is_builtin
from harness.validation.results import Validation
from harness.workspace import Workspace

_MAX_BYTES = 1 << 28


@dataclass(frozen=True)
class LastValidation:
    """A validation, the networks that it was given, as paths or `builtin:NAME`, and the sizes of their dimensions."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    models: tuple[str, ...]
    result: Validation
    dims: Mapping[str, int] = field(default_factory=dict)


def keep_validation(
    workspace: Workspace, models: Sequence[ModelReference], dims: Mapping[str, int], result: Validation
) -> None:
    """Replace the last validation on its device; raises ConfigurationError if it cannot be written."""
    paths = tuple(one if is_builtin(one) else os.path.abspath(one) for one in models if isinstance(one, str))
    content = TypeAdapter(LastValidation).dump_json(LastValidation(paths, result, dims))
    path = _path(workspace, result.device)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written", why=reason_of(error)) from error
    write_whole(path, content)


def last_validation(workspace: Workspace, table: Lut) -> LastValidation | None:
    """Return the last validation on the device of a table; None if there is none, or it is of another table.

    Raises ConfigurationError if the file is damaged.
    """
    path = _path(workspace, table.device)
    if not path.exists():
        return None
    try:
        found = TypeAdapter(LastValidation).validate_json(read_file(path, _MAX_BYTES))
    except (OSError, ValidationError) as error:
        why = reason_of(error) if isinstance(error, OSError) else "It holds no validation of this version of harness"
        step = f"Remove the file, or run `harness validate --device {table.device}` again"
        raise ConfigurationError(f"{path} cannot be read", why=why, next_step=step) from error
    return found if found.result.lut == table.name else None


def _path(workspace: Workspace, device: str) -> Path:
    return workspace.validations / f"{device}.json"
