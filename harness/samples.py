"""One timed run, as every part of the host passes it on, and the clocks on which devices report it."""

from dataclasses import dataclass
from typing import Literal

from device_agents.messages import Sample

__all__ = ["Clock", "ProbeSample", "Sample"]

Clock = Literal["cpu", "wall", "device"]


@dataclass(frozen=True, slots=True)
class ProbeSample:
    """A sample with its probe and the number of its batch."""

    probe: str
    batch: int
    sample: Sample
