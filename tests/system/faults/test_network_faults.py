"""A network interface that is taken down for real: the device in a network namespace of its own."""

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fault_rig import Rig
from sshd_server import running_sshd

from harness.device.session import Deadlines
from harness.errors import LinkLost

NEAR, FAR = "10.213.77.1", "10.213.77.2"


@dataclass
class Cable:
    """A pair of interfaces between the controller's network and that of the device."""

    name: str

    def set(self, state: str) -> None:
        """`up` or `down`."""
        subprocess.run(["ip", "link", "set", self.name, state], check=True)


@pytest.fixture
def cable() -> Iterator[tuple[Cable, int]]:
    """A cable, and a process that lives in the device's network."""
    name = f"hrns{os.getpid() % 100000}"
    with contextlib.ExitStack() as stack:
        inside = stack.enter_context(
            subprocess.Popen(
                ["unshare", "-n", "sh", "-c", "echo here; exec cat"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        assert inside.stdin is not None and inside.stdout is not None
        stack.callback(inside.stdin.close)
        if inside.stdout.readline() != "here\n":
            pytest.skip("no network namespace can be made here: needs root")
        enter = ["nsenter", "-t", str(inside.pid), "-n"]
        steps = [
            ["ip", "link", "add", name, "type", "veth", "peer", "name", "far0", "netns", str(inside.pid)],
            ["ip", "addr", "add", f"{NEAR}/30", "dev", name],
            ["ip", "link", "set", name, "up"],
            [*enter, "ip", "addr", "add", f"{FAR}/30", "dev", "far0"],
            [*enter, "ip", "link", "set", "far0", "up"],
            [*enter, "ip", "link", "set", "lo", "up"],
        ]
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"no interface pair can be made here ({done.stderr.strip()})")
        stack.callback(subprocess.run, ["ip", "link", "delete", name], check=False)
        yield Cable(name), inside.pid


@pytest.fixture
def far_away(cable: tuple[Cable, int], rig: Rig, tmp_path: Path, runtime_folder: Path) -> Iterator[tuple[Rig, Cable]]:
    """The device behind an sshd in its own network."""
    wire, inside = cable
    folder = tmp_path / "sshd"
    with running_sshd(folder, runtime_folder, address=FAR, command=["nsenter", "-t", str(inside), "-n"]) as sshd:
        rig.monkeypatch.setattr("harness.device.ssh.ssh_connection.CLOSE_S", 0.3)
        rig.put_behind(sshd)
        yield rig, wire


@pytest.mark.long
def test_an_interface_that_is_down_for_five_seconds(far_away: tuple[Rig, Cable]) -> None:
    """Shorter than the lease, it costs time and nothing else: what was under way is sent again."""
    rig, wire = far_away
    up = threading.Timer(5.0, wire.set, ["up"])

    def strike() -> None:
        wire.set("down")
        up.start()

    rig.meet("interface down for 5 s", strike, None, deadlines=Deadlines(lease_ttl_s=30.0))
    up.join()


def test_an_interface_that_stays_down(far_away: tuple[Rig, Cable]) -> None:
    """Longer than the lease, both sides give up by themselves; with the link back the campaign goes on."""
    rig, wire = far_away
    rig.meet("interface down beyond the lease", lambda: wire.set("down"), LinkLost, mend=lambda: wire.set("up"))
