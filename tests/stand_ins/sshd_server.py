"""A real sshd on loopback, with keys, known_hosts and a home folder of its own."""

import contextlib
import getpass
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.device.inventory import Device, Ssh

REPOSITORY = Path(__file__).resolve().parents[2]
_SFTP_SERVERS = ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/libexec/sftp-server")
_CONFIGURATION = """\
ListenAddress {address}
Port {port}
HostKey {host_key}
AuthorizedKeysFile {authorized_keys}
PidFile none
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
SetEnv HARNESS_RUNTIME_FOLDER={leases}
Subsystem sftp {sftp}
"""
# The account's real home folder is none of a test's business: what runs, runs in a folder of the test.
_CONFINE = """\
#!/bin/sh
cd {home} && exec /bin/sh -c "exec $SSH_ORIGINAL_COMMAND"
"""


@dataclass
class Sshd:
    """A running sshd and the files that belong to it."""

    port: int
    folder: Path
    leases: Path
    address: str = "127.0.0.1"
    pid: int = 0

    @property
    def host_key(self) -> Path:
        """The private host key."""
        return self.folder / "host_key"

    @property
    def identity(self) -> Path:
        """The private key of the user."""
        return self.folder / "identity"

    @property
    def known_hosts(self) -> Path:
        """Lists the host key."""
        return self.folder / "known_hosts"

    @property
    def authorized_keys(self) -> Path:
        """The authorized_keys file."""
        return self.folder / "authorized_keys"

    @property
    def home(self) -> Path:
        """The folder in which commands of `allow_commands` run and SFTP starts."""
        return self.folder / "home"

    @property
    def log(self) -> Path:
        """The log of sshd."""
        return self.folder / "sshd.log"

    def device(self, name: str = "board", backend: str = "null", **settings: Any) -> Device:
        """A device behind this sshd; keywords replace settings of the transport."""
        values = {
            "host": self.address,
            "port": self.port,
            "user": getpass.getuser(),
            "identity": self.identity,
            "known_hosts": self.known_hosts,
            "python": sys.executable,
            **settings,
        }
        options: dict[str, int | float | str] = {"threads": 1} if backend == "onnxruntime" else {}
        return Device(
            name=name, backend=backend, options=options, resource=name, exclusive=True, transport=Ssh(**values)
        )

    def trust(self, port: int) -> None:
        """Lists the host key in known_hosts for this port, too: that of a proxy, for example."""
        public = self.host_key.with_suffix(".pub").read_text().strip()
        with self.known_hosts.open("a") as lines:
            lines.write(f"[{self.address}]:{port} {public}\n")

    def force(self, command: str | None = None) -> None:
        """Restricts the user's key to a command, by default the agent of this repository."""
        agent = f"env PYTHONPATH={shlex.quote(str(REPOSITORY))} {shlex.quote(sys.executable)} -P -m device_agents"
        self._authorize(f'restrict,command="{command or agent}" ')

    def allow_commands(self) -> None:
        """Lets the user's key run anything, in `home`."""
        script = self.folder / "confine.sh"
        script.write_text(_CONFINE.format(home=shlex.quote(str(self.home))))
        script.chmod(0o700)
        self._authorize(f'restrict,command="{script}" ')

    def allow_forwarding(self) -> None:
        """Lets the user's key open connections through this server, as through a bastion, and nothing else."""
        self._authorize('restrict,port-forwarding,command="false" ')

    def _authorize(self, options: str) -> None:
        self.authorized_keys.write_text(options + self.identity.with_suffix(".pub").read_text())

    def sessions(self) -> list[int]:
        """The processes that sshd started for connections, deepest first."""
        parents: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                pid = int(entry.name)
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(pid)
        found, waiting = [], [self.pid]
        while waiting:
            below = parents.get(waiting.pop(), [])
            found += below
            waiting += below
        return found[::-1]

    def kill_sessions(self) -> None:
        """Kills the sshd processes of all connections; agents see the end of their input."""
        for pid in self.sessions():
            with contextlib.suppress(OSError):
                if b"sshd" in (Path("/proc") / str(pid) / "cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)


def make_key(path: Path) -> str:
    """A new ed25519 key pair at `path` and `path`.pub; returns the public half."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)], check=True)
    return path.with_suffix(".pub").read_text().strip()


def free_port() -> int:
    """A loopback port without listener, below those that the system gives to connections, as it may meanwhile."""
    while True:
        port = secrets.choice(range(10_000, 30_000))  # test processes with equal seeds choose different ones
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def running_sshd(
    folder: Path, leases: Path, *settings: str, address: str = "127.0.0.1", command: Sequence[str] = ()
) -> Iterator[Sshd]:
    """An sshd that lets the key `identity` start the agent and nothing else; skips the test if sshd is not installed.

    `settings` adds lines to its configuration; `command` starts it elsewhere, where `address` is its own.
    """
    program = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    sftp = next((path for path in _SFTP_SERVERS if Path(path).exists()), None)
    if program is None or sftp is None or shutil.which("ssh-keygen") is None:
        pytest.skip("no sshd with sftp-server and ssh-keygen here: install OpenSSH's server to run this test")
    folder.mkdir(mode=0o700)
    server = Sshd(free_port(), folder, leases, address)
    server.home.mkdir()
    make_key(server.host_key)
    make_key(server.identity)
    server.trust(server.port)
    server.force()
    values = {"port": server.port, "host_key": server.host_key, "authorized_keys": server.authorized_keys}
    configuration = folder / "sshd_config"
    lines = _CONFIGURATION.format(**values, leases=leases, sftp=sftp, address=address)
    configuration.write_text("\n".join([lines, *settings, ""]))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd refuses to start as root without it
    words = [*command, program, "-D", "-e", "-f", str(configuration)]
    with server.log.open("wb") as log, subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=log) as process:
        server.pid = process.pid
        try:
            _wait_for(process, server)
            yield server
        finally:
            sessions = server.sessions()
            process.terminate()
            process.wait(10)
            for pid in sessions:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)


def _wait_for(process: subprocess.Popen[bytes], server: Sshd) -> None:
    """Wait for its log to say so: a connection to a port without listener may take that port for itself."""
    deadline = time.monotonic() + 300
    while "Server listening on" not in server.log.read_text():
        assert time.monotonic() < deadline and process.poll() is None, f"no sshd: {server.log.read_text()}"
        time.sleep(0.01)
