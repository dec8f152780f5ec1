"""What a probe's total latency holds besides its layers: the columns of the overhead regression (S1.4)."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Terms:
    """Amounts that the overhead model multiplies by its coefficients; every probe is one run.

    `input_bytes` and `output_bytes` are those of S1.4. Auxiliary layers and slices are counted apart,
    with the bytes they read and write, so that their own cost leaks neither into a and b nor into a layer;
    `views` are operators of a fixed small cost: a cast of one element, a reshape, a dimension put in.
    """

    input_bytes: int = 0
    output_bytes: int = 0
    auxiliaries: int = 0
    auxiliary_input_bytes: int = 0
    auxiliary_output_bytes: int = 0
    slices: int = 0
    slice_bytes: int = 0
    views: int = 0

    def __add__(self, other: Terms) -> Terms:
        return Terms(*(getattr(self, name) + getattr(other, name) for name in TERM_NAMES))


TERM_NAMES = tuple(field.name for field in fields(Terms))
