"""The slots of the control unit: CONFIG instructions write shapes and settings, data instructions read them."""

from __future__ import annotations

from dataclasses import dataclass, field

from device_agents.emulated_npu.emulator_errors import ExecutionFault
from device_agents.emulated_npu.isa.instructions import DESCRIPTOR_SLOTS, SETTINGS_SLOTS
from device_agents.emulated_npu.isa.settings_words import settings_of_words, settings_words
from device_agents.emulated_npu.unit_commands import MAX_RANK, DataType, Descriptor, Settings, Space


@dataclass(slots=True)
class _DescriptorSlot:
    """The written values; `ready` is their descriptor until the next write."""

    header: tuple[Space, DataType, int] | None = None
    dims: list[int] = field(default_factory=lambda: [0] * MAX_RANK)
    strides: list[int] = field(default_factory=lambda: [0] * MAX_RANK)
    ready: Descriptor | None = None


class DescriptorSlots:
    """The descriptor slots of a run; equal contents give one object, which makes comparison fast."""

    def __init__(self) -> None:
        self._slots = [_DescriptorSlot() for _ in range(DESCRIPTOR_SLOTS)]
        self._known: dict[Descriptor, Descriptor] = {}

    def set_header(self, number: int, space: Space, dtype: DataType, rank: int) -> None:
        """Write the fields of a DESCRIPTOR instruction; the axes stay as they are."""
        slot = self._slots[number]
        slot.header, slot.ready = (space, dtype, rank), None

    def set_axis(self, number: int, axis: int, dim: int, stride: int) -> None:
        """Write the fields of an AXIS instruction."""
        slot = self._slots[number]
        slot.dims[axis], slot.strides[axis], slot.ready = dim, stride, None

    def read(self, number: int, pc: int) -> Descriptor:
        """Return the descriptor in a slot; raise ExecutionFault, naming the instruction `pc`, if it was never set."""
        slot = self._slots[number]
        if slot.ready is not None:
            return slot.ready
        if slot.header is None:
            raise ExecutionFault(f"instruction {pc} uses descriptor slot {number}, which no DESCRIPTOR has set")
        space, dtype, rank = slot.header
        dims, strides = tuple(slot.dims[:rank]), tuple(slot.strides[:rank])
        if 0 in dims:
            axis = dims.index(0)
            raise ExecutionFault(f"instruction {pc} uses descriptor slot {number}, whose axis {axis} no AXIS has set")
        made = Descriptor(space, dtype, dims, strides)
        slot.ready = self._known.setdefault(made, made)
        return slot.ready


@dataclass(slots=True)
class _SettingsSlot:
    """The words, None before the first write; `ready` are their settings until the next write."""

    words: list[int] | None = None
    ready: Settings | None = None


class SettingsSlots:
    """The settings slots of a run; slot 0 always holds Settings(). Equal contents give one object."""

    def __init__(self) -> None:
        self._slots = [_SettingsSlot() for _ in range(SETTINGS_SLOTS)]
        self._slots[0].ready = Settings()
        # Keyed by words, not values: -0.0 equals 0.0, and NaN does not equal itself.
        self._by_content: dict[tuple[int, ...], Settings] = {}

    def set_word(self, number: int, word: int, bits: int) -> None:
        """Write the word of a SETTINGS instruction; the first write sets the other words to those of Settings()."""
        slot = self._slots[number]
        if slot.words is None:
            slot.words = list(_PLAIN_WORDS)
        slot.words[word], slot.ready = bits, None

    def read(self, number: int, pc: int) -> Settings:
        """Return the settings in a slot; raise ExecutionFault, naming the instruction `pc`, if it was never set."""
        slot = self._slots[number]
        if slot.ready is not None:
            return slot.ready
        if slot.words is None:
            raise ExecutionFault(f"instruction {pc} uses settings slot {number}, which no SETTINGS has set")
        key = tuple(slot.words)
        if key not in self._by_content:
            self._by_content[key] = settings_of_words(key)
        slot.ready = self._by_content[key]
        return slot.ready


_PLAIN_WORDS = settings_words(Settings())
