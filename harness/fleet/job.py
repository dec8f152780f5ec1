"""A job, and what became of it: plain data that threads, processes and hosts can hand to each other."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from harness import errors
from harness.errors import Fault, HarnessError
from harness.fleet.store import DeviceHealth
from harness.measure.policy import RepeatPolicy
from harness.measure.profiling import ProfileResult
from harness.probe.auxiliary import AuxiliaryKind
from harness.space.planner import DEFAULT_COUNT, DEFAULT_TARGET
from harness.space.profiling import SpaceProfile


@dataclass(frozen=True)
class Job:
    """One campaign wanted on one device.

    Jobs of the same `name` are one: whoever runs it a second time goes on where the first stopped. Without a name it is
    what `harness profile` does. `models` are paths or `builtin:NAME`, none for the reference networks; with `space` the
    layers of that space are measured in their place, at most `count` of them until they are predicted within `target`.
    Where `watch_level` is given, what regressions are told from is measured, too, for comparisons with that probability
    of a false alarm.
    """

    device: str
    models: tuple[str, ...] = ()
    space: str | None = None
    count: int = DEFAULT_COUNT
    target: float = DEFAULT_TARGET
    name: str = ""
    policy: RepeatPolicy = field(default_factory=RepeatPolicy)
    auxiliary: AuxiliaryKind | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    fresh: bool = False
    watch_level: float | None = None


@dataclass(frozen=True)
class Failure:
    """Why a job ended without its campaign: an error of harness as plain data."""

    kind: str
    what: str
    why: str
    next_step: str
    fault: Fault
    retry_helps: bool
    exit_code: int
    trace: str = ""

    @classmethod
    def of(cls, error: HarnessError) -> Failure:
        """An error as data, with where it came from."""
        name, trace = type(error).__name__, "".join(traceback.format_exception(error))
        words = (error.what, error.why, error.next_step)
        return cls(name, *words, error.fault, error.retry_helps, error.exit_code, trace)

    def error(self) -> HarnessError:
        """The error again, for a caller to raise; where it came from is a note of it."""
        again: HarnessError = getattr(errors, self.kind)(self.what, why=self.why, next_step=self.next_step)
        again.add_note(self.trace)
        return again


@dataclass(frozen=True)
class JobOutcome:
    """What became of a job.

    `result` is there where its campaign is complete, `failure` where not; `space` tells more where it was a space.
    `watch` is the campaign of the watch, where one was wanted. `golden_s` is what the golden probe took, None where it
    was not reached, and `health` what is thought of the device since. Times are UTC, ISO 8601.
    """

    job: Job
    started: str
    ended: str
    attempts: int
    result: ProfileResult | None = None
    space: SpaceProfile | None = None
    failure: Failure | None = None
    watch: int | None = None
    golden_s: float | None = None
    health: DeviceHealth | None = None
    fingerprint: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Engine(Protocol):
    """Runs jobs side by side, never two at once that occupy the same resource."""

    def run(self, jobs: Sequence[Job], stop: threading.Event) -> Iterator[JobOutcome]:
        """Outcomes in the order in which jobs end; each job has exactly one. Raises EngineError."""
