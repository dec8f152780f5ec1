"""The host's share of a probe, roughly, for what is not the layer in a watched probe.

The overhead of `harness.latency.overhead` has more columns and needs the null probes of a whole campaign. Here it only
has to tell a layer from what is beside it, to within some percent: columns for one run, input and output, and for what
null probes load into the device's own memory. Null probes that slice their input tell the last from the input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.latency.dense_fits import robust_fits
from harness.probe.overhead_terms import OverheadTerms
from harness.probe.probe import Role
from harness.probe.probe_plan import ProbePlan

Array = np.ndarray[Any, np.dtype[np.float64]]

_RELATIVE_ERROR = 0.02
"""Error that every total is believed to have, so that none dominates."""
_SLICED = 3
"""Null probes that slice their input, of those that are watched."""


@dataclass(frozen=True)
class HostShare:
    """Seconds of a run, of a byte of input, of one of output, and of one that a null probe loads."""

    run_s: float
    input_s_per_byte: float = 0.0
    output_s_per_byte: float = 0.0
    loaded_s_per_byte: float = 0.0

    def of(self, terms: OverheadTerms) -> float:
        """Seconds of the host in a probe."""
        moved_s = self.input_s_per_byte * terms.input_bytes + self.output_s_per_byte * terms.output_bytes
        return self.run_s + moved_s + self.loaded_s_per_byte * terms.loaded_bytes


def tells_host(role: Role, terms: OverheadTerms) -> bool:
    """Whether a probe is a null probe of one auxiliary layer and nothing else, but that its input may be sliced."""
    return role == "calibration" and terms.auxiliaries == 1 and not terms.views + terms.stacks


def fit_host(totals_s: Mapping[str, float], terms: Mapping[str, OverheadTerms]) -> HostShare:
    """Fits the totals of null probes that tell the host; where they are too few for sizes, the least of them is a run.

    Sliced ones count where they tell what is loaded from what is input.
    """
    plain = [probe for probe in totals_s if not terms[probe].slices]
    for used, columns in ((list(totals_s), 4), (plain, 3)):
        design = np.array([(*columns_of(terms[probe]), float(terms[probe].loaded_bytes)) for probe in used])
        design = design.reshape(-1, 4)[:, :columns]
        told = np.linalg.matrix_rank(design / np.maximum(design.max(axis=0, initial=1.0), 1.0)) if used else 0
        if len(used) > columns and told == columns:
            total = np.array([totals_s[probe] for probe in used])
            return HostShare(*map(float, robust_fits(design, total[None], 1 / (_RELATIVE_ERROR * total))[0]))
    return HostShare(min(totals_s.values(), default=0.0))


def columns_of(terms: OverheadTerms) -> tuple[float, float, float]:
    """A probe's run, input and output."""
    return (1.0, float(terms.input_bytes), float(terms.output_bytes))


def varied_nulls(plan: ProbePlan, largest_bytes: int, wanted: int) -> list[str]:
    """Null probes of the campaign that tell the host, of small and large sizes alike, up to `largest_bytes` of input.

    Where these are fewer than wanted, the next larger ones stand in. Some slice their input.
    """
    telling = [probe for probe in plan.probes.values() if tells_host(probe.role, probe.terms)]
    telling.sort(key=lambda one: (one.terms.input_bytes, one.terms.loaded_bytes, one.terms.output_bytes, one.id))
    chosen = []
    for is_sliced, count in ((False, wanted), (True, _SLICED)):
        alike = [one for one in telling if bool(one.terms.slices) == is_sliced]
        if is_sliced:  # where nothing is loaded they tell nothing that others do not
            alike = [one for one in alike if one.terms.loaded_bytes]
        fitting = sum(probe.terms.input_bytes <= largest_bytes for probe in alike)
        among = alike[: max(count, fitting)]
        chosen += [among[at].id for at in _spread_over(len(among), count)]
    return chosen


def _spread_over(count: int, wanted: int) -> Sequence[int]:
    if count <= wanted:
        return range(count)
    return sorted({round(at * (count - 1) / (wanted - 1)) for at in range(wanted)})
