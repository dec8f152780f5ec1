"""One timed run, as every part of the host passes it on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """One timed run of a probe; `cpu_ns` and `device_ns` are None where the device does not report them.

    `preemptions` counts how often the run was interrupted by other work on the device.
    """

    wall_ns: int
    cpu_ns: int | None
    device_ns: int | None
    preemptions: int
