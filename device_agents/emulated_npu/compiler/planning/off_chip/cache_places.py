"""Places values in the last-level cache: those that gain most first, over others where a chain allows it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

from device_agents.emulated_npu.arithmetic import aligned, aligned_down
from device_agents.emulated_npu.cached_value import CachedValue
from device_agents.emulated_npu.compiler.graph.hardware_graph import Value
from device_agents.emulated_npu.compiler.graph.value_parts import whole_value
from device_agents.emulated_npu.compiler.planning.allocation import Lifetime
from device_agents.emulated_npu.compiler.planning.chains.chain import ChainPlan
from device_agents.emulated_npu.compiler.planning.memory_places import Buffer, buffer_bytes
from device_agents.emulated_npu.compiler.planning.off_chip.trailing import Trails
from device_agents.emulated_npu.unit_commands import Space


def cached_values(
    steps: Sequence[Sequence[ChainPlan]], values: Mapping[str, Value], buffers: Mapping[str, Buffer]
) -> tuple[CachedValue, ...]:
    """Return the values that lie in the cache; `steps` are the chains in the order in which they run.

    The chains of a step may run parts of the same layers.
    """
    spans: dict[str, tuple[int, int]] = {}
    for place, chains in enumerate(steps):
        for chain in chains:
            for name in map(whole_value, (*chain.geometry.stored, *chain.geometry.loaded)):
                first, _ = spans.get(name, (place, place))
                spans[name] = first, place
    layers = [frozenset(layer.index for chain in chains for layer in chain.layers) for chains in steps]
    return tuple(
        CachedValue(buffer.address, buffer.address + size, frozenset[int]().union(*layers[first : last + 1]))
        for name, (first, last) in spans.items()
        if (buffer := buffers[name]).space is Space.LLC and (size := buffer_bytes(values[name].shape, buffer.dtype))
    )


def place_by_traffic(
    lives: Iterable[Lifetime],
    moved_bytes: Mapping[str, int],
    parts: Mapping[str, int],
    trails: Trails,
    room_bytes: int,
    cached: Container[str] = (),
) -> tuple[Mapping[str, int], int]:
    """Return the addresses of values that find room, and the bytes that they use.

    Those of `cached` come first; then those that move most bytes for the bytes that they occupy, or for these bytes
    times the steps that they live: whichever keeps more traffic out of DDR.
    """
    own = list(lives)

    def placed_by(steps: Callable[[Lifetime], int]) -> tuple[dict[str, int], int]:
        def gain(life: Lifetime) -> tuple[bool, float, str]:
            occupied = max(1, life.bytes) * steps(life)
            return life.name not in cached, -moved_bytes[life.name] / occupied, life.name

        return place_by_gain(sorted(own, key=gain), parts, trails, room_bytes)

    ways = (placed_by(lambda life: life.last - life.first + 1), placed_by(lambda _: 1))
    return max(ways, key=lambda way: sum(moved_bytes[name] for name in way[0]))


def place_by_gain(
    wanted: Sequence[Lifetime], parts: Mapping[str, int], trails: Trails, room_bytes: int
) -> tuple[dict[str, int], int]:
    """Return the addresses of values that find room, in the order of `wanted`, and the bytes that they use.

    Values of different `parts` never share addresses; the parts follow each other.
    """
    shelves = [_Shelf(trails) for _ in range(1 + max(parts.values(), default=0))]
    for life in wanted:
        shelf = shelves[parts[life.name]]
        shelf.add(life, room_bytes - sum(other.top for other in shelves if other is not shelf))
    addresses: dict[str, int] = {}
    top = 0
    for shelf in shelves:
        addresses.update((life.name, top + address) for life, address in shelf.placed)
        top += shelf.top
    return addresses, top


class _Shelf:
    """Values with addresses from 0 on; those that live at the same time overlap only as `trails` permits."""

    def __init__(self, trails: Trails) -> None:
        self._trails = trails
        self._read = {read for read, _ in trails}
        self.placed: list[tuple[Lifetime, int]] = []
        self.top = 0

    def add(self, life: Lifetime, room_bytes: int) -> None:
        """Place a value if there is room for it."""
        size = aligned(life.bytes)
        taken = sorted(self._taken(life))
        for address in self._candidates(life, taken, room_bytes):
            if 0 <= address <= room_bytes - size and not any(low < address < high for low, high in taken):
                self.placed.append((life, address))
                self.top = max(self.top, address + size)
                return

    def _taken(self, life: Lifetime) -> Iterator[tuple[int, int]]:
        """Yield open intervals in which the value cannot begin."""
        for other, address in self.placed:
            if other.first <= life.last and life.first <= other.last:
                before, behind = aligned(life.bytes), aligned(other.bytes)
                before = self._trails.get((other.name, life.name), before)
                behind = self._trails.get((life.name, other.name), behind)
                yield address - before, address + behind

    def _candidates(self, life: Lifetime, taken: Sequence[tuple[int, int]], room_bytes: int) -> Iterator[int]:
        """Yield addresses: over values that it may cover or be covered by, high if others may cover it, then low."""
        for other, address in self.placed:
            if (other.name, life.name) in self._trails:
                yield address - self._trails[other.name, life.name]
            if (life.name, other.name) in self._trails:
                yield address + self._trails[life.name, other.name]
        if life.name in self._read:
            yield aligned_down(room_bytes - life.bytes)
            yield from sorted((low for low, _ in taken), reverse=True)
        yield 0
        yield from sorted(high for _, high in taken)
