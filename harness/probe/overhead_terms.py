"""What a probe's total latency holds besides its layers: the columns of the overhead regression (S1.4)."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class OverheadTerms:
    """Amounts that the overhead model multiplies by its coefficients; every probe is one run.

    `input_bytes` and `output_bytes` are those of S1.4. Auxiliary layers and slices are counted apart,
    with the bytes they read and write, so that their own cost leaks neither into a and b nor into a layer;
    `views` are operators of a fixed small cost: a cast of one element, a reshape, a dimension put in.

    A device with a memory of its own moves data between that memory and its core, too, which is neither a nor b.
    `loaded_bytes` are what a null probe makes it load, `stored_bytes` what a probe makes it store, where no
    computing hides that; `accesses` are the single loads and stores among them, each of which waits for that memory.
    `stacks` are the stacks of calibration that do hide it, with `stacked_rows` in all; the last they store, after all
    computing, is in proportion to `last_bytes`, what they store of one row.
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

    @property
    def identity(self) -> str:
        """The text that probe ids are hashed from; journals hold these ids, so it never changes."""
        return f"Terms({', '.join(f'{name}={getattr(self, name)}' for name in TERM_NAMES)})"

    def __add__(self, other: OverheadTerms) -> OverheadTerms:
        return OverheadTerms(*(getattr(self, name) + getattr(other, name) for name in TERM_NAMES))


TERM_NAMES = tuple(field.name for field in fields(OverheadTerms))
