"""Blocks of a network: layers whose names begin alike, such as all of `layer1.0`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_SEPARATOR = re.compile(r"[./:]+")
_MOST_BLOCKS = 40


def blocks_of(names: Sequence[str]) -> Mapping[str, str]:
    """Return the block of each name, at the finest level with at most 40 blocks; nothing if no level groups layers.

    Names are paths: `/layer1/layer1.0/conv1/Conv` and `layer1.0.conv1` have parts between dots and slashes. The last
    part names the layer itself.
    """
    paths = {name: tuple(part for part in _SEPARATOR.split(name) if part)[:-1] for name in names}
    deepest = max(map(len, paths.values()), default=0)
    found: Mapping[str, str] = {}
    for depth in range(1, deepest + 1):
        level = {name: ".".join(path[:depth]) or name for name, path in paths.items()}
        count = len(set(level.values()))
        if count > _MOST_BLOCKS:
            break
        if 1 < count < len(names):
            found = level
    return found
