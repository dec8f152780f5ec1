"""The host's share of a probe, accurate to a few percent: the part of a watched probe's time outside its layer.

`harness.latency.overhead` has more columns and needs the null probes of a whole campaign. The columns are one run,
input, output, and the bytes that null probes load into the device's own memory. Null probes that slice their input
separate the last column from the input.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from harness.latency.robust import robust_fits
from harness.probe.overhead_terms import OverheadTerms
from harness.probe.probe import Role
from harness.probe.probe_plan import ProbePlan

_RELATIVE_ERROR = 0.02
"""Assumed error of every total, so that none dominates."""
_SLICED = 3
"""Number of watched null probes that slice their input."""


@dataclass(frozen=True)
class HostShare:
    """Seconds of a run, of a byte of input, of a byte of output, and of a byte that a null probe loads."""

    run_s: float
    input_s_per_byte: float = 0.0
    output_s_per_byte: float = 0.0
    loaded_s_per_byte: float = 0.0

    def of(self, terms: OverheadTerms) -> float:
        """Return the host's seconds in a probe."""
        moved_s = self.input_s_per_byte * terms.input_bytes + self.output_s_per_byte * terms.output_bytes
        return self.run_s + moved_s + self.loaded_s_per_byte * terms.loaded_bytes


def is_host_probe(role: Role, terms: OverheadTerms) -> bool:
    """Return whether a probe holds one auxiliary layer and nothing else, except for slices of its input."""
    return role == "calibration" and terms.auxiliaries == 1 and not terms.views + terms.stacks


def fit_host(totals_s: Mapping[str, float], terms: Mapping[str, OverheadTerms]) -> HostShare:
    """Fit the host's share to the totals of host probes; with too few of them the smallest total is that of a run.

    Sliced probes are included if loaded bytes differ from input bytes.
    """
    plain = [probe for probe in totals_s if not terms[probe].slices]
    for used, columns in ((list(totals_s), 4), (plain, 3)):
        design = np.array([(*columns_of(terms[probe]), float(terms[probe].loaded_bytes)) for probe in used])
        design = design.reshape(-1, 4)[:, :columns]
        rank = np.linalg.matrix_rank(design / np.maximum(design.max(axis=0, initial=1.0), 1.0)) if used else 0
        if len(used) > columns and rank == columns:
            total = np.array([totals_s[probe] for probe in used])
            return HostShare(*map(float, robust_fits(design, total[None], 1 / (_RELATIVE_ERROR * total))[0]))
    return HostShare(min(totals_s.values(), default=0.0))


def columns_of(terms: OverheadTerms) -> tuple[float, float, float]:
    """Return a probe's run, input bytes and output bytes."""
    return (1.0, float(terms.input_bytes), float(terms.output_bytes))


def varied_nulls(plan: ProbePlan, largest_bytes: int, fewest: int) -> list[str]:
    """Return host probes of the campaign, spread over sizes up to `largest_bytes` of input; some slice their input.

    If fewer than `fewest` are that small, the next larger ones are included.
    """
    fitted = [probe for probe in plan.probes.values() if is_host_probe(probe.role, probe.terms)]
    fitted.sort(key=lambda one: (one.terms.input_bytes, one.terms.loaded_bytes, one.terms.output_bytes, one.id))
    plain = [one for one in fitted if not one.terms.slices]
    # Without loaded bytes the sliced ones add nothing to the plain ones.
    sliced = [one for one in fitted if one.terms.slices and one.terms.loaded_bytes]
    chosen = []
    for alike, count in ((plain, fewest), (sliced, _SLICED)):
        small = sum(probe.terms.input_bytes <= largest_bytes for probe in alike)
        among = [one.id for one in alike[: max(count, small)]]
        spread = sorted({round(at * (len(among) - 1) / (count - 1)) for at in range(count)})
        chosen += among if len(among) <= count else [among[at] for at in spread]
    return chosen
