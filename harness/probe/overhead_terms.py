"""Amounts that a probe's total latency depends on besides its layers: the columns of the overhead regression."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class OverheadTerms:
    """Amounts that the overhead model multiplies by its coefficients; every probe is one run.

    `input_bytes` and `output_bytes` are those of S1.4. Auxiliary layers and slices are counted apart with the bytes
    that they read and write, so that their cost is added neither to a and b nor to a layer. `views` counts operators
    of a fixed small cost: a cast of one element, a reshape, an inserted dimension. `further_inputs` and
    `further_outputs` count the tensors that a run takes and returns beyond one of each, which c contains.
    `input_pairs` counts the pairs of inputs: a runtime may search for the name of each among all that it is given.
    `byte_reads` and `half_reads` count the auxiliary layers of quantised pictures and of half-precision tensors, which
    take several operators.

    A device with its own memory also moves data between that memory and its core, which belongs neither to a nor
    to b. `loaded_bytes` and `stored_bytes` are what a probe loads and stores while no computation hides it. `accesses`
    counts the loads and stores among them, each of which waits for the memory. `stacks` counts the calibration stacks
    that hide it, `stacked_rows` their rows. `last_bytes` is what they store of one row; the store after the last
    computation is proportional to it.
    """

    input_bytes: int = 0
    output_bytes: int = 0
    auxiliaries: int = 0
    auxiliary_input_bytes: int = 0
    auxiliary_output_bytes: int = 0
    slices: int = 0
    slice_bytes: int = 0
    views: int = 0
    loaded_bytes: int = 0
    stored_bytes: int = 0
    accesses: int = 0
    stacks: int = 0
    stacked_rows: int = 0
    last_bytes: int = 0
    further_inputs: int = 0
    further_outputs: int = 0
    input_pairs: int = 0
    byte_reads: int = 0
    half_reads: int = 0

    @property
    def identity(self) -> str:
        """The text that probe ids are hashed from; journals hold these ids, so it never gets further terms."""
        return f"Terms({', '.join(f'{name}={getattr(self, name)}' for name in TERM_NAMES if name not in LATER_TERMS)})"

    def __add__(self, other: OverheadTerms) -> OverheadTerms:
        return OverheadTerms(*(getattr(self, name) + getattr(other, name) for name in TERM_NAMES))


NO_TERMS = OverheadTerms()
TERM_NAMES = tuple(field.name for field in fields(OverheadTerms))
ADDED_TERMS = ("byte_reads", "half_reads")
"""The last terms, which tables of earlier versions lack."""
LATER_TERMS = ("further_inputs", "further_outputs", "input_pairs", *ADDED_TERMS)
"""Terms that probe ids do not depend on."""


def transfers(input_sizes: Sequence[int], output_sizes: Sequence[int]) -> OverheadTerms:
    """Return the terms of a run that takes and returns tensors of these sizes in bytes, without its operators."""
    return OverheadTerms(
        input_bytes=sum(input_sizes),
        output_bytes=sum(output_sizes),
        further_inputs=max(0, len(input_sizes) - 1),
        further_outputs=max(0, len(output_sizes) - 1),
        input_pairs=math.comb(len(input_sizes), 2),
    )
