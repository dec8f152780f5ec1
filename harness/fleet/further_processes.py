"""Measure the reference probe in further processes of the worker after a campaign, to see how far they differ.

A process has its own addresses and pages, and meets a machine in another state: what one process repeats to a tenth of
a percent may be far from the next. A campaign runs in one process and cannot show that.
"""

from __future__ import annotations

import threading

from harness.device.inventory import Device
from harness.device.session import open_session
from harness.device.time_limit import TimeLimit
from harness.device.variant import Variant
from harness.errors import DeviceError, DeviceTooSlow
from harness.fleet.connections import ConnectGate
from harness.measure.device_run import DeviceRun, leased_run
from harness.measure.journal.journal import Journal
from harness.measure.journal.records import Campaign
from harness.measure.noise.campaign_noise import PROCESS, process_job
from harness.measure.noise.machine_noise import busy_before
from harness.measure.progress import Observer, Progress, notes_of
from harness.measure.reference import measure_reference

FURTHER_PROCESSES = 2
LEAST_CAMPAIGN_S = 10.0
"""Shorter campaigns end without further processes, whose starts would take as long as they do."""


def note_busy_machine(run: DeviceRun) -> None:
    """Say before a measurement if the machine is busy, so that it can be stopped."""
    if run.session.hello.clock == "device":
        return
    why = busy_before(run.session.status()["state"], run.fingerprint)
    if why:
        notes_of(run.observe)(f"{run.device} is busy: {why}. Latencies will differ from those of a quiet machine")


def measure_further_processes(
    device: Device,
    journal: Journal,
    campaign: Campaign,
    variant: Variant,
    *,
    gate: ConnectGate,
    stop: threading.Event,
    observe: Observer,
    time_limit: TimeLimit,
) -> None:
    """Measure the reference probe in new processes; if the device is not free in time, their spread is unknown.

    Nothing is measured on devices with a clock of their own, which no process of the host changes.
    """
    if campaign.clock == "device":
        return
    try:
        for number in range(1, FURTHER_PROCESSES + 1):
            observe(Progress("measuring the spread between processes", number - 1, FURTHER_PROCESSES, unit="process"))
            with gate.connecting(device, stop):
                session = open_session(device)
            with (
                session,
                leased_run(session, device, journal, stop=stop, variant=variant, time_limit=time_limit) as run,
            ):
                measure_reference(run, PROCESS, number, process_job(campaign.id, number))
    except (DeviceError, DeviceTooSlow) as error:  # the campaign itself is complete
        notes_of(observe)(f"The spread between processes was not measured: {error.what}")
