"""Check a device part by part, with a remedy for each fault; for `harness devices check`."""

import itertools
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.device.inventory import Adb, Device, Local, Ssh
from harness.device.session import AgentSession, open_session, start_agent
from harness.errors import (
    AuthenticationError,
    BackendError,
    ConfigurationError,
    DeviceUnreachable,
    HarnessError,
    HostKeyError,
)
from harness.text import last_part, sentences, whole_number

_DISK_BYTES = 500 << 20
_MOST_DIGITS = 5
_GOVERNORS = ("performance", "none")


@dataclass(frozen=True)
class Check:
    """One finding; `ok` is None for a warning, and `remedy` is empty if nothing is wrong."""

    name: str
    ok: bool | None
    found: str
    remedy: str = ""


def check_device(device: Device) -> tuple[Check, ...]:
    """Check a device from the connection upwards; never raises, and disturbs no measurement."""
    try:
        return tuple(_checks(device))
    except Exception as error:  # a failing check is also a finding
        return (Check("check", False, f"{type(error).__name__}: {last_part(str(error))}", "Report this as a bug"),)


def _checks(device: Device) -> Iterator[Check]:
    try:
        session = AgentSession(start_agent(device), device)
    except HarnessError as error:
        yield from _link_failure(device, error)
        return
    with session:
        yield from _link(device)
        try:
            session.greet(with_backend=False)
            status = session.status()
        except HarnessError as error:
            yield Check("agent", False, _found(error), _remedy(device, error))
            return
        yield Check("agent", True, f"version {session.hello.agent_version}")
        governor = session.hello.fingerprint.get("governor", "none")
    yield from _backend(device, status)
    yield _governor(governor)
    cores = whole_number(session.hello.fingerprint.get("cores", ""), _MOST_DIGITS)
    yield from _status(device, status, 1 if cores is None else cores)


def _link(device: Device) -> Iterator[Check]:
    """Yield the checks that an open connection proves."""
    settings = device.transport
    if isinstance(settings, Adb):
        yield Check("reachable", True, f"{settings.serial} over adb")
        return
    if isinstance(settings, Local):
        yield Check("reachable", True, "on this machine")
        return
    from harness.device.ssh.ssh_target import resolve  # loads paramiko

    target = resolve(device.name, settings)
    agent = f" in {settings.key_agent}" if settings.key_agent else ""
    yield Check("reachable", True, target.address)
    yield Check("host key", True, f"listed in {settings.known_hosts}")
    yield Check("authentication", True, f"{target.user} with {target.identity or 'the key'}{agent}")


def _link_failure(device: Device, error: HarnessError) -> Iterator[Check]:
    """Yield the checks up to the one that failed; the rest is reported as not checked."""
    failed = {HostKeyError: "host key", AuthenticationError: "authentication", ConfigurationError: "configuration"}
    name = next((name for kind, name in failed.items() if isinstance(error, kind)), "reachable")
    if isinstance(error, DeviceUnreachable) and not error.what.endswith("is not reachable"):
        yield from _link(device)
        name = "agent"
    elif isinstance(device.transport, Ssh) and name in ("host key", "authentication"):
        from harness.device.ssh.ssh_target import resolve

        passed = [] if resolve(device.name, device.transport).via else list(_link(device))  # a bastion's, perhaps
        yield from itertools.takewhile(lambda check: check.name != name, passed)
    yield Check(name, False, _found(error), _remedy(device, error))
    yield Check("everything else", None, f"not checked, because {name} failed")


def _backend(device: Device, status: Mapping[str, Any]) -> Iterator[Check]:
    is_tool = device.backend == "command"
    if status["holder"] is not None:
        yield Check("backend", None, "not started, because a measurement is running")
        return
    try:
        with open_session(device) as session:
            facts, clock = session.hello.fingerprint, session.hello.clock
    except BackendError as error:
        missing = "program" if is_tool else f"runtime of {device.backend} for the Python of the agent"
        remedy = f"Install the {missing}, or correct the device's options"
        yield Check("backend", False, _found(error), remedy)
        return
    except HarnessError as error:
        yield Check("backend", False, _found(error), _remedy(device, error))
        return
    settings = facts.get("settings")
    shown = f" ({settings})" if settings else ""
    yield Check("backend", True, f"{facts.get('runtime')} {facts.get('runtime_version')}{shown}")
    wall = clock == "wall"
    other = "With threads = 1 on a CPU, CPU time is used instead"
    if is_tool:
        other = 'If the tool reports the time of its own clock, set clock = "device"'
    remedy = f"Wall time includes other work: keep the device idle. {other}" if wall else ""
    yield Check("clock", None if wall else True, clock, remedy)


def _governor(governor: str) -> Check:
    if governor in _GOVERNORS:
        return Check("governor", True, governor if governor != "none" else "the kernel does not scale the clock")
    remedy = "On the device: echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
    return Check("governor", None, f"{governor}: the clock may change during a measurement", remedy)


def _status(device: Device, status: Mapping[str, Any], cores: int) -> Iterator[Check]:
    state: Mapping[str, float] = status["state"]
    free = state.get("disk_free_bytes")
    if free is not None:
        enough = free >= _DISK_BYTES
        yield Check("disk", enough, f"{free / 1e9:.1f} GB free", "" if enough else "Free space on the device")
    if status["holder"] is None:
        yield Check("lease", True, f"{device.resource} is free")
    else:
        remedy = "Wait until it finishes. If its connection is lost, the lease expires within a minute"
        yield Check("lease", None, f"{device.resource} is held by {status['holder']}", remedy)
    load = state.get("load_1min")
    if load is None:
        yield Check("load", None, "the device does not report it")
    else:
        calm = load < max(1.0, 0.5 * cores) or not device.exclusive  # an emulated device has a clock of its own
        remedy = "" if calm else "Stop other work on the device; `top` lists it"
        yield Check("load", calm or None, f"{load:.2f} over the last minute, {cores} cores", remedy)
    if "power_w" in state or "energy_j" in state:
        said = f"{state['power_w']:.2f} W" if "power_w" in state else f"{state['energy_j']:.1f} J counted"
        yield Check("power", True, said)
    else:
        yield Check("power", None, "the device does not report it")


def _found(error: HarnessError) -> str:
    return sentences(error.what, error.why)


def _remedy(device: Device, error: HarnessError) -> str:
    """Return the next step of an error, unless that is this very check."""
    is_this_check = "harness devices check" in error.next_step
    return _start_remedy(device) if is_this_check or not error.next_step else error.next_step


def _start_remedy(device: Device) -> str:
    settings = device.transport
    if isinstance(settings, Local):
        return "Reinstall harness, which contains the local agent"
    if isinstance(settings, Adb) or settings.agent == "push":
        return f"Check that {shlex.quote(settings.python)} on the device is Python 3.9 or newer"
    return f"Install the agent with `harness agent install {device.name}` and restrict the key to it"
