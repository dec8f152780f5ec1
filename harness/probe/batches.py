"""Batches: which probes are loaded together, and how they are visited.

The latency of a layer on a processor depends on the state of the caches. If it runs twice in a row, its weights are
cached; in a network, other layers have evicted some of them. Visits imitate the network. The footprint of a batch, the
bytes that one round of it touches, is made equal to that of the network. If a network's probes touch less, further
copies of probes that represent several layers are loaded; if they touch more, the network is divided into several
batches. A network that fits into the cache of a core finds all its data in the cache.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from harness.probe.probe import Probe

Visits = Literal["cold", "pool", "warm"]
"""How a batch is visited, in rounds of random order:

- `cold`: no untimed run before a timed one; later rounds leave out probes whose latency is precise enough;
- `pool`: as `cold`, but every round has every probe; rounds before the first one of a request are not timed;
- `warm`: untimed runs of the same probe before the timed ones.
"""
MAX_BATCH_LOADS = 512
MAX_BATCH_WEIGHT_BYTES = 1 << 30
SESSION_BYTES = 32 << 10
"""Bytes that any run touches besides weights: code and the runtime's own structures."""
NODE_BYTES = 8 << 10
"""Bytes that each further layer of a network adds to these."""
_COPY = "."


@dataclass(frozen=True)
class Batch:
    """Loads that are visited together, with `runs` timed runs in each visit, after `untimed` ones of a warm visit.

    A load is the id of a probe, or `id.N` for its N-th copy, which has its own weights.
    """

    loads: tuple[str, ...]
    visits: Visits = "cold"
    runs: int = 1
    untimed: int = field(default=1, repr=False)  # the id of a plan hashes the representation of its batches

    @property
    def warmup(self) -> int:
        """Untimed runs before the timed ones of a visit."""
        return self.untimed if self.visits == "warm" else 0

    @property
    def probes(self) -> tuple[str, ...]:
        """Ids of the probes, each once."""
        return tuple(dict.fromkeys(map(probe_of, self.loads)))


def probe_of(load: str) -> str:
    """Return the id of the probe that a load is a copy of."""
    return load.partition(_COPY)[0]


def footprint_bytes(probes: Sequence[Probe]) -> int:
    """Return the bytes that one run of each of these probes touches; their activations share one arena."""
    return sum(probe.model.weight_bytes + SESSION_BYTES for probe in probes)


def batched(probes: Iterable[Probe], visits: Visits) -> Iterator[Batch]:
    """Yield batches as large as a device can hold."""
    return batched_groups(([probe] for probe in probes), visits)


def batched_groups(groups: Iterable[Sequence[Probe]], visits: Visits = "cold") -> Iterator[Batch]:
    """Yield batches as large as a device can hold; the probes of a group stay together."""
    loads: list[str] = []
    weight_bytes = 0
    for group in groups:
        size = sum(probe.model.weight_bytes for probe in group)
        full = len(loads) + len(group) > MAX_BATCH_LOADS or weight_bytes + size > MAX_BATCH_WEIGHT_BYTES
        if loads and full:
            yield Batch(tuple(loads), visits)
            loads, weight_bytes = [], 0
        loads.extend(probe.id for probe in group)
        weight_bytes += size
    if loads:
        yield Batch(tuple(loads), visits)


def pools(groups: Sequence[tuple[Sequence[Probe], int]], network_bytes: int) -> tuple[Batch, ...]:
    """Return batches with the footprint of a network, in bytes.

    `groups` are probes that are subtracted from each other, in the network's order, with the number of times that
    their layer occurs. The probes of a group stay together.
    """
    seen: set[str] = set()
    held = []
    for probes, count in groups:  # a probe that several layers share is loaded once
        fresh = [probe for probe in probes if probe.id not in seen]
        seen.update(probe.id for probe in fresh)
        held.append((probes, footprint_bytes(fresh), count))
    total = sum(size for _, size, _ in held)
    copies = [1] * len(held)
    for copy in itertools.count(2):
        more = [at for at, (_, _, count) in enumerate(held) if count >= copy]
        if not more or total >= network_bytes:
            break
        for at in more:
            if total < network_bytes:
                copies[at] = copy
                total += held[at][1]
    parts = max(1, round(total / network_bytes), -(-total // MAX_BATCH_WEIGHT_BYTES))
    batches: list[list[str]] = [[]]
    filled = 0
    for (probes, size, _), number in zip(held, copies, strict=True):
        full = filled >= total * len(batches) / parts and len(batches) < parts
        if batches[-1] and (full or len(batches[-1]) >= MAX_BATCH_LOADS):
            batches.append([])
        for copy in range(1, number + 1):
            batches[-1].extend(probe.id if copy == 1 else f"{probe.id}{_COPY}{copy}" for probe in probes)
            filled += size
    return tuple(Batch(tuple(dict.fromkeys(loads)), "pool") for loads in batches if loads)
