"""Batches visit every probe, keep compared probes together, and have about the footprint of their network."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st

from harness.network.assemble import ArraySpec, AssembledModel, EmittedNames
from harness.probe.batches import (
    MAX_BATCH_LOADS,
    MAX_BATCH_WEIGHT_BYTES,
    SESSION_BYTES,
    Batch,
    Visits,
    batched,
    footprint_bytes,
    pools,
    probe_of,
)
from harness.probe.overhead_terms import OverheadTerms
from harness.probe.probe import Probe

Group = tuple[tuple[Probe, ...], int]


def probe(name: str, weight_bytes: int) -> Probe:
    """Return a probe with this many bytes of weights."""
    weights = (ArraySpec("w", "uint8", (weight_bytes,), 0, "uniform"),)
    return Probe(
        name, "context", name, AssembledModel(b"", weights, (), (), EmittedNames({}, {}), (0,)), OverheadTerms()
    )


def groups_of(sizes: Sequence[tuple[int, int]]) -> list[Group]:
    """Return a group for each size and count: two probes of a layer, and how often the layer occurs."""
    return [
        ((probe(f"layer{at}", size), probe(f"null{at}", size // 8)), count) for at, (size, count) in enumerate(sizes)
    ]


SIZES = st.tuples(st.integers(0, 4 << 20), st.integers(1, 12))
GROUPS = st.lists(SIZES, min_size=1, max_size=40).map(groups_of)
NETWORK_BYTES = st.integers(SESSION_BYTES, 256 << 20)


def bytes_of(batch: Batch, groups: Sequence[Group]) -> int:
    """Return the bytes that one round of a batch touches."""
    known = {one.id: one for probes, _ in groups for one in probes}
    return footprint_bytes([known[probe_of(load)] for load in batch.loads])


@given(GROUPS, NETWORK_BYTES)
def test_every_probe_is_in_a_pool_and_no_load_twice(groups: list[Group], network_bytes: int) -> None:
    """Every probe is loaded, and each load is in one batch, once."""
    loads = [load for batch in pools(groups, network_bytes) for load in batch.loads]
    assert len(loads) == len(set(loads))
    assert {one.id for probes, _ in groups for one in probes} <= set(loads)


@given(GROUPS, NETWORK_BYTES)
def test_what_is_subtracted_from_each_other_is_visited_together(groups: list[Group], network_bytes: int) -> None:
    """All probes of a group and their copies are consecutive in one batch, in the network's order."""
    batches = pools(groups, network_bytes)
    first = [probes[0].id for probes, _ in groups]
    order = list(dict.fromkeys(probe_of(load) for batch in batches for load in batch.loads if probe_of(load) in first))
    assert order == first
    for (whole, null), count in groups:
        (batch,) = (one for one in batches if whole.id in one.loads)
        places = [at for at, load in enumerate(batch.loads) if probe_of(load) in (whole.id, null.id)]
        assert places == list(range(places[0], places[0] + len(places)))
        copies = [load.removeprefix(whole.id) for load in batch.loads if probe_of(load) == whole.id]
        assert copies == [load.removeprefix(null.id) for load in batch.loads if probe_of(load) == null.id]
        assert 1 <= len(copies) <= count


@given(GROUPS, NETWORK_BYTES)
def test_a_pool_touches_about_what_the_network_does(groups: list[Group], network_bytes: int) -> None:
    """A batch touches at most about 1.5 times the network's bytes, and on average two thirds if probes suffice."""
    batches = pools(groups, network_bytes)
    touched = [bytes_of(batch, groups) for batch in batches]
    largest = max(footprint_bytes(probes) * count for probes, count in groups)
    assert max(touched) <= 1.5 * network_bytes + 2 * largest
    available = sum(footprint_bytes(probes) * count for probes, count in groups)
    assert sum(touched) / len(touched) >= min(available, 2 / 3 * network_bytes) - largest
    assert sum(touched) >= min(available, network_bytes)


@given(GROUPS, NETWORK_BYTES)
def test_nothing_is_copied_in_vain(groups: list[Group], network_bytes: int) -> None:
    """Copies are loaded only while the probes touch less than the network."""
    batches = pools(groups, network_bytes)
    alone = sum(footprint_bytes(probes) for probes, _ in groups)
    touched = sum(bytes_of(batch, groups) for batch in batches)
    if alone >= network_bytes:
        assert touched == alone
    else:
        assert touched < network_bytes + max(footprint_bytes(probes) for probes, _ in groups)


@settings(max_examples=20)
@given(st.integers(1, 700), st.integers(1, 3), st.integers(SESSION_BYTES, 1 << 30))
def test_the_number_of_loads_is_bounded(layers: int, count: int, network_bytes: int) -> None:
    """A batch has at most the loads that a device holds plus one group, and no more copies than the layer occurs."""
    groups = groups_of([(0, count)] * layers)
    batches = pools(groups, network_bytes)
    assert max(len(batch.loads) for batch in batches) < MAX_BATCH_LOADS + 2 * count
    assert sum(len(batch.loads) for batch in batches) <= 2 * layers * count


def test_pools_by_hand() -> None:
    """Groups are copied until the network's size is reached, and divided if they are larger."""
    size = 100_000 - 2 * SESSION_BYTES
    groups = [((probe("a", size), probe("b", 0)), 3), ((probe("c", size), probe("d", 0)), 1)]
    (one,) = pools(groups, 200_000)
    assert one == Batch(("a", "b", "c", "d"), "pool")
    (more,) = pools(groups, 250_000)  # 300 kB with a second copy
    assert more.loads == ("a", "b", "a.2", "b.2", "c", "d")
    assert more.probes == ("a", "b", "c", "d")
    (all_of_them,) = pools(groups, 1 << 30)  # the third is the last
    assert all_of_them.loads == ("a", "b", "a.2", "b.2", "a.3", "b.3", "c", "d")
    apart = pools(groups, 100_000)  # twice the network
    assert [batch.loads for batch in apart] == [("a", "b"), ("c", "d")]


def test_probes_that_groups_share_are_loaded_once_in_a_pool() -> None:
    """A null probe that two layers share is loaded once."""
    null = probe("null", 0)
    (batch,) = pools([((probe("a", 0), null), 1), ((probe("b", 0), null), 1)], 1 << 20)
    assert batch.loads == ("a", "null", "b")


@pytest.mark.parametrize(("visits", "warmup"), [("cold", 0), ("pool", 0), ("warm", 1)])
def test_only_warm_visits_begin_with_an_untimed_run(visits: Visits, warmup: int) -> None:
    """Only warm visits have an untimed run."""
    assert Batch(("a",), visits).warmup == Batch(("a",), visits, 3).warmup == warmup


@settings(max_examples=30)
@given(st.lists(st.integers(0, MAX_BATCH_WEIGHT_BYTES + 1), max_size=40), st.sampled_from(["cold", "warm"]))
def test_batches_hold_what_a_device_can(sizes: list[int], visits: Visits) -> None:
    """Batches have all probes once, in order; only a single probe exceeds the limit; no two batches could be one."""
    probes = [probe(f"p{at}", size) for at, size in enumerate(sizes)]
    batches = list(batched(probes, visits))
    assert [load for batch in batches for load in batch.loads] == [one.id for one in probes]
    assert {batch.visits for batch in batches} <= {visits}
    known = dict(zip((one.id for one in probes), sizes, strict=True))
    held = [[known[load] for load in batch.loads] for batch in batches]
    assert all(sum(one) <= MAX_BATCH_WEIGHT_BYTES or len(one) == 1 for one in held)
    assert all(sum(one) + other[0] > MAX_BATCH_WEIGHT_BYTES for one, other in itertools.pairwise(held))


def test_many_small_probes_are_several_batches() -> None:
    """A new batch begins at the limit of loads."""
    batches = list(batched([probe(f"p{at}", 0) for at in range(2 * MAX_BATCH_LOADS + 1)], "cold"))
    assert [len(batch.loads) for batch in batches] == [MAX_BATCH_LOADS, MAX_BATCH_LOADS, 1]
