"""Whether a device is as it was: the golden probe against its band, and what that makes of the device's health."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from harness.device.inventory import Device
from harness.errors import (
    AuthenticationError,
    DeviceBusy,
    DeviceError,
    DeviceQuarantined,
    HostKeyError,
    OutOfService,
)
from harness.fleet.job import JobOutcome
from harness.fleet.store import OUT_OF_SERVICE, Band, FleetStore, now
from harness.measure.golden import measure_golden
from harness.measure.profiling import Sitting

TOLERANCE: Mapping[str, float] = {"device": 0.05, "cpu": 0.25, "wall": 0.5}
"""How far the golden probe may be from the median of its first sessions, by clock: what a sound device shows.

A virtual or hardware clock repeats within a percent; processors change their clock and share their caches.
"""
SESSIONS_TO_LEARN = 3
CONFIGURED = "configured"
_SPREADS = 3.0
_PROVISIONAL = 2.0
"""While the band is being learnt it is as much wider."""


@dataclass(frozen=True)
class GoldenCheck:
    """What the golden probe took, and the band it is in; both None where the device refuses the probe."""

    latency_s: float | None
    band: Band | None


def check_in_service(store: FleetStore, device: str) -> None:
    """Raises OutOfService for a device that somebody took out of service."""
    known = store.health(device)
    if known.health in OUT_OF_SERVICE:
        step = f"Put it back by `harness devices mark {device} unknown` when it is fit again"
        what = f"{device} is out of service: {known.health}"
        raise OutOfService(what, why=f"{known.reason}, since {known.since}", next_step=step)


def check_golden(sitting: Sitting, store: FleetStore) -> GoldenCheck:
    """Measures the golden probe before anything else; the device is good then, or unknown while its band is learnt.

    Raises DeviceQuarantined where it is outside; the health is left for whoever keeps the samples out to change.
    """
    device, clock = sitting.device, sitting.session.hello.clock
    measured = measure_golden(sitting)
    if measured is None:
        store.measured(device.name, "unknown", "it refuses the golden probe, so nothing tells whether it is as it was")
        return GoldenCheck(None, None)
    band = _band_of(device, store, clock, measured.latency_s)
    if not band.holds(measured.latency_s):
        raise _quarantined(device.name, measured.latency_s, band)
    learning = band.learnt != CONFIGURED and len(band.latencies_s) < SESSIONS_TO_LEARN
    if learning:
        reason = f"the golden band is being learnt, {len(band.latencies_s)} of {SESSIONS_TO_LEARN} sessions"
        store.measured(device.name, "unknown", reason)
    else:
        store.measured(device.name, "good", "the golden probe is in its band")
    return GoldenCheck(measured.latency_s, band)


def check_golden_again(sitting: Sitting, before: GoldenCheck) -> None:
    """Measures the golden probe after a campaign: the device must still be in the band it was in before.

    Raises DeviceQuarantined.
    """
    if before.band is None:
        return
    measured = measure_golden(sitting)
    if measured is not None and not before.band.holds(measured.latency_s):
        raise _quarantined(sitting.device.name, measured.latency_s, before.band)


def configured_band(device: Device) -> Band | None:
    """The band that devices.toml gives a device; None where it gives none."""
    if device.golden_ms is None:
        return None
    low_ms, high_ms = device.golden_ms
    return Band(low_ms / 1e3, high_ms / 1e3, CONFIGURED)


def _band_of(device: Device, store: FleetStore, clock: str, latency_s: float) -> Band:
    """The band that counts for this latency, after what it adds to a band that is being learnt."""
    given = configured_band(device)
    if given is not None:
        return given
    known = store.band(device.name)
    if known is not None and (len(known.latencies_s) >= SESSIONS_TO_LEARN or not known.holds(latency_s)):
        return known
    learnt = learn_band((*(known.latencies_s if known else ()), latency_s), clock)
    store.set_band(device.name, learnt)
    return learnt


def learn_band(latencies_s: tuple[float, ...], clock: str) -> Band:
    """The band around the median of a device's first sessions: wide while they are few, and where they differ."""
    centre_s = statistics.median(latencies_s)
    spread = max(max(one / centre_s, centre_s / one) for one in latencies_s) - 1
    share = max(TOLERANCE[clock], _SPREADS * spread)
    if len(latencies_s) < SESSIONS_TO_LEARN:
        share *= _PROVISIONAL
    return Band(centre_s / (1 + share), centre_s * (1 + share), now(), latencies_s)


def quarantine(store: FleetStore, device: str, error: DeviceQuarantined) -> None:
    """Records that a device is not as it was."""
    store.measured(device, "bad", f"{error.what}; {error.why}")


def note_failure(store: FleetStore, device: str, error: DeviceError) -> None:
    """After trouble on the way to a device nothing is known of it until its golden probe is measured again."""
    if isinstance(error, (DeviceBusy, OutOfService)) or store.health(device).health == "bad":
        return
    needs_hand = isinstance(error, (HostKeyError, AuthenticationError))
    store.measured(device, "unknown", f"{error.what}{'; ' + error.next_step if needs_hand else ''}")


def adopt_health(store: FleetStore, outcome: JobOutcome) -> None:
    """Takes over what another workspace came to think of a device, unless a person said something here or there."""
    told = outcome.health
    if told is not None and told.health not in OUT_OF_SERVICE:
        store.measured(told.device, told.health, told.reason)


def _quarantined(device: str, latency_s: float, band: Band) -> DeviceQuarantined:
    side = "slower" if latency_s > band.high_s else "faster"
    what = f"{device} is not as it was: its golden probe takes {latency_s * 1e3:.4g} ms"
    why = f"{side} than its band, {band.low_s * 1e3:.4g} to {band.high_s * 1e3:.4g} ms ({_origin(band)})"
    step = (
        f"Look at clock, temperature and load: `harness devices check {device}`. If this is how it is from now on: "
        f"`harness devices golden {device} --forget`"
    )
    return DeviceQuarantined(what, why=why, next_step=step)


def _origin(band: Band) -> str:
    return "from devices.toml" if band.learnt == CONFIGURED else f"learnt until {band.learnt}"
