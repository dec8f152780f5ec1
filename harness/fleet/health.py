"""The health of a device: whether its golden probe lies in the band of its first sessions.

The golden probe is a small network that never changes, so its latency shows whether a device is in its usual state.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

from harness.device.inventory import Device
from harness.device.time_limit import TimeLimit
from harness.device.variant import Variant
from harness.errors import AuthenticationError, DeviceBusy, DeviceError, DeviceQuarantined, HostKeyError, OutOfService
from harness.fleet.connections import pause
from harness.fleet.profile_outcome import ProfileOutcome
from harness.fleet.store import OUT_OF_SERVICE, Band, FleetStore, now
from harness.measure.device_run import DeviceRun
from harness.measure.noise.campaign_noise import GOLDEN
from harness.measure.reference import measure_reference
from harness.measure.summary import summarise

TOLERANCE: Mapping[str, float] = {"device": 0.05, "cpu": 0.25, "wall": 0.5}
"""How far the golden probe may be from the median of its first sessions, as a fraction by clock.

A virtual or hardware clock repeats within a percent; processors change their frequency and share their caches.
"""
SESSIONS_TO_LEARN = 3
CONFIGURED = "configured"
_SPREADS = 3.0
_FURTHER_ATTEMPTS = 5
"""How often a device without a clock of its own is measured again if it is slower than its band."""
PAUSE_S = 0.4
"""Seconds before each further attempt; what disturbs a processor takes some seconds, mostly less."""
_PROVISIONAL = 2.0
"""How much wider the band is until enough sessions have been seen."""


@dataclass(frozen=True)
class GoldenCheck:
    """The latency of the golden probe and its band; both None if the device refuses the probe."""

    latency_s: float | None
    band: Band | None


def check_in_service(store: FleetStore, device: str) -> None:
    """Raise OutOfService for a device that was taken out of service."""
    known = store.health(device)
    if known.health in OUT_OF_SERVICE:
        step = f"Return it to service with `harness devices mark {device} unknown`"
        what = f"{device} is out of service: {known.health}"
        raise OutOfService(what, why=f"{known.reason}, since {known.since}", next_step=step)


def check_golden(run: DeviceRun, store: FleetStore, configured: Band | None = None) -> GoldenCheck:
    """Measure the golden probe before a campaign; the device is then good, or unknown until its band is established.

    Raises DeviceQuarantined if the latency is outside the band, and leaves recording the health to the caller.
    """
    latency_s = _golden_s(run, configured or store.band(band_name(run.device, run.variant)))
    if latency_s is None:
        store.measured(run.device, "unknown", "it refuses the golden probe, so its state cannot be checked")
        return GoldenCheck(None, None)
    return GoldenCheck(latency_s, _judge(run, store, latency_s, configured))


def check_golden_again(run: DeviceRun, store: FleetStore, before: GoldenCheck) -> None:
    """Measure the golden probe after a campaign; raises DeviceQuarantined if the device left the band of before.

    A campaign that began while other programs slowed a processor counts: its own probes show its slow phases.
    """
    if before.band is None:
        return
    # A campaign that used up the time of its job still counts if the device is as it was. The session has an end.
    run = replace(run, time_limit=TimeLimit())
    latency_s = _golden_s(run, before.band)
    if latency_s is not None and not before.band.holds(latency_s):
        _judge(run, store, latency_s, before.band if before.band.learnt == CONFIGURED else None)


def _judge(run: DeviceRun, store: FleetStore, latency_s: float, configured: Band | None) -> Band:
    """Record that a device is good, or unknown while its band is provisional; raise if it is outside the band."""
    band = configured or _learned_band(run, store, latency_s)
    if not band.holds(latency_s):
        raise _quarantined(run.device, latency_s, band)
    if _is_provisional(band):
        reason = f"the golden band is based on {len(band.latencies_s)} of {SESSIONS_TO_LEARN} sessions"
        store.measured(run.device, "unknown", reason)
    else:
        store.measured(run.device, "good", "the golden probe is in its band")
    return band


def _golden_s(run: DeviceRun, band: Band | None) -> float | None:
    """Return the latency of the golden probe; None if the device refuses it.

    Without a clock of its own, a device that is slower than its band is measured again, and the lowest latency is used:
    other programs may disturb it for a moment.
    """
    latency_s = _measured_s(run)
    for _ in range(_FURTHER_ATTEMPTS if run.session.hello.clock != "device" else 0):
        if latency_s is None or band is None or latency_s <= band.high_s:
            break
        pause(PAUSE_S, run.stop)
        latency_s = min(latency_s, _measured_s(run) or latency_s)
    return latency_s


def _measured_s(run: DeviceRun) -> float | None:
    samples = measure_reference(run, GOLDEN)
    return summarise(samples, run.session.hello.clock).latency_s if samples else None


def _is_provisional(band: Band) -> bool:
    return band.learnt != CONFIGURED and len(band.latencies_s) < SESSIONS_TO_LEARN


def configured_band(device: Device) -> Band | None:
    """Return the band that devices.toml sets for a device; None if it sets none."""
    if device.golden_ms is None:
        return None
    low_ms, high_ms = device.golden_ms
    return Band(low_ms / 1e3, high_ms / 1e3, CONFIGURED)


def band_name(device: str, variant: Variant) -> str:
    """Return the name of a band in the store: each number of threads has a separate band."""
    return device if variant.threads is None else f"{device}/threads={variant.threads}"


def _learned_band(run: DeviceRun, store: FleetStore, latency_s: float) -> Band:
    """The band of the device's first sessions, of which the present one may be one.

    Other programs slow a processor down, and nothing speeds it up: a faster session shows that the few before it were
    disturbed, and the band starts with it.
    """
    name, clock = band_name(run.device, run.variant), run.session.hello.clock
    known = store.band(name)
    if known is not None and _is_provisional(known) and clock != "device" and latency_s < known.low_s:
        known = None
    if known is not None and not (_is_provisional(known) and known.holds(latency_s)):
        return known
    learned = learn_band((*(known.latencies_s if known else ()), latency_s), clock)
    store.set_band(name, learned)
    return learned


def learn_band(latencies_s: tuple[float, ...], clock: str) -> Band:
    """Return the band around the median of a device's first sessions: wide if they are few, and if they differ."""
    centre_s = statistics.median(latencies_s)
    spread = max(max(one / centre_s, centre_s / one) for one in latencies_s) - 1
    share = max(TOLERANCE[clock], _SPREADS * spread)
    if len(latencies_s) < SESSIONS_TO_LEARN:
        share *= _PROVISIONAL
    return Band(centre_s / (1 + share), centre_s * (1 + share), now(), latencies_s)


def note_failure(store: FleetStore, device: str, error: DeviceError) -> None:
    """Record after a failed connection that the health is unknown until the next golden probe."""
    if isinstance(error, (DeviceBusy, OutOfService)) or store.health(device).health == "bad":
        return
    needs_attention = isinstance(error, (HostKeyError, AuthenticationError))
    store.measured(device, "unknown", f"{error.what}{'; ' + error.next_step if needs_attention else ''}")


def adopt_health(store: FleetStore, outcome: ProfileOutcome) -> None:
    """Record the health that another workspace measured, unless a person set it here or there."""
    reported = outcome.health
    if reported is not None and reported.health not in OUT_OF_SERVICE:
        store.measured(reported.device, reported.health, reported.reason)


def _quarantined(device: str, latency_s: float, band: Band) -> DeviceQuarantined:
    origin = "from devices.toml" if band.learnt == CONFIGURED else f"learned until {band.learnt}"
    side = "slower" if latency_s > band.high_s else "faster"
    what = f"The latency of {device} has changed: its golden probe takes {latency_s * 1e3:.4g} ms"
    why = f"{side} than its band, {band.low_s * 1e3:.4g} to {band.high_s * 1e3:.4g} ms ({origin})"
    step = (
        f"Check clock, temperature and load with `harness devices check {device}`. If the change is permanent: "
        f"`harness devices golden {device} --forget`"
    )
    return DeviceQuarantined(what, why=why, next_step=step)
