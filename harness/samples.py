"""One timed run, as every part of the host passes it on."""

from device_agents.messages import Sample

__all__ = ["Sample"]
