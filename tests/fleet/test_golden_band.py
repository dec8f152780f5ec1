"""The band of the golden probe while few sessions have determined it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from in_process import InProcessSession

from device_agents.backends import Sample
from device_agents.backends.null import NullBackend
from harness.errors import DeviceQuarantined
from harness.fleet import health
from harness.fleet.health import SESSIONS_TO_LEARN, check_golden, check_golden_again
from harness.fleet.store import FleetStore
from harness.measure.device_run import DeviceRun
from harness.measure.journal.journal import Journal


class _OnProcessor(NullBackend):
    """The same device with a processor's clock."""

    clock = "cpu"

    def run(self, probe: str) -> Sample:
        """Return the latency as processor time."""
        found = super().run(probe)
        return Sample(wall_ns=found.wall_ns, cpu_ns=found.device_ns)


class _DisturbedAtFirst(_OnProcessor):
    """Takes 3.5 times as long in its first 80 runs, which are more than one golden probe makes."""

    def run(self, probe: str) -> Sample:
        """Return the latency as processor time."""
        self.taken = getattr(self, "taken", 0) + 1
        found = super().run(probe)
        return found if self.taken > 80 else Sample(wall_ns=found.wall_ns, cpu_ns=7 * (found.cpu_ns or 0) // 2)


Session = Callable[[type[NullBackend], float], DeviceRun]


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """Yield a function that returns a session with a device that takes so many times as long as usual."""
    monkeypatch.setattr(health, "PAUSE_S", 0.001)
    with Journal(tmp_path / "journal.sqlite") as journal:

        def at(kind: type[NullBackend], slowdown: float) -> DeviceRun:
            backend = kind({"noise": 0.0, "slower_after": 0, "slowdown": slowdown})
            return DeviceRun(InProcessSession(backend), journal, "bench")

        yield at


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FleetStore]:
    """Yield the store of a workspace without devices so far."""
    with FleetStore(tmp_path / "fleet.sqlite") as store:
        yield store


def test_a_first_session_beside_other_programs_does_not_determine_the_band(session: Session, store: FleetStore) -> None:
    """A processor that is faster after its first campaign, or in the next session, starts the band anew."""
    before = check_golden(session(_OnProcessor, 2.0), store)
    check_golden_again(session(_OnProcessor, 1.0), store, before)
    band = store.band("bench")
    assert band is not None and len(band.latencies_s) == 1
    check_golden(session(_OnProcessor, 0.4), store)
    for _ in range(SESSIONS_TO_LEARN - 1):
        check_golden(session(_OnProcessor, 0.4), store)
    assert store.health("bench").health == "good"
    with pytest.raises(DeviceQuarantined, match="latency of bench has changed"):
        check_golden(session(_OnProcessor, 1.0), store)


def test_a_disturbance_of_a_moment_is_no_change_of_a_processor(session: Session, store: FleetStore) -> None:
    """A processor that is slower than its band is measured again; the attempt that nothing disturbs counts."""
    for _ in range(SESSIONS_TO_LEARN):
        check_golden(session(_OnProcessor, 1.0), store)
    found = check_golden(session(_DisturbedAtFirst, 1.0), store)
    assert store.health("bench").health == "good"
    assert found.latency_s == check_golden(session(_OnProcessor, 1.0), store).latency_s


def test_a_disturbed_session_after_another_one_starts_the_band_with_its_last_attempt(
    session: Session, store: FleetStore
) -> None:
    """If the least latency of several attempts is below a band of a disturbed session, the band starts with it."""
    check_golden(session(_OnProcessor, 2.0), store)
    found = check_golden(session(_DisturbedAtFirst, 1.0), store)
    band = store.band("bench")
    assert band is not None
    assert band.latencies_s == (found.latency_s,)
    assert band == found.band


@pytest.mark.parametrize(
    ("kind", "slowdown", "sessions"),
    [(NullBackend, 0.5, 1), (_OnProcessor, 2.5, 1), (_OnProcessor, 0.5, SESSIONS_TO_LEARN)],
)
def test_a_device_that_left_its_band_is_in_quarantine(
    session: Session, store: FleetStore, kind: type[NullBackend], slowdown: float, sessions: int
) -> None:
    """A hardware clock that is faster, a processor that is slower, and one that leaves an established band are bad."""
    for _ in range(sessions):
        before = check_golden(session(kind, 1.0), store)
    with pytest.raises(DeviceQuarantined):
        check_golden_again(session(kind, slowdown), store, before)
    with pytest.raises(DeviceQuarantined):
        check_golden(session(kind, slowdown), store)
