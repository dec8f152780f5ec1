"""The golden probe: how often it quarantines a sound device, and how much slower a device must be to be quarantined.

Sessions run in this process on the real backends, with the real campaigns, journal, store and check. The figures of the
fleet cover sessions with agents.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from in_process import InProcessSession

from device_agents.backends.emulated_npu import EmulatedNpuBackend
from device_agents.backends.null import NullBackend
from harness.errors import DeviceQuarantined
from harness.fleet.health import SESSIONS_TO_LEARN, check_golden
from harness.fleet.store import FleetStore
from harness.measure.device_run import DeviceRun
from harness.measure.journal.journal import Journal

SLOWDOWNS = (1.0, 1.02, 1.05, 1.1, 1.2)
NOISE = 0.01
_SESSIONS_A_DEVICE = 10
_FINGERPRINT = {"machine": "emulated"}


@dataclass(frozen=True)
class Golden:
    """Sessions after the golden band is known, and how many of them put the device into quarantine."""

    device: str
    slower: float
    sessions: int
    quarantined: int


def measure_golden_checks(folder: Path, sessions: int, seed: int) -> list[Golden]:
    """Check `sessions` of an unchanged emulated NPU, and as many of a null device at each slowdown."""
    folder.mkdir(parents=True, exist_ok=True)
    npu = EmulatedNpuBackend({"preset": "edge", "seed": seed})
    found = [_checked(folder, "emulated NPU, its default noise", 1.0, _npu(npu, sessions, seed))]
    for slower in SLOWDOWNS:
        name = f"device with {NOISE:.0%} noise"
        found.append(_checked(folder, name, slower, _null(sessions, slower, seed)))
    return found


_Devices = Iterator[Iterator[InProcessSession]]
"""The sessions of each device; the first SESSIONS_TO_LEARN set its band."""


def _npu(npu: EmulatedNpuBackend, sessions: int, seed: int) -> _Devices:
    for first in range(0, sessions, _SESSIONS_A_DEVICE):
        count = SESSIONS_TO_LEARN + min(_SESSIONS_A_DEVICE, sessions - first)
        yield (
            InProcessSession(npu.restarted(seed * 1_000_003 + first * 1_009 + number), _FINGERPRINT)
            for number in range(count)
        )


def _null(sessions: int, slower: float, seed: int) -> _Devices:
    def session(device_seed: int, number: int) -> InProcessSession:
        slowdown = slower if number >= SESSIONS_TO_LEARN else 1.0
        options = {"noise": NOISE, "seed": device_seed + number, "slower_after": 0, "slowdown": slowdown}
        return InProcessSession(NullBackend(options), _FINGERPRINT)

    for first in range(0, sessions, _SESSIONS_A_DEVICE):
        count = SESSIONS_TO_LEARN + min(_SESSIONS_A_DEVICE, sessions - first)
        device_seed = seed * 1_000_003 + first * 1_009
        yield (session(device_seed, number) for number in range(count))


def _checked(folder: Path, name: str, slower: float, devices: _Devices) -> Golden:
    sessions = quarantined = 0
    for number, device_sessions in enumerate(devices):
        workspace = folder / f"{len(list(folder.iterdir()))}"
        with Journal(workspace / "journal.sqlite") as journal, FleetStore(workspace / "fleet.sqlite") as store:
            for at_session, session in enumerate(device_sessions):
                run = DeviceRun(session, journal, f"golden{number:04}")
                counted = at_session >= SESSIONS_TO_LEARN
                sessions += counted
                try:
                    check_golden(run, store)
                except DeviceQuarantined:
                    quarantined += counted
                    assert counted or slower == 1.0
    return Golden(name, slower, sessions, quarantined)
