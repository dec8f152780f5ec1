"""The contents of registers and slots during code generation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Any, Generic, TypeVar

from device_agents.emulated_npu.isa.instructions import Instruction

Key = TypeVar("Key", bound=Hashable)


class Residency(Generic[Key]):
    """Numbered places, and their known contents at the current point of the code.

    A place is free, holds a key that may be evicted (the least recently used first), holds a pinned key that stays
    until it is unpinned, or is reserved by a caller.
    """

    def __init__(self, places: Iterable[int]) -> None:
        self._free = list(places)[::-1]
        self._recent: dict[Key, int] = {}
        self._pinned: dict[Key, int] = {}

    @property
    def capacity(self) -> int:
        """Places that are neither pinned nor reserved."""
        return len(self._free) + len(self._recent)

    @property
    def pinned_places(self) -> set[int]:
        """The places of pinned keys."""
        return set(self._pinned.values())

    def find(self, key: Key) -> int | None:
        """Return the place of a key; counts as a use."""
        place = self._pinned.get(key)
        if place is None and (place := self._recent.pop(key, None)) is not None:
            self._recent[key] = place
        return place

    def is_pinned(self, key: Key) -> bool:
        """Return whether a key is pinned."""
        return key in self._pinned

    def place(self, key: Key) -> int:
        """Return a place for a key that has none."""
        place = self._recent[key] = self.reserve()
        return place

    def reserve(self) -> int:
        """Reserve a place for the caller."""
        return self._free.pop() if self._free else self._recent.pop(next(iter(self._recent)))

    def release(self, place: int, key: Key | None = None) -> None:
        """Release a reserved place; it holds `key`, if one is given."""
        if key is None or self.find(key) is not None:
            self._free.append(place)
        else:
            self._recent[key] = place

    def pin_at(self, key: Key, place: int) -> None:
        """Put a pinned key into a reserved place."""
        self._pinned[key] = place

    def withdraw(self, key: Key) -> int:
        """Remove a pinned key; return its place, which stays reserved."""
        return self._pinned.pop(key)

    def pin(self, key: Key) -> None:
        """Pin a key that may be evicted."""
        self._pinned[key] = self._recent.pop(key)

    def unpin(self, keys: Iterable[Key]) -> None:
        """Unpin keys, so that they may be evicted."""
        for key in keys:
            self._recent[key] = self._pinned.pop(key)

    def forget(self) -> None:
        """Evict all keys that are not pinned."""
        self._free += self._recent.values()
        self._recent.clear()


class Slots(Generic[Key]):
    """Slots of several words; only words that differ from the contents of a slot are written.

    `words` returns the words of a key, `initial` are the words of a slot at the start (None: unknown), and
    `instruction` returns what writes word `index` of a slot. `working` slots are never pinned. Instructions are
    appended to `code`.
    """

    def __init__(
        self,
        places: Collection[int],
        initial: tuple[Any, ...],
        words: Callable[[Key], tuple[Any, ...]],
        instruction: Callable[[int, int, Any], Instruction],
        working: int,
        code: list[Instruction],
    ) -> None:
        self._residency: Residency[Key] = Residency(places)
        self._contents = {place: list(initial) for place in places}
        self._words, self._instruction, self._working, self._code = words, instruction, working, code

    def slot(self, key: Key) -> int:
        """Return the slot that holds a key; write it if necessary."""
        found = self._residency.find(key)
        if found is not None:
            return found
        place = self._residency.place(key)
        contents = self._contents[place]
        for index, word in enumerate(self._words(key)):
            if contents[index] != word:
                contents[index] = word
                self._code.append(self._instruction(place, index, word))
        return place

    def enter(self, keys: Collection[Key], inner: Iterable[Collection[Key]]) -> list[Key]:
        """Enter a loop that uses these keys: write, pin and return those for which there is room.

        If there is not room for all, as many slots as an inner loop uses at most stay unpinned for it, and the contents
        of all unpinned slots count as unknown. `inner` has the keys of the inner loops.
        """
        missing = [key for key in keys if not self._residency.is_pinned(key)]
        room = self._residency.capacity - self._working
        held = missing if len(missing) <= room else missing[: max(room - max(map(len, inner), default=0), 0)]
        for key in held:
            self.slot(key)
            self._residency.pin(key)
        if len(held) < len(missing):
            self._residency.forget()
            for place in self._contents.keys() - self._residency.pinned_places:
                self._contents[place][:] = [None] * len(self._contents[place])
        return held

    def leave(self, held: Iterable[Key]) -> None:
        """Leave a loop: unpin the keys that `enter` returned."""
        self._residency.unpin(held)
