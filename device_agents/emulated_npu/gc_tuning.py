"""Fewer collections of cyclic garbage while many objects are made and kept.

The collector looks through all objects again and again as their number grows. The compiler makes hundreds of thousands
of values and hardly any cycles.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG_OBJECTS = 20_000
"""New objects before the collector looks at them; Python's default is 700."""
YOUNG_OBJECTS_OF_MANY_MODELS = 200_000
"""The same while a process compiles many models: with ten times fewer, a seventh of its time goes to collections."""


@contextmanager
def rare_collections(young_objects: int = _YOUNG_OBJECTS) -> Iterator[None]:
    """Collect cyclic garbage more rarely for a while; may be nested, and decorates functions."""
    before = gc.get_threshold()
    if 0 < before[0] < young_objects:
        gc.set_threshold(young_objects, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
