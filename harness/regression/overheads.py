"""The host's share of a probe, roughly: a, b and c by three columns, for what is not the layer in a watched probe.

The overhead of `harness.latency.overhead` has more columns and needs the null probes of a whole campaign. Here it only
has to tell a layer from what is beside it, to within some percent: columns for input, output and one run, where the
device's own memory is part of the first two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.latency.nonnegative import robust_fits
from harness.probe.plan import ProbePlan
from harness.probe.probe import Role
from harness.probe.terms import Terms

Array = np.ndarray[Any, np.dtype[np.float64]]

_SIZES = 3
_RELATIVE_ERROR = 0.02
"""Error that every total is believed to have, so that none dominates."""


@dataclass(frozen=True)
class HostShare:
    """Seconds of a run, of a byte of input and of one of output."""

    run_s: float
    input_s_per_byte: float
    output_s_per_byte: float

    def of(self, terms: Terms) -> float:
        """Seconds of the host in a probe."""
        return self.run_s + self.input_s_per_byte * terms.input_bytes + self.output_s_per_byte * terms.output_bytes


def is_plain(role: Role, terms: Terms) -> bool:
    """Whether a probe is a null probe of one auxiliary layer and nothing else."""
    extra = terms.slices + terms.views + terms.stacks
    return role == "calibration" and terms.auxiliaries == 1 and not extra


def fit_host(totals_s: Mapping[str, float], terms: Mapping[str, Terms]) -> HostShare:
    """Fits the totals of plain null probes; where they are too few to tell sizes, the least of them is a run."""
    design = np.array([columns_of(terms[probe]) for probe in totals_s]).reshape(-1, 3)
    total = np.array(list(totals_s.values()))
    if len(total) <= _SIZES or np.linalg.matrix_rank(design / np.maximum(design.max(axis=0), 1.0)) < _SIZES:
        return HostShare(float(total.min()) if len(total) else 0.0, 0.0, 0.0)
    run, read, written = robust_fits(design, total[None], 1 / (_RELATIVE_ERROR * total))[0]
    return HostShare(float(run), float(read), float(written))


def columns_of(terms: Terms) -> tuple[float, float, float]:
    """A probe's run, input and output."""
    return (1.0, float(terms.input_bytes), float(terms.output_bytes))


def varied_nulls(plan: ProbePlan, largest_bytes: int, wanted: int) -> list[str]:
    """Plain null probes of the campaign, small and large inputs and outputs alike, up to `largest_bytes` of input.

    Where these are fewer than wanted, the next larger ones stand in.
    """
    plain = [probe for probe in plan.probes.values() if is_plain(probe.role, probe.terms)]
    plain.sort(key=lambda probe: (probe.terms.input_bytes, probe.terms.output_bytes, probe.id))
    fitting = sum(probe.terms.input_bytes <= largest_bytes for probe in plain)
    chosen = plain[: max(wanted, fitting)]
    return [chosen[at].id for at in _spread_over(len(chosen), wanted)]


def _spread_over(count: int, wanted: int) -> Sequence[int]:
    if count <= wanted:
        return range(count)
    return sorted({round(at * (count - 1) / (wanted - 1)) for at in range(wanted)})
