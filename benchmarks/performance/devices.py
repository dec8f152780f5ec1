"""How the time of the controller grows with the devices of a lab: a part of docs/performance.md.

Each device is profiled by `LocalEngine` as in a lab, but its session is with a `null` backend in this process: agents
are processes of their own, whose cost is measured apart.
"""

import threading
from functools import partial
from unittest import mock

from in_process import InProcessSession

from benchmarks.generated_page import Section
from benchmarks.performance.measuring import Run, fitted, grow, growth_table, half_decades, timed
from benchmarks.performance.page import reached_linear
from device_agents.backends import create
from harness.device.inventory import Device, load_inventory
from harness.errors import HarnessError
from harness.fleet.local_engine import LocalEngine
from harness.measure.policy import RepeatPolicy
from harness.measure.request import ProfileRequest
from harness.workspace import Workspace

SIZES, QUICK_SIZES = half_decades(1, 316), (1, 2, 3)
REAL, QUICK_REAL = 8, 1
NETWORK = "builtin:dscnn"
POLICY = RepeatPolicy(runs=2)


def devices_section(run: Run) -> Section:
    """Profile fleets of growing size, and a few devices with real agents."""
    sizes, real = (QUICK_SIZES, QUICK_REAL) if run.quick else (SIZES, REAL)
    folders = {size: _workspace(run, size) for size in sizes}
    reading = grow(sizes, lambda size: partial(load_inventory, folders[size].devices), run.repeats)
    with mock.patch("harness.fleet.connections.open_session", _session):
        _profile(_workspace(run, 1, "warm-up"), 1)
        took = {size: timed(partial(_profile, folders[size], size)) for size in sizes}
    profiling = fitted({size: one.cpu_s for size, one in took.items()})
    agents = timed(partial(_profile, _workspace(run, real, "agents"), real))
    growths = {"read devices.toml": reading, "profile each": profiling}
    each_ms = [f"{1e3 * one.cpu_s / count:.0f}" for one, count in ((took[sizes[-1]], sizes[-1]), (agents, real))]
    text = (
        f"Campaigns over {NETWORK} with {POLICY.runs} rounds.\n\n{growth_table('devices', growths)}\n\nThe controller "
        f"takes {each_ms[0]} ms of CPU time for each of {sizes[-1]:,} devices. With agents and workers as processes, a "
        f"device takes {each_ms[1]} ms (of {real})."
    )
    return Section(
        text,
        (
            reached_linear("devices: read the inventory", reading),
            reached_linear("devices: profile each of a fleet", profiling),
        ),
    )


def _session(device: Device) -> InProcessSession:
    return InProcessSession(create(device.backend, dict(device.options)))


def _workspace(run: Run, count: int, name: str = "fleet") -> Workspace:
    """Return a new workspace with so many devices."""
    workspace = run.workspace(f"{name}-{count}")
    tables = (f'[devices.d{number:04}]\nbackend = "null"\noptions = {{ seed = {number} }}\n' for number in range(count))
    workspace.devices.write_text("".join(tables))
    return workspace


def _profile(workspace: Workspace, count: int) -> None:
    requests = [ProfileRequest(f"d{number:04}", (NETWORK,), policy=POLICY) for number in range(count)]
    outcomes = list(LocalEngine(workspace).run(requests, threading.Event()))
    for outcome in outcomes:
        if outcome.failure is not None:
            raise HarnessError(f"{outcome.request.device} was not profiled", why=outcome.failure.why)
