"""The agent over a real sshd on loopback."""

import getpass
import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import wait_until
from sshd_server import make_key, running_sshd

from device_agents.lease import holder_of
from harness.device.bundle import build_bundle
from harness.device.inventory import BUILT_IN
from harness.device.session import AgentSession, LoadRequest, Visit, open_session
from harness.device.ssh.install import install_agent
from harness.errors import (
    AuthenticationError,
    ConfigurationError,
    DeviceUnreachable,
    HostKeyError,
    ProtocolError,
    UsageError,
)

PROBE = LoadRequest("p", b"model", (), ({"name": "x", "shape": [10], "dtype": "float32"},), 4)


def _measure(session: AgentSession) -> int:
    session.acquire("the test")
    session.put(PROBE)
    return sum(len(series.samples) for part, _ in session.run([Visit("p", 1, 5)] * 3) for series in part)


def test_forced_command_measures(sshd: Any) -> None:
    """Behind a forced command the agent serves a session as it does locally."""
    with open_session(sshd.device()) as session:
        assert session.hello.backend == "null"
        assert _measure(session) == 15
        assert holder_of("board") == "the test"
    wait_until(lambda: holder_of("board") is None, "the end of the lease")


def test_fingerprint_does_not_depend_on_the_way_to_the_device(sshd: Any) -> None:
    """Series taken locally, over SSH and by a pushed agent are of one device."""
    with open_session(BUILT_IN["cpu01"]) as session:
        local = session.hello
    with open_session(sshd.device(backend="onnxruntime")) as session:
        assert session.hello == local
    sshd.allow_commands()
    with open_session(sshd.device(backend="onnxruntime", agent="push")) as session:
        assert session.hello == local


def test_push_sends_the_agent_once(sshd: Any) -> None:
    """The agent is copied under its hash, with mode 0600, and used again by the next session."""
    sshd.allow_commands()
    device = sshd.device(agent="push")
    target = sshd.home / build_bundle().path
    with open_session(device) as session:
        assert _measure(session) == 15
    assert target.read_bytes() == build_bundle().content
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    first = target.stat().st_ino
    with open_session(device) as session:
        assert _measure(session) == 15
    assert target.stat().st_ino == first
    assert [entry.name for entry in target.parent.iterdir()] == [target.name]


def test_damaged_agent_on_the_device_is_replaced(sshd: Any) -> None:
    """A file with the right name and the wrong content is not started."""
    sshd.allow_commands()
    target = sshd.home / build_bundle().path
    target.parent.mkdir(parents=True)
    target.write_bytes(b"x" * len(build_bundle().content))
    assert install_agent(sshd.device()).sent is True
    assert target.read_bytes() == build_bundle().content


def test_installed_agent_runs_behind_its_authorized_keys_line(sshd: Any) -> None:
    """The line that `agent install` prints restricts the key to the installed agent."""
    sshd.allow_commands()
    device = sshd.device()
    installed = install_agent(device)
    assert installed.authorized_keys_line.startswith('restrict,command="')
    line = installed.authorized_keys_line.replace('command="', f'command="cd {shlex.quote(str(sshd.home))} && ')
    sshd.authorized_keys.write_text(line + "\n")
    with open_session(device) as session:
        assert _measure(session) == 15
    with pytest.raises(DeviceUnreachable, match="cannot be copied"):
        install_agent(device)


def test_python_of_the_device_is_never_shell_text(sshd: Any) -> None:
    """A value from devices.toml with shell syntax in it is a program name, and no command."""
    sshd.allow_commands()
    with pytest.raises(DeviceUnreachable, match="127"):
        open_session(sshd.device(agent="push", python="python3;touch${IFS}owned"))
    assert not (sshd.home / "owned").exists()


def test_unknown_host_key_is_refused_with_the_line_that_would_add_it(sshd: Any) -> None:
    """A host key that known_hosts lacks is never accepted; following the advice mends it."""
    sshd.known_hosts.unlink()
    with pytest.raises(HostKeyError, match="unknown: ssh-ed25519 SHA256:") as caught:
        open_session(sshd.device())
    assert not sshd.known_hosts.exists()
    sshd.known_hosts.write_text(caught.value.next_step.split("`")[-2] + "\n")
    open_session(sshd.device()).close()


def test_hashed_known_hosts_are_read(sshd: Any) -> None:
    """Names in known_hosts may be hashed, as some systems do by default."""
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(sshd.known_hosts)], check=True, capture_output=True)
    assert "127.0.0.1" not in sshd.known_hosts.read_text()
    open_session(sshd.device()).close()


def test_damaged_known_hosts_is_a_configuration_error(sshd: Any) -> None:
    """A line that is not a key is an error, and no key is trusted."""
    sshd.known_hosts.write_text("board ssh-ed25519 !!!\n")
    with pytest.raises((ConfigurationError, HostKeyError), match="known_hosts"):
        open_session(sshd.device())


def test_large_probe_over_ssh(sshd: Any) -> None:
    """Megabytes up and thousands of samples down pass the windows of SSH."""
    with open_session(sshd.device()) as session:
        session.acquire("the test")
        session.put(LoadRequest("p", os.urandom(1 << 20) * 8, (), (), 4))
        parts = list(session.run([Visit("p", 0, 20_000)] * 10))
    assert sum(len(series.samples) for part, _ in parts for series in part) == 200_000


@pytest.mark.parametrize(
    ("weak", "named"),
    [
        ("Ciphers aes128-cbc,aes256-cbc,3des-cbc", "cipher"),
        ("Ciphers aes256-ctr\nMACs hmac-sha1,hmac-md5,hmac-sha1-96,hmac-md5-96", "mac"),
    ],
)
def test_server_with_weak_algorithms_only_is_refused(
    tmp_path: Path, runtime_folder: Path, weak: str, named: str
) -> None:
    """Neither CBC and 3DES nor MD5 and SHA-1 are agreed on, and no identity is shown to such a server."""
    with running_sshd(tmp_path / "weak", runtime_folder, weak) as server:
        with pytest.raises(DeviceUnreachable, match="weak or unknown algorithms only") as caught:
            open_session(server.device())
        assert named in caught.value.why and "aes256-ctr" in caught.value.next_step
        assert "Accepted" not in server.log.read_text()


def test_changed_host_key_is_refused_with_the_command_that_removes_the_old(sshd: Any, tmp_path: Path) -> None:
    """Another key than the listed one is refused, before the identity is shown."""
    sshd.known_hosts.write_text(f"[127.0.0.1]:{sshd.port} {make_key(tmp_path / 'other')}\n")
    with pytest.raises(HostKeyError, match="has changed: ssh-ed25519 SHA256:") as caught:
        open_session(sshd.device())
    remove = caught.value.next_step.split("`")[3]
    subprocess.run(shlex.split(remove), check=True, capture_output=True)
    with pytest.raises(HostKeyError, match="unknown"):
        open_session(sshd.device())
    assert "Accepted" not in sshd.log.read_text()


@pytest.mark.parametrize("content", [None, b"", b"no key", b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n"])
def test_identity_that_cannot_be_used_is_a_configuration_error(
    sshd: Any, tmp_path: Path, content: bytes | None
) -> None:
    """A missing or damaged key file is a ConfigurationError that says which."""
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
        path.chmod(0o600)
    with pytest.raises(ConfigurationError, match=r"devices\.board\.identity"):
        open_session(sshd.device(identity=path))


def test_identity_readable_by_others_is_refused(sshd: Any) -> None:
    """A private key that others can read is not used."""
    sshd.identity.chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        open_session(sshd.device())


def test_missing_forced_command_is_reported(sshd: Any) -> None:
    """A missing program is an error that contains the shell's message."""
    sshd.force("/nonexistent/agent")
    with pytest.raises(DeviceUnreachable, match="/nonexistent/agent"):
        open_session(sshd.device())


def test_forced_command_that_is_no_agent_is_reported(sshd: Any) -> None:
    """A program that prints something else is a ProtocolError with its text, without its control characters."""
    sshd.force("printf '\\033[31mWelcome to the lab board, have fun\\n'")
    with pytest.raises(ProtocolError, match=r"Welcome to the lab board.*bashrc") as caught:
        open_session(sshd.device())
    assert "\x1b" not in str(caught.value)


def test_a_shell_that_greets_is_named_where_the_agent_is_copied(sshd: Any) -> None:
    """A greeting in front of SFTP is shown with its remedy, not as a fault of the key or of the disk."""
    sshd.allow_commands()
    script = sshd.folder / "confine.sh"
    script.write_text(script.read_text().replace("#!/bin/sh\n", "#!/bin/sh\necho Welcome to board 7\n"))
    with pytest.raises(DeviceUnreachable, match=r"Welcome to board 7.*bashrc"):
        install_agent(sshd.device())


def test_an_sftp_server_that_is_silent_is_named(sshd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that never answers is reported with the time that it had."""
    monkeypatch.setattr("harness.device.ssh.install._CHANNEL_S", 2.0)
    sshd.force("sleep 60")
    with pytest.raises(DeviceUnreachable, match=r"did not answer within 2 s"):
        install_agent(sshd.device())


@pytest.mark.parametrize("version", [(2, 7, 18), (3, 8, 18)])
def test_a_python_that_is_too_old_says_so(version: tuple[int, int, int], tmp_path: Path) -> None:
    """The agent ends with its own version and the one that it needs, not with a traceback of its modules."""
    agent = tmp_path / "agent.pyz"
    agent.write_bytes(build_bundle().content)
    program = f"import runpy, sys; sys.version_info = {version}; runpy.run_path({str(agent)!r}, run_name='__main__')"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr == "the agent needs Python 3.9 or newer, and this is {}.{}.{}\n".format(*version)


def test_local_device_needs_no_installation() -> None:
    """`agent install` for a local device is a usage error."""
    with pytest.raises(UsageError):
        install_agent(BUILT_IN["cpu01"])


@pytest.mark.parametrize("name", ["python;touch${IFS}owned", 'a\\"b"$(touch${IFS}owned)`touch${IFS}owned`\'c'])
def test_line_for_authorized_keys_quotes_the_interpreter(sshd: Any, name: str) -> None:
    """Any path of the interpreter is one word, for sshd and for the shell behind it."""
    folder = sshd.home / "bin"
    folder.mkdir()
    (folder / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    (folder / name).chmod(0o700)
    sshd.allow_commands()
    device = sshd.device(python=str(folder / name))
    line = install_agent(device).authorized_keys_line
    before, command, after = line.partition('command="')
    sshd.authorized_keys.write_text(f"{before}{command}cd {shlex.quote(str(sshd.home))} && {after}\n")
    with open_session(device) as session:
        assert _measure(session) == 15
    assert not (sshd.home / "owned").exists()


def test_unknown_host_name_is_unreachable(sshd: Any) -> None:
    """A host name that does not resolve is an unreachable device."""
    with pytest.raises(DeviceUnreachable):
        open_session(sshd.device(host="board.invalid"))


def test_user_is_not_guessed(sshd: Any) -> None:
    """Another user is refused though the key is right."""
    assert getpass.getuser() != "nobody"
    with pytest.raises(AuthenticationError):
        open_session(sshd.device(user="no-such-user"))
