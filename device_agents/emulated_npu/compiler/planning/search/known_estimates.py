"""Estimates of chains that a process keeps: probes of a network consist of its layers, and so of its chains."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.planning.search.choices import ChainEstimate
from device_agents.emulated_npu.machine import Machine

Estimates = tuple[ChainEstimate, ...]
"""One for each of ASSUMPTIONS; none for a chain that does not fit."""
MOST_KEYS = 100_000
"""The most keys that are kept."""


class KnownEstimates:
    """The estimates on one machine with one set of options, by keys that all networks share."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._next = itertools.count()
        self._found: dict[object, Estimates] = {}

    def number(self, key: object) -> int:
        """Return a number for a part of keys: equal parts have equal numbers, and no number comes again."""
        if key not in self._numbers:
            if len(self._numbers) >= MOST_KEYS:
                self._numbers.clear()
                self._found.clear()
            self._numbers[key] = next(self._next)
        return self._numbers[key]

    def estimates(self, key: object, search: Callable[[], Estimates]) -> Estimates:
        """Return the estimates of a key; `search` finds those that are not known."""
        key = self.number(key)
        if key not in self._found:
            self._found[key] = search()
        return self._found[key]


@functools.lru_cache(maxsize=8)
def known_estimates(machine: Machine, options: Options) -> KnownEstimates:  # noqa: ARG001 - the key of the cache
    """Return what this process knows of a machine and options."""
    return KnownEstimates()
