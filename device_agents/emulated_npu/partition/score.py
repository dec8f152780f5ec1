"""The split score: the demand of the nodes since the last split on each core of the current group (S5.4).

The score is an average per core (paragraphs 58 to 64 of the source): compute and routing share are divided by the cores
of the group (73), where cores of another kind count by their speed; the storage utilisation relates to the storage of
all its cores already (76). Dynamic storage is the sum of the nodes' inputs (69), because the output of a node is the
input of the next. The routing share uses the same inputs (73, 78); the absolute score uses the accumulated transfers
(69).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from device_agents.emulated_npu.emulator_errors import InvalidPartition
from device_agents.emulated_npu.partition.groups import CoreGroup
from device_agents.emulated_npu.partition.node_graph import Workload

# Keeps the score of every workload finite.
_LARGEST_FACTOR = 1e100


class Shares(NamedTuple):
    """Compute share, storage utilisation and routing share; 1 means the whole network or the whole storage."""

    compute: float
    storage: float
    routing: float

    def per_core(self, cores: float) -> Shares:
        """Return the averages per core; the utilisation is an average already."""
        return Shares(self.compute / cores, self.storage, self.routing / cores)


@dataclass(frozen=True)
class ShareScore:
    """compute share * k_c + storage utilisation * k_s + routing share * k_r (paragraphs 72 to 81).

    The three weights lie in [0, 1] and are not all 0. `static_factor` (k_static) and `dynamic_factor` (k_dynamic), the
    occupied space divided by the data size, are positive. Raises `InvalidPartition` for other values.
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
                raise InvalidPartition(f"{name} is {factor}", f"it must be above 0 and at most {_LARGEST_FACTOR:g}")

    def shares(self, accumulated: Workload, network: Workload, group: CoreGroup) -> Shares:
        """Return both shares and the utilisation for the whole group; a share of a total of 0 is 0."""
        return Shares(
            accumulated.compute_macs / (network.compute_macs or 1),
            self.occupied_bytes(accumulated) / group.storage_bytes,
            accumulated.dynamic_in_bytes / (network.dynamic_in_bytes or 1),
        )

    def score(self, accumulated: Workload, network: Workload, group: CoreGroup, /) -> float:
        """Return the weighted sum of the averages per core."""
        compute, storage, routing = self.shares(accumulated, network, group).per_core(group.equal_cores)
        return compute * self.compute_weight + storage * self.storage_weight + routing * self.routing_weight

    def occupied_bytes(self, workload: Workload, /) -> float:
        """Return accumulated static * k_static + accumulated dynamic * k_dynamic."""
        return workload.static_bytes * self.static_factor + workload.dynamic_in_bytes * self.dynamic_factor


@dataclass(frozen=True)
class AbsoluteScore:
    """MACs * k_c1 + dynamic * k_dyn + static * k_stat + routing * k_r (paragraphs 68 to 70), average per core.

    The weights lie in [0, 1] and are not all 0; raises `InvalidPartition` for other values.
    """

    compute_weight: float = 1.0
    dynamic_weight: float = 1.0
    static_weight: float = 1.0
    routing_weight: float = 1.0

    def __post_init__(self) -> None:
        _check_weights(vars(self))

    def score(self, accumulated: Workload, _network: Workload, group: CoreGroup, /) -> float:
        """Return the weighted sum per core of the group; the size of the network does not matter."""
        return (
            accumulated.compute_macs * self.compute_weight
            + accumulated.dynamic_in_bytes * self.dynamic_weight
            + accumulated.static_bytes * self.static_weight
            + accumulated.routing_bytes * self.routing_weight
        ) / group.equal_cores

    def occupied_bytes(self, workload: Workload, /) -> float:
        """Return the accumulated static and dynamic storage."""
        return float(workload.stored_bytes)


SplitScore = ShareScore | AbsoluteScore
"""A score that never decreases when nodes are added."""


def _check_weights(coefficients: Mapping[str, float]) -> None:
    weights = {name: value for name, value in coefficients.items() if name.endswith("_weight")}
    for name, weight in weights.items():
        if not 0 <= weight <= 1:
            what = f"the {name.removesuffix('_weight')} weight is {weight}"
            raise InvalidPartition(what, "a weight of the split score lies between 0 and 1")
    if not any(weights.values()):
        what = f"all weights are 0: {', '.join(weights)}"
        why = "every score would be 0 and cause no split"
        raise InvalidPartition(what, why, "give at least one weight a value above 0, at most 1")
