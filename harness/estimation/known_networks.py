"""The networks that a table was measured with, found again among built-in networks and files of a workspace."""

from __future__ import annotations

import hashlib
from pathlib import Path

from harness.errors import CHECK_FILE, ConfigurationError, reason_of
from harness.files import read_file
from harness.lut.table import Lut
from harness.network.keyed_reading import read_keyed_networks
from harness.network.model_references import BUILTIN_NAMES, BUILTIN_PREFIX, is_builtin
from harness.workspace import Workspace

_MAX_FILE_BYTES = 2 << 30
_HASH = 8
"""Digits of a file's hash by which entries name their networks."""


def hashes_of(table: Lut) -> set[str]:
    """Return the networks that a table was measured with, by the beginning of the hashes of their files."""
    return {name for entry in table.entries for name in entry.networks.split()}


def networks_of(table: Lut, workspace: Workspace) -> tuple[str, ...]:
    """Return the networks that a table was measured with, without those that are neither built in nor files here."""
    return known_networks(hashes_of(table), table, workspace)[0]


def known_networks(hashes: set[str], table: Lut, workspace: Workspace) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the built-in networks and files of the workspace that have these hashes, and the hashes left over."""
    found: dict[str, str] = {}
    for path in sorted(workspace.root.glob("**/*.onnx")) if hashes else ():
        found.setdefault(_hash_of(path), str(path))
    left = hashes - found.keys()
    if left:
        builtin = [f"{BUILTIN_PREFIX}{name}" for name in BUILTIN_NAMES]
        read = read_keyed_networks(builtin, table.rules).networks
        found |= {one.sha256[:_HASH]: one.file for one in read if is_builtin(one.file)}
    known = tuple(found[one] for one in sorted(hashes & found.keys(), key=lambda one: found[one]))
    return known, tuple(sorted(hashes - found.keys()))


def _hash_of(path: Path) -> str:
    try:
        return hashlib.sha256(read_file(path, _MAX_FILE_BYTES)).hexdigest()[:_HASH]
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read", why=reason_of(error), next_step=CHECK_FILE) from error
