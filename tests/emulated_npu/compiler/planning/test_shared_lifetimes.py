"""Memory that the cores of a group share is reused only when all cores have finished with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from device_agents.emulated_npu.compiler.planning.off_chip.shared_lifetimes import (
    PhaseAccess,
    last_phases,
    notifications,
)


def _shared_values(random: Random) -> tuple[list[PhaseAccess], list[PhaseAccess], int]:
    """Return writes and reads of values by some cores: value v is written in phase v, and read in later phases."""
    cores, count = random.randint(2, 3), random.randint(3, 8)
    writes, reads = [], []
    for phase in range(count):
        bounds = sorted(random.sample(range(1, 8), random.randint(0, cores - 1)))
        for core, (low, high) in enumerate(zip([0, *bounds], [*bounds, 8], strict=True)):
            last = random.choice((None, ((random.randrange(low, high), high),)))
            writes.append(PhaseAccess(core, phase, f"v{phase}", ((low, high),), last))
            for source in random.sample(range(max(0, phase - 3), phase), min(phase, random.randint(0, 2))):
                first = random.randint(0, 7)
                part = random.choice(((0, 8), (first, first + 1), (low, high)))
                complete = random.choice((None, (part,)))
                reads.append(PhaseAccess(core, phase, f"v{source}", (part,), complete=complete))
    return writes, reads, cores


@given(st.integers(0, 1 << 60))
@settings(max_examples=1500, deadline=None)
def test_an_address_is_written_again_when_all_have_read(seed: int) -> None:
    """In any interleaving of cores, no core writes to an address that another core still uses for another value.

    Cores are run here step by step in random order: in a phase a core waits for the writers of what it reads, reads,
    and writes; a reader that asks for part of a write can go on while its writer is still busy with the phase, unless
    it asks for some of what the writer stores last.
    """
    random = Random(seed)
    writes, reads, cores = _shared_values(random)
    step_by_step = {(write.core, write.phase) for write in writes if random.random() < 0.5}
    spans = last_phases((*writes, *reads), notifications(writes, reads, step_by_step), step_by_step)
    steps = [_steps(core, writes, reads, step_by_step) for core in range(cores)]
    done: set[tuple[int, int, str, str]] = set()
    place = [0] * cores
    slow = random.randrange(cores)  # goes on only where it must
    while any(at < len(own) for at, own in zip(place, steps, strict=True)):
        ready = [
            core for core in range(cores) if place[core] < len(steps[core]) and _can(steps[core][place[core]], done)
        ]
        core = random.choice([one for one in ready if one != slow] or ready)
        step, _ = steps[core][place[core]]
        place[core] += 1
        done.add(step)
        if step[2] == "begin":
            _check_free(step, (*writes, *reads), spans, done)


_Step = tuple[tuple[int, int, str, str], list[tuple[int, int, str, str]]]


def _steps(
    core: int, writes: Sequence[PhaseAccess], reads: Sequence[PhaseAccess], step_by_step: set[tuple[int, int]]
) -> list[_Step]:
    """Return the steps of a core in order, each with what it waits for: fetch, begin to write and end of each value."""
    found: list[_Step] = []
    for write in (write for write in writes if write.core == core):
        phase = write.phase
        fetches: list[_Step] = []
        for read in (read for read in reads if (read.core, read.phase) == (core, phase)):
            waits = []
            for other in writes:
                low, high = max(read.region[0][0], other.region[0][0]), min(read.region[0][1], other.region[0][1])
                if other.value == read.value and other.core != core and low < high:
                    whole = (low, high) == other.region[0] or (other.core, other.phase) not in step_by_step
                    whole |= other.last is not None and read.complete is not None and high > other.last[0][0]
                    waits.append((other.core, other.phase, "end" if whole else "begin", other.value))
            fetches.append(((core, phase, f"fetch {len(fetches)}", read.value), waits))
        begin: _Step = ((core, phase, "begin", write.value), [])
        middle = [begin, *fetches] if (core, phase) in step_by_step else [*fetches, begin]
        found.extend([*middle, ((core, phase, "end", write.value), [])])
    return found


def _can(step: _Step, done: set[tuple[int, int, str, str]]) -> bool:
    return all(wait in done for wait in step[1])


def _check_free(
    step: tuple[int, int, str, str],
    accesses: Sequence[PhaseAccess],
    spans: Mapping[str, tuple[int, int]],
    done: set[tuple[int, int, str, str]],
) -> None:
    """Check that other cores have finished with values whose address may be reused for the written one."""
    core, _, _, value = step
    for access in accesses:
        if access.core != core and spans[access.value][1] < spans[value][0]:
            assert (access.core, access.phase, "end", f"v{access.phase}") in done, (access, step)


def test_one_core_after_the_other_gives_places_back_at_once() -> None:
    """A value of one core keeps its address until it is read; without notifications other values keep theirs."""
    whole = ((0, 8),)
    writes = [
        PhaseAccess(0, 0, "a", whole),
        PhaseAccess(0, 1, "b", whole),
        PhaseAccess(0, 2, "c", whole),
        PhaseAccess(1, 3, "d", whole),
    ]
    reads = [PhaseAccess(0, 1, "a", whole), PhaseAccess(0, 2, "b", whole)]
    alone = last_phases((*writes[:3], *reads), notifications(writes, reads, frozenset()), frozenset())
    assert alone == {"a": (0, 1), "b": (1, 2), "c": (2, 2)}
    # Core 1 writes d in phase 3 without a notification: it may get there before core 0 has begun.
    both = last_phases((*writes, *reads), notifications(writes, reads, frozenset()), frozenset())
    assert both == {"a": (0, 3), "b": (1, 3), "c": (2, 3), "d": (3, 3)}
    # Core 1 reads c before it writes d, so that core 0 has finished phase 2.
    reads.append(PhaseAccess(1, 3, "c", whole))
    assert last_phases((*writes, *reads), notifications(writes, reads, frozenset()), frozenset())["a"] == (0, 1)
    # That does not hold if core 1 stores parts of d before it has fetched all of c.
    assert last_phases((*writes, *reads), notifications(writes, reads, {(1, 3)}), {(1, 3)})["a"] == (0, 3)
