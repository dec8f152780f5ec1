"""Names, within a chain, of parts of values: what a chain adds to a value, and a grid of the elements of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from device_agents.emulated_npu.arithmetic import ceil_div
from device_agents.emulated_npu.compiler.graph.hardware_graph import Value

_MARK = "\x00part:"
_WRITTEN = "written"


def written_part(name: str) -> str:
    """Return the name of the part that a chain adds to a value that others complete."""
    return name + _MARK + _WRITTEN


def whole_value(name: str) -> str:
    """Return the value of a name within a chain."""
    return name.partition(_MARK)[0]


@dataclass(frozen=True)
class Grid:
    """Every `steps[axis]`-th index of each axis of a value, from `starts[axis]` on."""

    starts: tuple[int, ...]
    steps: tuple[int, ...]

    def part(self, name: str) -> str:
        """Return the name of these elements of a value; `grid_of` reads it."""
        return name + _MARK + " ".join(f"{start}/{step}" for start, step in zip(self.starts, self.steps, strict=True))

    def of(self, value: Value) -> Value:
        """Return these elements as a value."""
        walked = zip(value.shape, self.starts, self.steps, strict=True)
        return replace(value, shape=tuple(ceil_div(size - start, step) for size, start, step in walked))


def grid_of(name: str) -> Grid | None:
    """Return the grid of a name; None for a whole value or its written part."""
    _, _, part = name.partition(_MARK)
    if not part or part == _WRITTEN:
        return None
    starts, steps = zip(*(map(int, each.split("/")) for each in part.split(" ")), strict=True)
    return Grid(starts, steps)


def with_parts(values: Mapping[str, Value]) -> Mapping[str, Value]:
    """Return the values, each under its name and the names of its parts."""
    return _WithParts(values)


class _WithParts(dict[str, Value]):
    """Values by name; those of parts are found when they are needed."""

    def __missing__(self, name: str) -> Value:
        whole = whole_value(name)
        if whole == name:
            raise KeyError(name)
        grid = grid_of(name)
        found = self[name] = self[whole] if grid is None else grid.of(self[whole])
        return found
