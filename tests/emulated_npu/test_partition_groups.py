"""Core groups: how they are formed from chips of cores, and which lists of cores contradict themselves (S5.1)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_cases import fabric

from device_agents.emulated_npu.partition.errors import InvalidPartition
from device_agents.emulated_npu.partition.groups import (
    Core,
    CoreGroup,
    Fabric,
    equal_groups,
    groups_of_sizes,
    name_cores,
    parse_groups,
)


def _cores(groups: tuple[CoreGroup, ...]) -> list[tuple[int, tuple[int, ...]]]:
    return [(group.chip, group.cores) for group in groups]


def test_a_number_forms_groups_of_equal_size_as_far_as_possible() -> None:
    """Eight cores in three groups: 3 + 3 + 2; two chips of four in three: 2 + 2 on one and 4 on the other."""
    assert _cores(parse_groups(fabric(1, 8), "3")) == [(0, (0, 1, 2)), (0, (3, 4, 5)), (0, (6, 7))]
    assert _cores(parse_groups(fabric(2, 4), " 3 ")) == [(0, (0, 1)), (0, (2, 3)), (1, (4, 5, 6, 7))]


def test_fewer_groups_than_chips_take_a_chip_each() -> None:
    """Two groups on four chips of two cores: the third and the fourth chip stay free for groups to be added."""
    assert _cores(equal_groups(fabric(4, 2), 2)) == [(0, (0, 1)), (1, (2, 3))]


def test_lists_and_ranges_name_the_cores_of_each_group() -> None:
    """0-3/4,5/6 on chips of four: the first group is chip 0, the others lie on chip 1."""
    groups = parse_groups(fabric(2, 4), "0-3/4,5/6")
    assert _cores(groups) == [(0, (0, 1, 2, 3)), (1, (4, 5)), (1, (6,))]
    assert "/".join(map(name_cores, groups)) == "0-3/4-5/6"
    assert _cores(parse_groups(fabric(1, 4), "2-2")) == [(0, (2,))]


def test_groups_of_given_sizes_go_to_the_next_chip_where_one_is_full() -> None:
    """Sizes 3, 2, 1 on chips of four cores: 0-2, then 4-5 as core 3 is too little, then 6."""
    assert _cores(groups_of_sizes(fabric(2, 4), (3, 2, 1))) == [(0, (0, 1, 2)), (1, (4, 5)), (1, (6,))]


def test_the_capability_of_a_group_is_that_of_its_cores_together() -> None:
    """Three cores of 100 bytes and 5 MACs per second: 300 bytes and 15 MACs per second (paragraph 76)."""
    group = CoreGroup((4, 5, 7), 1, Core(5.0, 100))
    assert (group.storage_bytes, group.macs_per_s) == (300, 15.0)
    assert name_cores(group) == "4,5,7"


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(1, 5), st.integers(1, 9), st.data())
def test_equal_groups_lie_on_one_chip_each_and_take_every_core(
    chips: int, cores_per_chip: int, data: st.DataObject
) -> None:
    """From one group a chip on every core is in one group, before in at most one; on a chip sizes differ by <= 1."""
    machine = fabric(chips, cores_per_chip)
    count = data.draw(st.integers(1, machine.cores))
    groups = equal_groups(machine, count)
    cores = [core for group in groups for core in group.cores]
    assert len(groups) == count
    assert cores == sorted(set(cores))
    assert all({machine.chip_of(core) for core in group.cores} == {group.chip} for group in groups)
    if count >= chips:
        assert len(cores) == machine.cores
    for chip in range(chips):
        sizes = [len(group.cores) for group in groups if group.chip == chip]
        assert not sizes or max(sizes) - min(sizes) <= 1
    assert count == 1 or parse_groups(machine, "/".join(map(name_cores, groups))) == groups


@pytest.mark.parametrize(
    ("text", "what", "limit"),
    [
        ("0", "0 core groups", "as many as there are cores: 8"),
        ("9", "9 core groups", "as many as there are cores: 8"),
        ("999999999", "999999999 core groups", "as many as there are cores: 8"),
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
    """The error names the value and the limit and stays short, for whatever list of cores on two chips of four."""
    with pytest.raises(InvalidPartition, match=what) as caught:
        parse_groups(fabric(2, 4), text)
    assert limit in caught.value.why
    assert len(caught.value.what) < 200


@pytest.mark.parametrize("sizes", [(5,), (0,), (3, 3, 3)])
def test_sizes_that_no_chip_holds_are_refused(sizes: tuple[int, ...]) -> None:
    """Larger than a chip, none, and three groups of three on two chips of four."""
    with pytest.raises(InvalidPartition, match="core group") as caught:
        groups_of_sizes(fabric(2, 4), sizes)
    assert "4 cores" in caught.value.why


@pytest.mark.parametrize("macs_per_s", [0.0, -1.0, math.nan, math.inf])
def test_a_core_without_a_speed_is_refused(macs_per_s: float) -> None:
    """Speeds that are not positive finite numbers."""
    with pytest.raises(InvalidPartition, match="multiply-adds per second"):
        Core(macs_per_s, 1)


def test_a_core_without_storage_and_a_machine_without_cores_are_refused() -> None:
    """Nothing to hold, no chip, no core, and a group of nobody."""
    with pytest.raises(InvalidPartition, match="0 bytes of storage"):
        Core(1.0, 0)
    with pytest.raises(InvalidPartition, match="0 chips of 1 cores"):
        Fabric(0, 1, Core(1.0, 1))
    with pytest.raises(InvalidPartition, match="without cores"):
        CoreGroup((), 0, Core(1.0, 1))
