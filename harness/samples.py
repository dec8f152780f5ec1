"""One timed run, as every part of the host passes it on, and the clocks on which devices report it."""

from typing import Literal

from device_agents.messages import Sample

__all__ = ["Clock", "Sample"]

Clock = Literal["cpu", "wall", "device"]
