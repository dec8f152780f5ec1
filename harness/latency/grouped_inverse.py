"""The inverse of a large normal matrix whose unknowns form small groups, apart from a few that occur everywhere.

Every probe contains the terms of the overhead, and in addition the unknowns of one layer or one chain. Without the
terms, the matrix is made of small blocks. With local unknowns l and common ones c, its inverse is

    [[D⁻¹, 0], [0, 0]] + R S⁻¹ Rᵀ,   R = [[-D⁻¹ B], [1]],   S = C - Bᵀ D⁻¹ B,

where D, B and C are the blocks (l, l), (l, c) and (c, c). No dense matrix of all unknowns is made.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csc_array, csr_array
from scipy.sparse.csgraph import connected_components

from harness.array_types import Floats, Ints, Mask

_COMMON_IN = (256, 128, 64, 32, 16, 8, 4)
"""Unknowns in more equations than this are common; the number is used that takes the fewest operations."""


@dataclass(frozen=True)
class GroupedInverse:
    """The symmetric matrix `local + reach @ common @ reach.T`, of shape (unknowns, unknowns).

    `local` is sparse. `reach` has the shape (unknowns, common unknowns), and `common` that of the common ones twice.
    """

    local: csr_array
    reach: Floats
    common: Floats

    def scaled(self, lengths: Floats, factor: float) -> GroupedInverse:
        """Return the matrix with each row and column divided by its length, times a factor."""
        cells = self.local.tocoo()
        data = cells.data * factor / (lengths[cells.row] * lengths[cells.col])
        local = csr_array((data, (cells.row, cells.col)), shape=cells.shape)
        return GroupedInverse(local, self.reach / lengths[:, None], self.common * factor)

    def between(self, unknowns: Ints) -> Floats:
        """Return the dense part for these unknowns, in their order."""
        reach = self.reach[unknowns]
        dense: Floats = self.local[unknowns][:, unknowns].toarray() + reach @ self.common @ reach.T
        return dense

    def of_sums(self, weights: csr_array) -> Floats:
        """Return the dense matrix `weights @ self @ weights.T`; each row of weights is a sum of unknowns."""
        reach = weights @ self.reach
        dense: Floats = (weights @ self.local @ weights.T).toarray() + reach @ self.common @ reach.T
        return dense

    def of_each(self, weights: csr_array) -> Floats:
        """Return the diagonal of `of_sums`."""
        reach = weights @ self.reach
        local = np.asarray((weights @ self.local).multiply(weights).sum(axis=1)).ravel()
        each: Floats = local + ((reach @ self.common) * reach).sum(axis=1)
        return each


@dataclass(frozen=True)
class _Division:
    """The number of unknowns, the positions of the local ones, their part of the matrix, and the group of each."""

    count: int
    at: Ints
    local: csr_array
    group: Ints

    @classmethod
    def of(cls, normal: csc_array, is_local: Mask) -> _Division:
        at = np.flatnonzero(is_local)
        local = csr_array(normal[at][:, at])
        return cls(normal.shape[0], at, local, connected_components(local, directed=False)[1])

    def operations(self) -> float:
        """About how many multiplications an inverse takes: groups are dense, and so are the common unknowns."""
        groups = np.bincount(self.group, minlength=1).astype(float)
        return float((groups**3).sum() + self.count * (self.count - len(self.at)) ** 2.0)


def inverse(normal: csc_array, equations: Ints) -> GroupedInverse:
    """Return the inverse of a positive definite matrix; `equations` counts those that hold each unknown."""
    # Most numbers make the same unknowns common.
    local = {np.count_nonzero(equations <= most): equations <= most for most in _COMMON_IN}
    division = min((_Division.of(normal, each) for each in local.values()), key=_Division.operations)
    count, at = division.count, division.at
    common = np.setdiff1d(np.arange(count), at)
    block = _inverse_of_groups(division.local, division.group)
    towards = normal[at][:, common].toarray()
    reach = np.zeros((count, len(common)))
    reach[at] = -(block @ towards)
    reach[common, range(len(common))] = 1.0
    rest = normal[common][:, common].toarray() + towards.T @ reach[at]
    cells = block.tocoo()
    whole = csr_array((cells.data, (at[cells.row], at[cells.col])), shape=(count, count))
    return GroupedInverse(whole, reach, np.linalg.inv((rest + rest.T) / 2))


def _inverse_of_groups(matrix: csr_array, group: Ints) -> csr_array:
    """Return the inverse of a matrix without cells between groups; groups of one size are inverted together."""
    size = np.bincount(group)
    order = np.argsort(group, kind="stable")
    first = np.cumsum(size) - size
    within = np.empty(len(group), int)
    within[order] = np.arange(len(group)) - np.repeat(first, size)
    cells = matrix.tocoo()
    of_cell = group[cells.row]
    found = []
    for length in np.unique(size):
        own = np.flatnonzero(size == length)
        rank = np.full(len(size), -1)
        rank[own] = np.arange(len(own))
        held = rank[of_cell] >= 0
        blocks = np.zeros((len(own), length, length))
        blocks[rank[of_cell[held]], within[cells.row[held]], within[cells.col[held]]] = cells.data[held]
        inverted = np.linalg.inv(blocks)
        members = order[first[own][:, None] + np.arange(length)]
        rows = np.broadcast_to(members[:, :, None], inverted.shape)
        columns = np.broadcast_to(members[:, None, :], inverted.shape)
        found.append(((inverted + inverted.transpose(0, 2, 1)).ravel() / 2, rows.ravel(), columns.ravel()))
    data, rows, columns = (np.concatenate(each) for each in zip(*found, strict=True)) if found else (np.zeros(0),) * 3
    return csr_array((data, (rows.astype(int), columns.astype(int))), shape=matrix.shape)
