"""Campaigns of devices with several threads wait while the cores do not share a cache."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from in_process import InProcessSession

from device_agents.backends import create
from device_agents.messages import LoadRequest, Revealed
from harness.errors import BackendError
from harness.measure import core_placement
from harness.measure.device_run import DeviceRun
from harness.measure.journal.journal import Journal
from harness.measure.reference import measure_reference
from harness.probe.probe import barrier_probe
from harness.samples import Sample

NEAR_NS, FAR_NS = 100_000, 250_000


@dataclass
class MovedCores(InProcessSession):
    """A device with this many threads, whose cores are far apart in requests for which `are_far` is true."""

    threads: int = 2
    are_far: Callable[[int], bool] = lambda _: False
    requests: int = 0
    loaded: list[str] = field(default_factory=list)
    refused: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Report wall time and the number of threads."""
        super().__post_init__()
        facts = {**self.hello.fingerprint, "settings": f"threads={self.threads},pool=shared"}
        self.hello = replace(self.hello, fingerprint=facts, clock="wall")

    def put(self, request: LoadRequest) -> Revealed | None:
        """Keep the name of the probe."""
        self.loaded.append(request.probe)
        if request.probe in self.refused:
            raise BackendError("The device refuses the probe")
        return super().put(request)

    def run(self, visits, silence_s=0.0):  # type: ignore[no-untyped-def]  # as in the base class
        """Run visits with the latency of the distance that the cores have during the request."""
        spent_ns = FAR_NS if self.are_far(self.requests) else NEAR_NS
        self.requests += 1
        for series, state in super().run(visits, silence_s):
            own = (replace(one, samples=tuple(Sample(spent_ns) for _ in one.samples)) for one in series)
            yield tuple(own), state


def measured_ns(journal: Path, session: MovedCores) -> list[int]:
    """Measure the reference probe on the device and return its samples in nanoseconds."""
    with Journal(journal) as opened:
        taken = measure_reference(DeviceRun(session, opened, "board"), "golden")
        return [one.wall_ns for one in taken]


def device(**parts: object) -> MovedCores:
    """Return the device with the null backend."""
    return MovedCores(create("null", {}), **parts)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for milliseconds in place of seconds, as often as it takes."""
    monkeypatch.setattr(core_placement, "PAUSE_S", 1e-3)
    monkeypatch.setattr(core_placement, "LEAST_PATIENCE_S", 300.0)


def test_nothing_is_measured_while_cores_are_far(tmp_path: Path) -> None:
    """Cores that move away for a while cost time and change no sample, whether they do so before or in a campaign."""
    journal = tmp_path / "journal.sqlite"
    assert set(measured_ns(journal, device())) == {NEAR_NS}
    assert set(measured_ns(journal, device(are_far=lambda request: request < 9))) == {NEAR_NS}
    assert set(measured_ns(journal, device(are_far=lambda request: 2 <= request < 30))) == {NEAR_NS}


def test_patience_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If cores stay far apart, the campaign ends with what it can measure."""
    monkeypatch.setattr(core_placement, "LEAST_PATIENCE_S", 0.1)
    journal = tmp_path / "journal.sqlite"
    measured_ns(journal, device())
    assert set(measured_ns(journal, device(are_far=lambda _: True))) == {FAR_NS}


def test_a_device_whose_cores_are_always_far_waits_for_nothing(tmp_path: Path) -> None:
    """Without a shorter latency in the journal, that of the device is the one of near cores."""
    near, far = device(), device(are_far=lambda _: True)
    measured_ns(tmp_path / "near.sqlite", near)
    assert set(measured_ns(tmp_path / "far.sqlite", far)) == {FAR_NS}
    assert far.requests == near.requests


@pytest.mark.parametrize("parts", [{"threads": 1}, {"refused": (barrier_probe().id,)}])
def test_other_devices_are_measured_at_once(tmp_path: Path, parts: dict[str, object]) -> None:
    """One thread waits for no other, and a device that refuses the barrier probe is measured as it is."""
    journal = tmp_path / "journal.sqlite"
    measured_ns(journal, device())
    session = device(are_far=lambda _: True, **parts)
    assert set(measured_ns(journal, session)) == {FAR_NS}
    assert (barrier_probe().id in session.loaded) == ("refused" in parts)
