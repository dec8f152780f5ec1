"""Core groups: sets of cores of one chip that execute a sub-structure together (S5.1)."""

from __future__ import annotations

import re
import reprlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import mode

from device_agents.emulated_npu.emulator_errors import InvalidPartition

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_SYNTAX = "write the cores of each group with / between groups: 0-3/4,5/6"


@dataclass(frozen=True)
class CoreCapability:
    """The capability of one core: multiply-adds per second, and bytes of storage.

    `storage_bytes` is the memory on the chip, to which the utilisation of the split score relates. `external_bytes` is
    the memory off the chip, which bounds what the core can hold; 0 if it holds everything on the chip. `speed` relates
    its multiply-adds per second to those of the cores of the first kind.
    """

    macs_per_s: float
    storage_bytes: int
    external_bytes: int = 0
    speed: float = 1.0


@dataclass(frozen=True)
class Fabric:
    """`chips` chips of `cores_per_chip` cores each; cores are numbered from 0 over all chips.

    `core` is what each core does not share; `kinds` lists the first and the last core of those that have something else
    instead. The cores in use on a chip share its `cache_bytes` of storage and its `external_bytes` off the chip.
    """

    chips: int
    cores_per_chip: int
    core: CoreCapability
    cache_bytes: int = 0
    external_bytes: int = 0
    kinds: tuple[tuple[int, int, CoreCapability], ...] = ()

    @property
    def cores(self) -> int:
        """The number of cores of all chips."""
        return self.chips * self.cores_per_chip

    def own(self, core: int) -> CoreCapability:
        """Return what a core does not share."""
        return next((own for first, last, own in self.kinds if first <= core <= last), self.core)

    def guaranteed(self, core: int = 0) -> CoreCapability:
        """Return the capability that a core has whatever the others do: that with all cores in use."""
        return self.capability(self.cores_per_chip, core)

    def capability(self, in_use: int, core: int = 0) -> CoreCapability:
        """Return the capability of a core of a chip with `in_use` cores in use."""
        own = self.own(core)
        return replace(
            own,
            storage_bytes=own.storage_bytes + self.cache_bytes // in_use,
            external_bytes=own.external_bytes + self.external_bytes // in_use,
        )

    def chip_of(self, core: int) -> int:
        """Return the chip of a core."""
        return core // self.cores_per_chip

    def shared_by(self, groups: Sequence[CoreGroup]) -> tuple[CoreGroup, ...]:
        """Return the groups with the capability of their cores if no other cores are in use."""
        in_use = Counter(group.chip for group in groups for _ in group.cores)
        return tuple(replace(group, core=self.capability(in_use[group.chip], group.cores[0])) for group in groups)


@dataclass(frozen=True)
class CoreGroup:
    """Cores of one chip, by number; each has the capability `core`.

    All cores of a group are equal, so a demand may be compared with the total or with the average per core (S5.6).
    """

    cores: tuple[int, ...]
    chip: int
    core: CoreCapability

    def __post_init__(self) -> None:
        if len(set(self.cores)) < len(self.cores):
            what = f"core {mode(self.cores)} is named twice in a group"
            raise InvalidPartition(what, "a core belongs to one group, once", _SYNTAX)

    @property
    def equal_cores(self) -> float:
        """The number of cores of the first kind that compute as much as all its cores."""
        return len(self.cores) * self.core.speed

    @property
    def macs_per_s(self) -> float:
        """Multiply-adds per second of all its cores."""
        return len(self.cores) * self.core.macs_per_s

    @property
    def storage_bytes(self) -> int:
        """Storage of all its cores together (paragraph 76 of the source)."""
        return len(self.cores) * self.core.storage_bytes

    @property
    def held_bytes(self) -> int:
        """The most that the group can hold: its part of the memory off the chip; without one, its storage."""
        return len(self.cores) * (self.core.external_bytes or self.core.storage_bytes)

    def storage_limit(self, demand_bytes: float) -> str:
        """Return a demand and the limit of the group as text, for the error that the demand is too large."""
        cores = f"{len(self.cores)} core{'s' if len(self.cores) > 1 else ''}"
        return f"{demand_bytes:.12g} bytes of storage, the limit is {self.held_bytes} ({cores})"


def parse_groups(fabric: Fabric, text: str) -> tuple[CoreGroup, ...]:
    """Return the groups of a text of core lists and ranges: `0-3/4,5/6`.

    Raises `InvalidPartition` for other text, for a core that does not exist or is named twice, and for a group that is
    empty or spans two chips.
    """
    groups = tuple(_group(fabric, _cores(fabric, part, text)) for part in text.split("/"))
    _check_disjoint(groups)
    return groups


def _check_disjoint(groups: Iterable[CoreGroup]) -> None:
    """Raise `InvalidPartition` if a core is in two groups."""
    owner: dict[int, int] = {}
    for index, group in enumerate(groups):
        for core in group.cores:
            if core in owner:
                what = f"core {core} is in group {owner[core]} and in group {index}"
                raise InvalidPartition(what, "a core belongs to one group", _SYNTAX)
            owner[core] = index


def name_cores(group: CoreGroup) -> str:
    """Return the cores of a group as text that `parse_groups` reads: a range if they are consecutive."""
    first, last = group.cores[0], group.cores[-1]
    if group.cores == tuple(range(first, last + 1)):
        return f"{first}-{last}" if last > first else str(first)
    return ",".join(map(str, group.cores))


def _group(fabric: Fabric, cores: tuple[int, ...]) -> CoreGroup:
    chips = {fabric.chip_of(core): core for core in cores}
    if len(chips) > 1:
        (one, core), (other, far), *_ = chips.items()
        what = f"a group has core {core} on chip {one} and core {far} on chip {other}"
        why = f"a group lies on one chip; a chip has {fabric.cores_per_chip} cores"
        raise InvalidPartition(what, why, "split the group, or name cores of one chip")
    return one_kind(fabric, CoreGroup(cores, fabric.chip_of(cores[0]), fabric.guaranteed(cores[0])))


def one_kind(fabric: Fabric, group: CoreGroup) -> CoreGroup:
    """Return the group; raise `InvalidPartition` if its cores are of several kinds."""
    other = next((core for core in group.cores if fabric.own(core) != fabric.own(group.cores[0])), None)
    if other is not None:
        what = f"a group has core {group.cores[0]} and core {other}, which are of different kinds"
        raise InvalidPartition(what, "a group has cores of one kind", "list the cores of each group")
    return group


def _cores(fabric: Fabric, part: str, text: str) -> tuple[int, ...]:
    if not part.strip():
        raise InvalidPartition(f"an empty core group in {reprlib.repr(text)}", "a group has at least 1 core", _SYNTAX)
    cores: list[int] = []
    for item in part.split(","):
        matched = _RANGE.fullmatch(item.strip())
        if not matched:
            what = f"{reprlib.repr(item)} in {reprlib.repr(text)} is neither a core nor a range of cores"
            raise InvalidPartition(what, f"cores are 0 to {fabric.cores - 1}", _SYNTAX)
        first, last = int(matched[1]), int(matched[2] or matched[1])
        if last < first:
            what = f"the range {item.strip()} of cores is empty"
            raise InvalidPartition(what, f"it begins at {first} and ends at {last}")
        if last >= fabric.cores:  # before the range is expanded
            raise InvalidPartition(
                f"core {last} does not exist",
                f"{fabric.chips} chips of {fabric.cores_per_chip} cores: cores are 0 to {fabric.cores - 1}",
            )
        cores += range(first, last + 1)
        if len(cores) > fabric.cores:
            break  # some core is named twice, which the group reports
    return tuple(cores)
