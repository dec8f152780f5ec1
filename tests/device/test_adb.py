"""Devices over adb, with a stand-in for adb that runs on this machine what it would run on a phone."""

import contextlib
import os
import shlex
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from nullbench import Bench
from processes import wait_until
from sshd_server import REPOSITORY
from stand_in_adb import SERIAL

from device_agents.lease import holder_of
from harness.device.bundle import build_bundle
from harness.device.diagnose import check_device
from harness.device.inventory import BUILT_IN, Adb, Device, load_inventory
from harness.device.session import LoadRequest, Visit, open_session
from harness.device.ssh.install import install_agent
from harness.errors import (
    AuthenticationError,
    ConfigurationError,
    DeviceBusy,
    DeviceUnreachable,
    HarnessError,
    LinkLost,
    UsageError,
)
from harness.measure.policy import RepeatPolicy

PROBE = LoadRequest("p", b"model", (), ({"name": "x", "shape": [10], "dtype": "float32"},), 4)


@dataclass(frozen=True)
class Phone:
    """A device behind the stand-in: `root` is the folder of the tool, `folder` the one on the device."""

    root: Path

    @property
    def folder(self) -> Path:
        """The folder of the agent on the device."""
        return self.root / "device" / "harness"

    @property
    def agents(self) -> list[Path]:
        """The files of agents on the device."""
        return sorted(self.folder.glob("agent-*"))

    def become(self, state: str, features: str = "cmd\nstat_v2\nshell_v2") -> None:
        """Changes what adb reports about the device."""
        (self.root / "state").write_text(state)
        (self.root / "features").write_text(features)

    def commands(self) -> list[str]:
        """What adb was asked since the last call, one command each."""
        lines = (self.root / "log").read_text().splitlines()
        (self.root / "log").write_text("")
        return [line.removeprefix(f"-s {SERIAL} ").split()[0] for line in lines]

    def device(self, backend: str = "null", **settings: object) -> Device:
        """The device; keywords replace settings of the transport."""
        values = {
            "serial": SERIAL,
            "adb": str(self.root / "adb"),
            "python": sys.executable,
            "folder": str(self.folder),
            **settings,
        }
        options: dict[str, int | float | str] = {"threads": 1} if backend == "onnxruntime" else {}
        transport = Adb(**values)  # type: ignore[arg-type]
        return Device(
            name="phone", backend=backend, options=options, resource="phone", exclusive=True, transport=transport
        )


@pytest.fixture
def phone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Phone:
    """A phone that is ready; its leases are where the agent on it keeps them."""
    found = Phone(tmp_path / "adb-root")
    found.folder.mkdir(parents=True)
    tool = found.root / "adb"
    words = [sys.executable, "-I", "-S", str(REPOSITORY / "tests" / "stand_ins" / "stand_in_adb.py"), str(found.root)]
    tool.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    tool.chmod(0o700)
    found.become("device")
    monkeypatch.setenv("HARNESS_RUNTIME_FOLDER", str(found.folder / "leases"))
    return found


def _measure(device: Device) -> int:
    with open_session(device) as session:
        session.acquire("the test")
        session.put(PROBE)
        return sum(len(series.samples) for part, _ in session.run([Visit("p", 1, 5)] * 3) for series in part)


def test_the_agent_is_pushed_once_and_measures(phone: Phone) -> None:
    """The first session copies the agent under its hash, the second one starts what is there."""
    device = phone.device()
    assert _measure(device) == 15
    assert phone.commands() == ["start-server", "get-state", "features", *["shell"] * 2, "push", *["shell"] * 3]
    (agent,) = phone.agents
    assert agent.read_bytes() == build_bundle().content
    assert _measure(device) == 15
    assert phone.commands() == ["start-server", "get-state", "features", "shell", "shell"]
    agent.write_bytes(b"damaged")
    assert _measure(device) == 15
    assert phone.agents == [agent] and agent.read_bytes() == build_bundle().content


def test_the_lease_is_on_the_device(phone: Phone) -> None:
    """A second controller is refused with the name of the first, and the end of the session frees the device."""
    device = phone.device()
    with open_session(device) as first:
        first.acquire("alice@lab")
        assert holder_of("phone") == "alice@lab"
        with pytest.raises(DeviceBusy, match="alice@lab"):
            open_session(device)
    wait_until(lambda: holder_of("phone") is None, "the end of the lease")


def test_the_streams_carry_every_byte(phone: Phone) -> None:
    """Megabytes of random bytes arrive, and thousands of samples return."""
    with open_session(phone.device()) as session:
        session.acquire("the test")
        session.put(LoadRequest("p", os.urandom(1 << 20) * 4, (), (), 4))
        parts = list(session.run([Visit("p", 0, 20_000)] * 3))
    assert sum(len(series.samples) for part, _ in parts for series in part) == 60_000


def test_the_fingerprint_is_that_of_the_device(phone: Phone) -> None:
    """The way to the device is no part of its fingerprint."""
    with open_session(BUILT_IN["cpu01"]) as session:
        local = session.hello
    with open_session(phone.device(backend="onnxruntime")) as session:
        assert session.hello == local


def test_a_device_of_devices_toml_is_checked_and_profiled(bench: Bench, phone: Phone) -> None:
    """The transport works from devices.toml, in `devices check` and in a campaign; nothing has to be installed."""
    bench.workspace.devices.write_text(
        f'[devices.bench]\nbackend = "null"\ntransport = "adb"\nserial = "{SERIAL}"\nadb = "{phone.root / "adb"}"\n'
        f'python = "{sys.executable}"\nfolder = "{phone.folder}"\n'
    )
    device = load_inventory(bench.workspace.devices)["bench"]
    assert device.board == f"adb:{SERIAL}/bench"
    checks = {check.name: check for check in check_device(device)}
    assert checks["reachable"].found == f"{SERIAL} over adb"
    assert all(checks[name].ok for name in ("reachable", "agent", "backend", "lease"))
    assert bench.profile(policy=RepeatPolicy(runs=2), connect=open_session).samples > 0
    with pytest.raises(UsageError, match="copies the agent"):
        install_agent(device)


@pytest.mark.parametrize(
    ("state", "kind", "named", "step"),
    [
        ("unauthorized", AuthenticationError, "does not allow debugging.*unauthorized", "on its screen"),
        ("offline", DeviceUnreachable, r"phone \(emulator-5554\) is not reachable.*offline", "Reconnect"),
        ("recovery", DeviceUnreachable, "is not reachable.*recovery", "Start Android"),
        ("hangs", DeviceUnreachable, "get-state` did not end within 4 s", "kill-server"),
    ],
)
def test_a_device_that_is_not_ready_is_reported(
    phone: Phone, state: str, kind: type[HarnessError], named: str, step: str
) -> None:
    """What adb reports about the device is in the error, with the remedy."""
    phone.become(state)
    with pytest.raises(kind, match=named) as caught:
        open_session(phone.device(connect_timeout_s=4.0 if state == "hangs" else 30.0))
    assert step in caught.value.next_step
    if state != "hangs":
        failed = [check for check in check_device(phone.device()) if check.ok is False]
        assert [check.remedy for check in failed] == [caught.value.next_step]


def test_other_faults_on_the_way_are_named(phone: Phone, tmp_path: Path) -> None:
    """A missing tool, an unknown serial number, an old Android, a folder that cannot be written, a missing Python."""
    with pytest.raises(ConfigurationError, match=r"devices\.phone\.adb.*cannot be started") as caught:
        open_session(phone.device(adb=str(tmp_path / "nowhere")))
    assert "platform tools" in caught.value.next_step and caught.value.fault == "user"
    with pytest.raises(DeviceUnreachable, match="'R58M' not found") as caught_:
        open_session(phone.device(serial="R58M"))
    assert "adb devices" in caught_.value.next_step
    (tmp_path / "file").touch()
    with pytest.raises(DeviceUnreachable, match="cannot be copied"):
        open_session(phone.device(folder=str(tmp_path / "file" / "harness")))
    with pytest.raises(DeviceUnreachable, match=r"No agent answers.*127.*nowhere"):
        open_session(phone.device(python="/nowhere/python3"))
    with pytest.raises(DeviceUnreachable, match="No agent answers"):
        open_session(phone.device(python=f"python3;touch${{IFS}}{tmp_path}/owned"))
    assert not (tmp_path / "owned").exists()
    phone.become("device", features="cmd\nstat_v2")
    with pytest.raises(DeviceUnreachable, match="shell_v2") as caught_:
        open_session(phone.device())
    assert "Android 7" in caught_.value.next_step


def test_a_link_that_ends_is_a_lost_link_and_frees_the_device(phone: Phone) -> None:
    """If adb is killed during a run, the session ends with LinkLost, and the agent on the device ends by itself."""
    with open_session(phone.device()) as session:
        session.acquire("the test")
        session.put(PROBE)
        with pytest.raises(LinkLost):
            for _ in session.run([Visit("p", 100_000, 1)] * 1000):
                for process in psutil.process_iter():
                    with contextlib.suppress(psutil.Error):  # of other tests, which end meanwhile
                        if str(phone.root) in process.cmdline() and "shell" in process.cmdline():
                            process.send_signal(signal.SIGKILL)
    wait_until(lambda: holder_of("phone") is None, "the end of the lease")
