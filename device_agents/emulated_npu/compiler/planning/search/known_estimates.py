"""Estimates and times of chains that a process keeps: probes consist of layers of a network, and so of its chains."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections.abc import Callable

Rows = tuple[tuple[int, ...], ...]
"""What was found for a key, in numbers: estimates of a chain, or the times of a plan."""
MOST_KEYS = 200_000
"""The most parts of keys that are kept, and the most rows."""


class KnownEstimates:
    """Rows by keys that all networks share; a key holds the machine and the options as well."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._found: dict[int, Rows] = {}
        self._own: list[int] = []

    def number(self, key: object) -> int:
        """Return a number for a part of keys: that of its text, so that processes can exchange estimates."""
        if key not in self._numbers:
            if len(self._numbers) >= MOST_KEYS:
                self._numbers.clear()
            self._numbers[key] = int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=16).digest(), "big")
        return self._numbers[key]

    def rows(self, key: object, search: Callable[[], Rows]) -> Rows:
        """Return the rows of a key; `search` finds those that are not known."""
        number = self.number(key)
        if number not in self._found:
            found = search()
            if len(self._found) >= MOST_KEYS:
                self._found.clear()
                self._own.clear()
            self._found[number] = found
            self._own.append(number)
        return self._found[number]

    def __len__(self) -> int:
        return len(self._found)

    def new_json(self) -> bytes:
        """Return the rows that this process found since the last call, for other processes."""
        listed = [(number, self._found[number]) for number in self._own]
        self._own.clear()
        return json.dumps(listed).encode()

    def add_json(self, content: bytes) -> None:
        """Keep what another process found, as much as there is room for."""
        room = MOST_KEYS - len(self._found)
        new = (pair for pair in json.loads(content) if pair[0] not in self._found)
        for number, rows in itertools.islice(new, room):
            self._found[number] = tuple(map(tuple, rows))


@functools.lru_cache(maxsize=1)
def known_estimates() -> KnownEstimates:
    """Return what this process knows."""
    return KnownEstimates()
