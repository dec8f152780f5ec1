"""Networks as keys of layers: from the cache where their content was read before, else read in a limited process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from harness import cache
from harness.files import file_digest
from harness.network.fusion.fusion_rules import FusionRule
from harness.network.keyed_network import FORMAT, KeyedNetwork, encode_keyed, keyed, keyed_of
from harness.network.model_references import (
    Model,
    ModelContent,
    ModelReference,
    Models,
    is_builtin,
    load_network,
    model_references,
    naming,
    note_unchecked,
    shown,
    stem_of,
)
from harness.network.network_list import NetworksRead, Progress, read_each, reading_jobs
from harness.version import VERSION


class KeyedReader:
    """Reads networks as keys of layers, cut by the rules of a table."""

    def __init__(self, rules: Sequence[FusionRule]) -> None:
        """`rules` are those of a table."""
        self._rules = tuple(rules)
        self._version = self._find_version()

    def load(
        self,
        model: Model,
        dims: Mapping[str, int] | None = None,
        batch: int | None = None,
        note: Callable[[str], None] = lambda _: None,
    ) -> KeyedNetwork:
        """Return what `keyed` makes of `load_network`; raises its errors.

        A network is stored in the cache under the hash of its file, of the code that reads it, and of all that it is
        read with. Errors are not stored, nor are networks whose weights lie in other files: these are checked each
        time.
        """
        (reference,) = model_references(model)
        content = content_of(reference) if self._version else ""
        key = cache.key_of(self._version, content, json.dumps([sorted((dims or {}).items()), batch])) if content else ""
        found = _decoded(cache.get(key)) if key else None
        if found is None:
            found, answer = self._read(reference, dims or {}, batch, note)
            if key and answer and content in (found.sha256, reference) and self._version == self._find_version():
                cache.put(key, answer)
        return replace(found, name=stem_of(reference), file=shown(reference))

    def _read(
        self, reference: ModelReference, dims: Mapping[str, int], batch: int | None, note: Callable[[str], None]
    ) -> tuple[KeyedNetwork, bytes]:
        """Return a network, and the bytes to store for it; these are empty if it does not depend only on its file."""
        if is_builtin(reference):
            lines: list[str] = []
            found = keyed(load_network(reference, dims, batch, lines.append), self._rules)
            for line in lines:
                note(line)
            return found, b"" if lines else encode_keyed(found)
        from harness.network.reading.limited_reading import read_keyed  # not loaded for networks that are in the cache

        source = (reference.name, reference.content) if isinstance(reference, ModelContent) else Path(reference)
        with naming(reference):
            found, reason, answer = read_keyed(source, dims, self._rules, batch)
        note_unchecked(reference, batch, reason, note)
        return found, answer

    def _find_version(self) -> str:
        """Return a text for the code that reads networks and the rules that cut them; empty if the code is unknown."""
        code = cache.code_version("harness.network", "onnx", "onnxruntime")
        rules = json.dumps([asdict(rule) for rule in self._rules], sort_keys=True)
        return code and cache.key_of(FORMAT, VERSION, code, rules)


def read_keyed_networks(
    models: Models,
    rules: Sequence[FusionRule],
    dims: Mapping[str, int] | None = None,
    *,
    batch: int | None = None,
    strict: bool = False,
    note: Callable[[str], None] = lambda _: None,
    progress: Progress = lambda _done, _count: None,
) -> NetworksRead[KeyedNetwork]:
    """Read a list of networks, in one process for each core if it is long; see `read_networks`."""
    reader = KeyedReader(rules)

    def load(reference: ModelReference, note: Callable[[str], None]) -> KeyedNetwork:
        return reader.load(reference, dims, batch, note)

    references = model_references(models)
    return read_each(references, load, dims, strict=strict, note=note, jobs=reading_jobs(references), progress=progress)


def content_of(reference: ModelReference) -> str:
    """Return the name of a built-in network or the hash of a file; empty for one that cannot be read."""
    if isinstance(reference, ModelContent):
        return hashlib.sha256(reference.content).hexdigest()
    if is_builtin(reference):
        return reference
    return file_digest(Path(reference))


def _decoded(content: bytes | None) -> KeyedNetwork | None:
    if content is None:
        return None
    try:
        return keyed_of(content).network
    except ValueError:
        return None
