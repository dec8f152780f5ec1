"""The outcome of a profiling request, as plain data that threads, processes and hosts can pass on."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

from harness import errors
from harness.errors import Fault, HarnessError
from harness.fleet.store import DeviceHealth, now
from harness.measure.profiling import ProfileResult
from harness.measure.request import ProfileRequest
from harness.space.space_profile import SpaceProfile


@dataclass(frozen=True)
class Failure:
    """The failure of a request: an error of harness as plain data."""

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
        """Return an error as data, with its traceback as text."""
        name, trace = type(error).__name__, "".join(traceback.format_exception(error))
        words = (error.what, error.why, error.next_step)
        return cls(name, *words, error.fault, error.retry_helps, error.exit_code, trace)

    def error(self) -> HarnessError:
        """Return the error for a caller to raise, with the original traceback as a note."""
        again: HarnessError = getattr(errors, self.kind)(self.what, why=self.why, next_step=self.next_step)
        again.add_note(self.trace)
        return again


@dataclass(frozen=True)
class ProfileOutcome:
    """The outcome of a request: `result` if its campaign is complete, else `failure`.

    `space` holds the rounds if the request was for a space, `watch` the number of the watch campaign if there is one.
    `golden_s` is the latency of the golden probe, None if it was not reached, and `health` the device's health
    afterwards. Times are UTC, ISO 8601.
    """

    request: ProfileRequest
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

    @classmethod
    def failed(cls, request: ProfileRequest, error: HarnessError, started: str = "", attempts: int = 0) -> Self:
        """Return the outcome of a request that ended now with an error."""
        ended = now()
        return cls(request, started or ended, ended, attempts, failure=Failure.of(error))

    @property
    def gives_up_device(self) -> bool:
        """Whether other requests for the device would only take as long again."""
        return self.failure is not None and self.failure.kind == errors.DeviceTooSlow.__name__

    def not_started(self, request: ProfileRequest) -> ProfileOutcome:
        """Return the outcome of a request that was not started because this one gave up the device."""
        what, why = self.failure.what if self.failure else "", "Skipped: an earlier job on this device timed out"
        step = "Find out why with `harness devices check " + request.device + "`"
        return ProfileOutcome.failed(request, errors.DeviceTooSlow(what, why=why, next_step=step))


class Engine(Protocol):
    """Runs requests side by side, never two at a time on the same resource."""

    def run(self, requests: Sequence[ProfileRequest], stop: threading.Event) -> Iterator[ProfileOutcome]:
        """Yield the outcome of each request as it ends; raises EngineError."""
