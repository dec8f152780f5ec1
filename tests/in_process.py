"""A session with a backend in this process: no agent, no worker, no wire.

It has the methods of a session that a campaign uses and returns what the backend measures, so that campaigns of
thousands of nights run with the real planning, journal and statistics. It is not a device: nothing is isolated, leased
or checked, and a backend that crashes ends the program.

::

    session = InProcessSession(create("emulated-npu", {"preset": "edge"}))
    CampaignRun(session, journal, campaign, plan, policy, ignore, threading.Event()).run()
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from device_agents.backends import Backend, HasOracle, Refused, create
from device_agents.fingerprint import hardware
from device_agents.messages import LoadRequest, Revealed, Truth
from harness.device.inventory import Device
from harness.device.replies import Series, Visit, read_truth
from harness.device.session import AgentHello, AgentSession, Purpose, open_session
from harness.device.time_limit import TimeLimit
from harness.errors import BackendError
from harness.text import last_part
from harness.version import VERSION

_SERIES_A_PART = 512
_TOKENS = itertools.count(1)
_SELF_CONTAINED = ("null", "emulated-npu")


@dataclass(eq=False)
class InProcessSession(AgentSession):
    """A session with `backend`, which no other session may use.

    `fingerprint` holds facts reported beside those of the backend; by default those of this machine.
    """

    backend: Backend
    fingerprint: Mapping[str, str] = field(default_factory=hardware)

    def __post_init__(self) -> None:
        facts = {**self.fingerprint, **self.backend.fingerprint()}
        self.hello = AgentHello(VERSION, self.backend.name, facts, self.backend.clock, tuple(self.backend.reveals))
        self.token = next(_TOKENS)
        self.load_reports = {}
        self._cancelled = False

    def greet(self, with_backend: bool = True, purpose: Purpose = "measurement") -> AgentHello:  # noqa: ARG002
        """Return the hello made with the session."""
        return self.hello

    def acquire(self, holder: str | None = None) -> int:  # noqa: ARG002 - an object has no other holder
        """Return a token larger than all before; nothing is locked."""
        self.token = next(_TOKENS)
        return self.token

    def unprepared(self, models: Iterable[bytes]) -> list[bytes]:  # noqa: ARG002
        """Return nothing: probes are compiled as they are loaded."""
        return []

    def limit_time(self, limit: TimeLimit) -> None:
        """Do nothing; a call in this process cannot be given up."""

    def put(self, request: LoadRequest) -> Revealed | None:
        """Load a probe; raises BackendError if the backend refuses it."""
        try:
            return self.backend.load(request)
        except Refused as refused:
            raise BackendError("The backend refused", why=last_part(str(refused))) from refused

    def put_ahead(self, request: LoadRequest) -> bool:  # noqa: ARG002
        """Take no probe ahead: a call has no way to be shortened."""
        return False

    @property
    def sent_ahead(self) -> tuple[str, ...]:
        """Return nothing."""
        return ()

    def oracle(self, probe: str) -> Truth:
        """Return the true latencies of a loaded probe; raises BackendError if the backend has no oracle."""
        if not isinstance(self.backend, HasOracle):
            raise BackendError(f"The backend {self.backend.name!r} has no oracle")
        truth = {"probe": probe, **asdict(self.backend.oracle(probe))}
        return read_truth(json.dumps(truth).encode(), probe, self.backend.name)

    def status(self) -> Mapping[str, Any]:
        """Return a status without holder that is never busy."""
        return {"state": {}, "holder": None, "busy": False}

    def drop(self, probes: Sequence[str]) -> None:
        """Unload probes."""
        for probe in probes:
            self.backend.unload(probe)

    def run(
        self,
        visits: Sequence[Visit],
        silence_s: float = 0.0,  # noqa: ARG002 - a call cannot fall silent
    ) -> Iterator[tuple[tuple[Series, ...], Mapping[str, float]]]:
        """Run visits in order and yield their series in parts, without a device state."""
        self._cancelled = False
        for first in range(0, len(visits), _SERIES_A_PART):
            part = []
            for at, visit in enumerate(visits[first : first + _SERIES_A_PART], first):
                part.append(self._visit(at, visit))
                if self._cancelled:
                    break
            yield tuple(part), {}
            if self._cancelled:
                return

    def _visit(self, at: int, visit: Visit) -> Series:
        for _ in range(visit.warmup):
            self.backend.run(visit.probe)
        return Series(at, visit.probe, tuple(self.backend.run(visit.probe) for _ in range(visit.runs)))

    def cancel(self) -> None:
        """Stop the present run after its current visit."""
        self._cancelled = True

    def close(self) -> None:
        """Do nothing; nothing is open."""


def in_process(device: Device, purpose: Purpose = "measurement") -> AgentSession:
    """Return a session with a new backend of the device; raises BackendError if the backend refuses its options.

    A device of a real runtime gets its agent, because the runtime's threads and settings are those of a whole process.
    """
    if device.backend not in _SELF_CONTAINED:
        return open_session(device, purpose)
    try:
        return InProcessSession(create(device.backend, device.options))
    except Refused as refused:
        raise BackendError(f"{device.name} cannot use its backend", why=last_part(str(refused))) from refused
