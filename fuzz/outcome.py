"""What became of one input."""

from __future__ import annotations

from enum import Enum


class Outcome(Enum):
    """How far an input came; readers without checks of a library of their own have no CHECKED."""

    REFUSED = "refused with the documented error"
    STOPPED = "refused, because reading it reached the limits of the isolated process"
    CHECKED = "valid ONNX, but refused with the documented error"
    ACCEPTED = "read and used"

    @property
    def is_accepted(self) -> bool:
        """Whether the reader returned what it reads."""
        return self is Outcome.ACCEPTED

    @classmethod
    def of(cls, accepted: bool) -> Outcome:
        """Return the outcome of a reader that only accepts or refuses."""
        return cls.ACCEPTED if accepted else cls.REFUSED
