"""The slots of the control unit: CONFIG instructions write shapes and settings, data instructions read them."""

from __future__ import annotations

from device_agents.emulated_npu.emulator_errors import ExecutionFault
from device_agents.emulated_npu.isa.instructions import DESCRIPTOR_SLOTS, SETTINGS_SLOTS
from device_agents.emulated_npu.isa.settings_words import settings_of_words, settings_words
from device_agents.emulated_npu.unit_commands import MAX_RANK, DataType, Descriptor, Settings, Space


class DescriptorSlots:
    """The descriptor slots of a run; equal contents give one object, which makes comparison fast."""

    def __init__(self) -> None:
        self._headers: list[tuple[Space, DataType, int] | None] = [None] * DESCRIPTOR_SLOTS
        self._dims = [[0] * MAX_RANK for _ in range(DESCRIPTOR_SLOTS)]
        self._strides = [[0] * MAX_RANK for _ in range(DESCRIPTOR_SLOTS)]
        self._ready: list[Descriptor | None] = [None] * DESCRIPTOR_SLOTS  # until the next write
        self._known: dict[tuple[Space, DataType, tuple[int, ...], tuple[int, ...]], Descriptor] = {}

    def set_header(self, number: int, space: Space, dtype: DataType, rank: int) -> None:
        """Write the fields of a DESCRIPTOR instruction; the axes stay as they are."""
        self._headers[number], self._ready[number] = (space, dtype, rank), None

    def set_axis(self, number: int, axis: int, dim: int, stride: int) -> None:
        """Write the fields of an AXIS instruction."""
        self._dims[number][axis], self._strides[number][axis], self._ready[number] = dim, stride, None

    def read(self, number: int, pc: int) -> Descriptor:
        """Return the descriptor in a slot; raise ExecutionFault, naming the instruction `pc`, if it was never set."""
        ready = self._ready[number]
        if ready is not None:
            return ready
        header = self._headers[number]
        if header is None:
            raise ExecutionFault(f"instruction {pc} uses descriptor slot {number}, which no DESCRIPTOR has set")
        space, dtype, rank = header
        dims = tuple(self._dims[number][:rank])
        if 0 in dims:
            axis = dims.index(0)
            raise ExecutionFault(f"instruction {pc} uses descriptor slot {number}, whose axis {axis} no AXIS has set")
        key = (space, dtype, dims, tuple(self._strides[number][:rank]))
        if key not in self._known:
            self._known[key] = Descriptor(*key)
        self._ready[number] = found = self._known[key]
        return found


class SettingsSlots:
    """The settings slots of a run; slot 0 always holds Settings(). Equal contents give one object."""

    def __init__(self) -> None:
        self._words: list[list[int]] = [[] for _ in range(SETTINGS_SLOTS)]
        self._ready: list[Settings | None] = [Settings(), *[None] * (SETTINGS_SLOTS - 1)]  # until the next write
        # Keyed by words, not values: -0.0 equals 0.0, and NaN does not equal itself.
        self._known: dict[tuple[int, ...], Settings] = {}

    def set_word(self, number: int, word: int, bits: int) -> None:
        """Write the word of a SETTINGS instruction; the first write sets the other words to those of Settings()."""
        words = self._words[number] = self._words[number] or list(_PLAIN_WORDS)
        words[word], self._ready[number] = bits, None

    def read(self, number: int, pc: int) -> Settings:
        """Return the settings in a slot; raise ExecutionFault, naming the instruction `pc`, if it was never set."""
        ready = self._ready[number]
        if ready is not None:
            return ready
        key = tuple(self._words[number])
        if not key:
            raise ExecutionFault(f"instruction {pc} uses settings slot {number}, which no SETTINGS has set")
        if key not in self._known:
            self._known[key] = settings_of_words(key)
        self._ready[number] = found = self._known[key]
        return found


_PLAIN_WORDS = settings_words(Settings())
