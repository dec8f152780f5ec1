"""Core groups: how chips are divided into groups, and which lists of cores are contradictory (S5.1)."""

import pytest
from partition_cases import fabric

from device_agents.emulated_npu.emulator_errors import InvalidPartition
from device_agents.emulated_npu.partition.groups import CoreCapability, CoreGroup, Fabric, name_cores, parse_groups


def _cores(groups: tuple[CoreGroup, ...]) -> list[tuple[int, tuple[int, ...]]]:
    return [(group.chip, group.cores) for group in groups]


def test_lists_and_ranges_name_the_cores_of_each_group() -> None:
    """0-3/4,5/6 on chips of four: the first group is chip 0, the others lie on chip 1."""
    groups = parse_groups(fabric(2, 4), "0-3/4,5/6")
    assert _cores(groups) == [(0, (0, 1, 2, 3)), (1, (4, 5)), (1, (6,))]
    assert "/".join(map(name_cores, groups)) == "0-3/4-5/6"
    assert _cores(parse_groups(fabric(1, 4), "2-2")) == _cores(parse_groups(fabric(1, 4), " 2 ")) == [(0, (2,))]


def test_the_capability_of_a_group_is_that_of_its_cores_together() -> None:
    """Three cores of 100 bytes and 5 MACs per second: 300 bytes and 15 MACs per second (paragraph 76)."""
    group = CoreGroup((4, 5, 7), 1, CoreCapability(5.0, 100))
    assert (group.storage_bytes, group.macs_per_s) == (300, 15.0)
    assert name_cores(group) == "4,5,7"


def test_cores_in_use_share_the_memories_of_their_chip() -> None:
    """Three cores in use have 40 of 120 bytes of cache each beside 30 of their own, and 80 of 240 off the chip.

    One alone has all; without shared memories 30 stay 30.
    """
    groups = parse_groups(fabric(2, 4, storage_bytes=30), "0-1/2/5")
    shared = Fabric(2, 4, CoreCapability(1e9, 30), cache_bytes=120, external_bytes=240).shared_by(groups)
    assert [group.storage_bytes for group in shared] == [140, 70, 150]
    assert [group.held_bytes for group in shared] == [160, 80, 240]
    assert _cores(shared) == _cores(groups)
    assert fabric(2, 4, storage_bytes=30).shared_by(groups) == groups
    assert [group.held_bytes for group in groups] == [60, 30, 30]


@pytest.mark.parametrize(
    ("text", "what", "limit"),
    [
        ("8", "core 8 does not exist", "cores are 0 to 7"),
        ("0,1,0", "core 0 is named twice", "once"),
        ("0-3/3", "core 3 is in group 0 and in group 1", "one group"),
        ("0-9", "core 9 does not exist", "cores are 0 to 7"),
        ("0-999999999", "core 999999999 does not exist", "cores are 0 to 7"),
        ("0-3,0-3,0-3", "core 0 is named twice", "once"),
        ("2-5", "core 2 on chip 0|core 3 on chip 0", "4 cores"),
        ("0//1", "an empty core group", "at least 1 core"),
        ("0/", "an empty core group", "at least 1 core"),
        ("", "an empty core group", "at least 1 core"),
        ("3-0", "the range 3-0", "begins at 3 and ends at 0"),
        ("0,,1", "neither a core nor a range", "0 to 7"),
        ("-1", "neither a core nor a range", "0 to 7"),
        ("1-2-3", "neither a core nor a range", "0 to 7"),
        ("four", "neither a core nor a range", "0 to 7"),
        ("٣", "neither a core nor a range", "0 to 7"),
        ("1" * 5000, "neither a core nor a range", "0 to 7"),
    ],
)
def test_contradictory_lists_are_refused(text: str, what: str, limit: str) -> None:
    """For any list of cores on two chips of four, the error names the value and the limit and is short."""
    with pytest.raises(InvalidPartition, match=what) as caught:
        parse_groups(fabric(2, 4), text)
    assert limit in caught.value.why
    assert len(caught.value.what) < 200
