"""One timed run, as every part of the host passes it on."""

from device_agents.values import Sample

__all__ = ["Sample"]
