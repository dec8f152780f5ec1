"""What a build could keep from the one before a network was added: a part of docs/performance.md.

The predictor learns without a network and with it, and the fits are counted whose data did not change.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from unittest import mock

import numpy as np

from benchmarks.generated_page import Section, table
from benchmarks.parts import cpu_s
from benchmarks.performance.measuring import Run
from benchmarks.performance.page import reached
from harness.lut.learning import learn_predictor
from harness.lut.table import Entry
from harness.lut.table_choice import PUBLISHED
from harness.lut.table_files import read_lut
from harness.predictor import training_data
from harness.predictor.features.layer_arrays import LayerArrays
from harness.predictor.roofline import tiling_search
from harness.predictor.roofline.roofline_fit import fit_roofline

NETWORKS, QUICK_NETWORKS = 3, 1
ENTRIES, QUICK_ENTRIES = 480, 60
"""Fewer than those whose predictor learns in several processes, where fits cannot be counted."""
Result = TypeVar("Result")


def unchanged_section(run: Run) -> Section:
    """Add some networks of the published table, one at a time."""
    (known,) = map(read_lut, (PUBLISHED / "npu01").glob("*-*"))
    of_networks = [entry for entry in known.entries if entry.networks]
    entries = of_networks[: QUICK_ENTRIES if run.quick else ENTRIES]
    fits, fits_s = fits_of(entries)
    rows: list[tuple[object, ...]] = []
    kept_of_all, count = 0, 0
    alone = Counter(entry.networks for entry in entries if len(entry.networks.split()) == 1)
    for name, added in alone.most_common(QUICK_NETWORKS if run.quick else NETWORKS):
        before, _ = fits_of([entry for entry in entries if entry.networks != name])
        kept = {kind: sum(fit in before[kind] for fit in fits[kind]) for kind in fits}
        rows.append((f"{added}", *(f"{kept[kind]} of {len(fits[kind])}" for kind in fits)))
        kept_of_all, count = kept_of_all + sum(kept.values()), count + sum(map(len, fits.values()))
    rows.append(("CPU s of these fits", *(f"{fits_s[kind]:.2f}" for kind in fits)))
    text = (
        f"Fits with the data of one of before, of {len(entries)} entries of `npu01`:\n\n"
        f"{table(('layers of the added network alone', *fits), rows)}"
    )
    return Section(text, (reached("fits that an added network leaves unchanged", f"{kept_of_all} of {count}", None),))


def fits_of(entries: Sequence[Entry]) -> tuple[dict[str, list[bytes]], dict[str, float]]:
    """Return the hash of what each fit of a predictor gets, by kind of fit, and the CPU time of each kind."""
    found: dict[str, list[bytes]] = {}
    times_s: dict[str, float] = {}

    def counted(kind: str, fit: Callable[..., Result]) -> Callable[..., Result]:
        found[kind], times_s[kind] = [], 0.0

        def run(*given: Any, **named: Any) -> Result:
            found[kind].append(hashlib.sha256(b"".join(map(_bytes_of, (*given, *named.values())))).digest())
            before_s = cpu_s()
            result = fit(*given, **named)
            times_s[kind] += cpu_s() - before_s
            return result

        return run

    trees = {name: counted(f"{name} trees", grow) for name, grow in training_data.WAYS.items() if name != "none"}
    with (
        mock.patch.dict(training_data.WAYS, trees),
        mock.patch.object(training_data, "fit_roofline", counted("rooflines", fit_roofline)),
        mock.patch.object(tiling_search, "fit_roofline", counted("rooflines of tilings", fit_roofline)),
    ):
        learn_predictor(entries)
    return found, times_s


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, LayerArrays):
        return b"".join(column.tobytes() for column in value.sizes.values())
    return bytes(value.tobytes()) if isinstance(value, np.ndarray) else repr(value).encode()
