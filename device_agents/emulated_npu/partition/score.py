"""The split score: how much the nodes since the last split ask of each core of the current group (S5.4).

Average per core. Paragraphs 58 to 64 of the source hold the average workload of the cores of the current group
against the threshold, paragraph 73 converts what has been accumulated into shares and utilisation of each core by
the number of cores in its group. All accumulated workload is thus divided by that number: compute and routing share
become a core's part of the whole network (accumulated / all / cores). The storage utilisation needs no division:
paragraph 76 refers it to the storage of all cores of the group, so it is what one core sees on average already.

Dynamic storage is the sum of the nodes' inputs (69): the output of a node is the next one's input. The
routing share is estimated from the same inputs (73, 78); the absolute score takes the accumulated transfers (69).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from device_agents.emulated_npu.emulator_errors import InvalidPartition
from device_agents.emulated_npu.partition.groups import CoreGroup
from device_agents.emulated_npu.partition.node_graph import Workload

# Keeps the score of any workload a finite number.
_LARGEST_FACTOR = 1e100


class SplitScore(Protocol):
    """A score that never falls when nodes are added, and the storage that a workload occupies."""

    def score(self, accumulated: Workload, network: Workload, group: CoreGroup, /) -> float:
        """The score of `accumulated` as an average per core of `group`; `network` is the sum over all nodes."""

    def occupied_bytes(self, workload: Workload, /) -> float:
        """The bytes of storage that a workload takes up in its group."""


class Shares(NamedTuple):
    """Compute share, storage utilisation and routing share; 1 is the whole network or the whole storage."""

    compute: float
    storage: float
    routing: float

    def per_core(self, cores: int) -> Shares:
        """The average that one of `cores` cores sees; utilisation is one already."""
        return Shares(self.compute / cores, self.storage, self.routing / cores)


@dataclass(frozen=True)
class ShareScore:
    """compute share * k_c + storage utilisation * k_s + routing share * k_r (paragraphs 72 to 81).

    The three weights lie in [0, 1], any but not all of them 0. `static_factor` (k_static) and `dynamic_factor`
    (k_dynamic) are occupied space / size of the data, any positive number. Raises `InvalidPartition` for others.
    """

    compute_weight: float = 1.0
    storage_weight: float = 1.0
    routing_weight: float = 1.0
    static_factor: float = 1.0
    dynamic_factor: float = 1.0

    def __post_init__(self) -> None:
        _check_weights(vars(self))
        for name, factor in (("static_factor", self.static_factor), ("dynamic_factor", self.dynamic_factor)):
            if not 0 < factor <= _LARGEST_FACTOR:
                raise InvalidPartition(f"{name} is {factor}", f"above 0 and at most {_LARGEST_FACTOR:g}")

    def shares(self, accumulated: Workload, network: Workload, group: CoreGroup) -> Shares:
        """Both shares and the utilisation for the whole group; a share of nothing is 0."""
        return Shares(
            accumulated.compute_macs / (network.compute_macs or 1),
            self.occupied_bytes(accumulated) / group.storage_bytes,
            accumulated.dynamic_in_bytes / (network.dynamic_in_bytes or 1),
        )

    def score(self, accumulated: Workload, network: Workload, group: CoreGroup, /) -> float:
        """The weighted sum of the averages per core."""
        compute, storage, routing = self.shares(accumulated, network, group).per_core(len(group.cores))
        return compute * self.compute_weight + storage * self.storage_weight + routing * self.routing_weight

    def occupied_bytes(self, workload: Workload, /) -> float:
        """Accumulated static * k_static + accumulated dynamic * k_dynamic."""
        return workload.static_bytes * self.static_factor + workload.dynamic_in_bytes * self.dynamic_factor


@dataclass(frozen=True)
class AbsoluteScore:
    """MACs * k_c1 + dynamic * k_dyn + static * k_stat + routing * k_r (paragraphs 68 to 70), average per core.

    The weights lie in [0, 1], any but not all of them 0; raises `InvalidPartition` for others.
    """

    compute_weight: float = 1.0
    dynamic_weight: float = 1.0
    static_weight: float = 1.0
    routing_weight: float = 1.0

    def __post_init__(self) -> None:
        _check_weights(vars(self))

    def score(self, accumulated: Workload, _network: Workload, group: CoreGroup, /) -> float:
        """The weighted sum over the cores of the group; how large the network is does not matter."""
        return (
            accumulated.compute_macs * self.compute_weight
            + accumulated.dynamic_in_bytes * self.dynamic_weight
            + accumulated.static_bytes * self.static_weight
            + accumulated.routing_bytes * self.routing_weight
        ) / len(group.cores)

    def occupied_bytes(self, workload: Workload, /) -> float:
        """Accumulated static and dynamic storage as it is."""
        return float(workload.stored_bytes)


def _check_weights(coefficients: Mapping[str, float]) -> None:
    weights = {name: value for name, value in coefficients.items() if name.endswith("_weight")}
    for name, weight in weights.items():
        if not 0 <= weight <= 1:
            raise InvalidPartition(f"{name} is {weight}", "a weight of the split score lies between 0 and 1")
    if not any(weights.values()):
        raise InvalidPartition(
            f"all weights are 0: {', '.join(weights)}",
            "every score would be 0 and nothing be split by it",
            "give at least one weight a value above 0, at most 1",
        )
