"""The weights of candidates, and the share of them that is not in the caches when a candidate runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.architecture_search.block_codes import Choices
from harness.architecture_search.search_space import SearchSpace
from harness.array_types import Floats
from harness.errors import UnsupportedNetwork
from harness.lut.table import Lut
from harness.measure.core_caches import HELD_CACHES, cold_shares

_CHECKS = 16


@dataclass(frozen=True)
class WeightTables:
    """Bytes of the weights that all candidates have, of those of each choice, and of the cache of a core.

    With `in_part`, a candidate may find a part of its weights in the caches; without, all or none. Workers of a cluster
    receive this object, so it holds no table.
    """

    common_bytes: int
    choices_bytes: tuple[NDArray[np.int64], ...]
    cache_bytes: int
    in_part: bool

    @classmethod
    def of(cls, space: SearchSpace, table: Lut) -> WeightTables | None:
        """Return the tables; None where nothing is predicted, or latencies do not depend on caches.

        Raises UnsupportedNetwork if positions share weights that may not fit, so that their sizes do not add up.
        """
        if table.loaded_predictor is None or table.cache_bytes is None:
            return None
        base = [0] * len(space.sizes)
        common = _bytes(space, base)
        choices = tuple(
            np.array([_bytes(space, [*base[:at], one, *base[at + 1 :]]) - common for one in range(size)], np.int64)
            for at, size in enumerate(space.sizes)
        )
        found = cls(common, choices, table.cache_bytes, table.has_warm_layers)
        if common + sum(int(np.max(one)) for one in choices) > HELD_CACHES * table.cache_bytes:
            found._check(space)
        return found

    def cold_shares(self, choices: Choices, warm_s: Floats) -> Floats:
        """Return the share of its weights that each candidate does not find in the caches."""
        return cold_shares(self._total(choices), warm_s, self.cache_bytes, in_part=self.in_part)

    def _total(self, choices: Choices) -> NDArray[np.int64]:
        total = np.full(choices.shape[1], self.common_bytes, np.int64)
        for held, row in zip(self.choices_bytes, choices, strict=True):
            total += held[row]
        return total

    def _check(self, space: SearchSpace) -> None:
        random = np.random.default_rng(0)
        drawn = random.integers(0, space.sizes, (_CHECKS, len(space.sizes)))
        totals = self._total(np.asarray(drawn.T, np.uint8)).tolist()
        if totals != [_bytes(space, row) for row in drawn.tolist()]:
            step = "Give each position separate weights"
            raise UnsupportedNetwork(f"Positions of {space.name} share weights", next_step=step)


def _bytes(space: SearchSpace, candidate: Sequence[int]) -> int:
    network = space.network_of(candidate)
    return network.constant_bytes(network.nodes)
