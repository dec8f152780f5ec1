"""Devices behind the hosts of an OpenSSH configuration file, bastions and key agents, over real sshds."""

import getpass
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from processes import wait_until
from sshd_server import Sshd, make_key, running_sshd

from harness.device.diagnose import check_device
from harness.device.inventory import Device, Ssh, load_inventory
from harness.device.session import LoadRequest, Visit, open_session
from harness.device.ssh.install import authorized_keys_line
from harness.device.ssh.ssh_target import SshTarget, resolve
from harness.errors import (
    AuthenticationError,
    ConfigurationError,
    DeviceUnreachable,
    HostKeyError,
    LinkLost,
)

PROBE = LoadRequest("p", b"model", (), ({"name": "x", "shape": [10], "dtype": "float32"},), 4)
UNLOCKS = "correct horse"


def _resolve(folder: Path, text: str, **settings: object) -> SshTarget:
    """The server of a device `board` with this configuration file; keywords are settings of devices.toml."""
    path = folder / "config"
    path.write_text(text)
    values = {"host": "board", "known_hosts": folder / "known_hosts", "ssh_config": path, **settings}
    return resolve("board", Ssh(**values))  # type: ignore[arg-type]


BOARD = """
Host board bo?rd2
    HostName 192.0.2.7
    Port 2207
    User lab
    IdentityFile {identity}
Host *
    User nobody
    IdentityFile none
"""


# The file -------------------------------------------------------------------------------------------------------


def test_an_alias_gives_what_devices_toml_leaves_open(tmp_path: Path) -> None:
    """HostName, Port, User and IdentityFile come from the alias; the first value of each counts, as for ssh."""
    found = _resolve(tmp_path, BOARD.format(identity="~/keys/board"))
    assert (found.host, found.port, found.user, found.via) == ("192.0.2.7", 2207, "lab", ())
    assert found.identity == Path("~/keys/board").expanduser()


def test_devices_toml_counts_before_the_file(tmp_path: Path) -> None:
    """Settings of devices.toml replace those of the alias."""
    text = BOARD.format(identity="a") + "Host board\n    ProxyJump gate\n"
    own = {"port": 22, "user": "me", "identity": tmp_path / "own", "proxy_jump": "none"}
    found = _resolve(tmp_path, text, **own)
    assert (found.host, found.port, found.user, found.identity) == ("192.0.2.7", 22, "me", tmp_path / "own")
    assert found.via == ()


def test_without_a_file_nothing_is_filled_in(tmp_path: Path) -> None:
    """A host without a file is itself at port 22; user and identity must then be in devices.toml."""
    settings = {"host": "board", "known_hosts": tmp_path / "k", "user": "me", "identity": tmp_path / "i"}
    for config in (None, tmp_path / "missing"):
        found = resolve("board", Ssh(ssh_config=config, **settings))  # type: ignore[arg-type]
        assert (found.host, found.port) == ("board", 22)
        for key in ("user", "identity"):
            with pytest.raises(ConfigurationError, match=f"The {key} of board is missing") as caught:
                resolve("board", Ssh(ssh_config=config, **{**settings, key: None}))  # type: ignore[arg-type]
            assert "devices.toml" in caught.value.next_step


def test_devices_toml_chooses_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default is ~/.ssh/config; "none" reads no file, and a relative path starts at the folder of devices.toml."""
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "devices.toml"
    for line, expected in (
        ("", tmp_path / ".ssh" / "config"),
        ('ssh_config = "none"\n', None),
        ('ssh_config = "lab.conf"\n', tmp_path / "lab.conf"),
    ):
        path.write_text(f'[devices.board]\ntransport = "ssh"\nhost = "b"\n{line}')
        transport = load_inventory(path)["board"].transport
        assert isinstance(transport, Ssh) and transport.ssh_config == expected


def test_includes_are_read_in_their_place(tmp_path: Path) -> None:
    """Include works outside of Host blocks, with patterns, and leaves the block around it as it was."""
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a.conf").write_text(
        "Host board\n    HostName 192.0.2.1\n    User first\n    IdentityFile k\n"
    )
    (tmp_path / "more" / "b.conf").write_text("Host other\n    Port 9\n")
    found = _resolve(tmp_path, "Include more/*.conf\nPort 2200\nHost board\n    User second\n")
    assert (found.host, found.port, found.user) == ("192.0.2.1", 2200, "first")
    with pytest.raises(ConfigurationError, match="inside of `Host board`"):
        _resolve(tmp_path, "Host board\n    Include more/a.conf\n")
    (tmp_path / "round").write_text("Include round\n")
    with pytest.raises(ConfigurationError, match="nested deeper"):
        _resolve(tmp_path, "Include round\n")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Host board\n    Port 99999\n", "Port of board"),
        ("Host board\n    Port ssh\n", "Port of board"),
        ("Host board\n    ProxyCommand touch owned\n", "ProxyCommand.*proxy_jump"),
        ("Host gate\n    ProxyCommand touch owned\nHost board\n    ProxyJump gate\n", "ProxyCommand"),
        ('Match host board exec "touch owned"\n    Port 9\n', "Match exec"),
        ("Match tagged lab\n    Port 9\n", "Match tagged"),
        ("Host board\n    ProxyJump me@gate:ssh\n", "ProxyJump of board"),
        ("Host board\n    ProxyJump -oX\n", "ProxyJump of board"),
        ("Host board\n    ProxyJump a\nHost a\n    ProxyJump b\nHost b\n    ProxyJump a\n", "a goes through b"),
        ('Host "board\n', "Unparsable host"),
        ("Host\n", "Unparsable"),
        ("\xff", "UTF-8"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, named: str
) -> None:
    """A setting that is wrong, or would run a command, is an error of the user; nothing of it runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").write_bytes(text.encode("latin-1"))
    settings = {"host": "board", "known_hosts": tmp_path / "k", "user": "me", "identity": tmp_path / "i"}
    with pytest.raises(ConfigurationError, match=named) as caught:
        resolve("board", Ssh(ssh_config=tmp_path / "config", **settings))  # type: ignore[arg-type]
    assert caught.value.fault == "user"
    assert not (tmp_path / "owned").exists()


def test_commands_of_other_hosts_are_no_matter(tmp_path: Path) -> None:
    """ProxyCommand and `Match exec` of hosts that are not asked for are passed over."""
    text = 'Host far\n    ProxyCommand nc\nMatch host far exec "true"\n    Port 9\nHost board\n    User lab\n'
    assert _resolve(tmp_path, text, identity=tmp_path / "i").user == "lab"


def test_a_file_that_others_may_change_is_refused(tmp_path: Path) -> None:
    """As for OpenSSH, the file belongs to its user alone."""
    (tmp_path / "config").write_text("")
    (tmp_path / "config").chmod(0o666)
    with pytest.raises(ConfigurationError, match="changed by other users"):
        _resolve(tmp_path, "")


# Bastions -------------------------------------------------------------------------------------------------------


@pytest.fixture
def gate(tmp_path: Path, runtime_folder: Path, sshd: Sshd) -> Iterator[Sshd]:
    """An sshd that forwards connections and nothing else; the device's known_hosts lists its key."""
    with running_sshd(tmp_path / "gate", runtime_folder) as server:
        server.allow_forwarding()
        with sshd.known_hosts.open("a") as lines:
            lines.write(server.known_hosts.read_text())
        yield server


def _block(alias: str, server: Sshd, *lines: str) -> str:
    own = (
        f"HostName {server.address}",
        f"Port {server.port}",
        f"User {getpass.getuser()}",
        f"IdentityFile {server.identity}",
    )
    return "\n    ".join([f"Host {alias}", *own, *lines]) + "\n"


def _device(folder: Path, sshd: Sshd, config: str, lines: str = "") -> Device:
    """The device `board` of a devices.toml that names the alias only."""
    (folder / "ssh.conf").write_text(config)
    (folder / "devices.toml").write_text(
        '[devices.board]\nbackend = "null"\nexclusive = true\ntransport = "ssh"\nhost = "board"\n'
        f'known_hosts = "{sshd.known_hosts}"\nssh_config = "ssh.conf"\n{lines}'
    )
    return load_inventory(folder / "devices.toml")["board"]


def _measure(device: Device) -> int:
    with open_session(device) as session:
        session.acquire("the test")
        session.put(PROBE)
        return sum(len(series.samples) for part, _ in session.run([Visit("p", 1, 5)] * 3) for series in part)


def _accepted(server: Sshd) -> int:
    return server.log.read_text().count("Accepted publickey")


def test_a_device_by_its_alias_alone(tmp_path: Path, sshd: Sshd) -> None:
    """devices.toml names the alias, and the file says the rest."""
    assert _measure(_device(tmp_path, sshd, _block("board", sshd))) == 15


def test_a_device_behind_a_bastion(tmp_path: Path, sshd: Sshd, gate: Sshd) -> None:
    """ProxyJump leads through a bastion with a key of its own; both are left when the session ends."""
    device = _device(tmp_path, sshd, _block("board", sshd, "ProxyJump gate") + _block("gate", gate))
    assert _measure(device) == 15
    assert (_accepted(gate), _accepted(sshd)) == (1, 1)
    wait_until(lambda: not gate.sessions() and not sshd.sessions(), "the end of both connections")
    checks = {check.name: check for check in check_device(device)}
    assert checks["reachable"].found.endswith(f"through 127.0.0.1:{gate.port}")
    assert all(checks[name].ok for name in ("reachable", "host key", "authentication", "agent", "backend"))


def test_a_chain_of_bastions(tmp_path: Path, runtime_folder: Path, sshd: Sshd, gate: Sshd) -> None:
    """A bastion may itself be behind one, by its own ProxyJump or in a list of devices.toml."""
    with running_sshd(tmp_path / "inner", runtime_folder) as inner:
        inner.allow_forwarding()
        with sshd.known_hosts.open("a") as lines:
            lines.write(inner.known_hosts.read_text())
        chained = _block("inner", inner, "ProxyJump gate") + _block("gate", gate)
        assert _measure(_device(tmp_path, sshd, _block("board", sshd, "ProxyJump inner") + chained)) == 15
        listed = _block("inner", inner) + _block("gate", gate) + _block("board", sshd)
        assert _measure(_device(tmp_path, sshd, listed, 'proxy_jump = "gate,inner"\n')) == 15
        assert [_accepted(server) for server in (gate, inner, sshd)] == [2, 2, 2]


def test_host_keys_of_bastions_are_checked(tmp_path: Path, sshd: Sshd, gate: Sshd) -> None:
    """A bastion that known_hosts does not list, or lists with another key, is refused before any key is shown."""
    device = _device(tmp_path, sshd, _block("board", sshd, "ProxyJump gate") + _block("gate", gate))
    own = f"[127.0.0.1]:{sshd.port} {sshd.host_key.with_suffix('.pub').read_text()}"
    sshd.known_hosts.write_text(own)
    with pytest.raises(HostKeyError, match="the bastion gate of board is unknown: ssh-ed25519 SHA256:"):
        open_session(device)
    sshd.known_hosts.write_text(f"{own}[127.0.0.1]:{gate.port} {make_key(tmp_path / 'other')}\n")
    with pytest.raises(HostKeyError, match="the bastion gate of board has changed"):
        open_session(device)
    failed = {check.name: check.ok for check in check_device(device)}
    assert failed == {"host key": False, "everything else": None}
    sshd.known_hosts.write_text(f"[127.0.0.1]:{gate.port} {gate.host_key.with_suffix('.pub').read_text()}")
    with pytest.raises(HostKeyError, match="host key of board is unknown"):
        open_session(device)
    assert _accepted(sshd) == 0


def test_errors_name_the_server_at_fault(tmp_path: Path, sshd: Sshd, gate: Sshd) -> None:
    """Which server refuses, forbids or does not listen is in the error."""
    config = _block("board", sshd, "ProxyJump gate") + _block("gate", gate)
    refused = config.replace(str(gate.identity), str(sshd.identity))
    with pytest.raises(AuthenticationError, match="the bastion gate of board refused the identity"):
        open_session(_device(tmp_path, sshd, refused))
    closed = config.replace(f"Port {sshd.port}", "Port 1")
    sshd.trust(1)
    with pytest.raises(DeviceUnreachable, match=r"board \(127\.0\.0\.1:1\) is not reachable.*cannot connect"):
        open_session(_device(tmp_path, sshd, closed))
    with pytest.raises(DeviceUnreachable, match=r"the bastion gate of board \(127\.0\.0\.1:1\) .*port is closed"):
        open_session(_device(tmp_path, sshd, config.replace(f"Port {gate.port}", "Port 1")))
    gate.force()  # restrict without port-forwarding
    with pytest.raises(DeviceUnreachable, match="forbids forwarding") as caught:
        open_session(_device(tmp_path, sshd, config))
    assert "restrict,port-forwarding" in caught.value.next_step
    wait_until(lambda: not gate.sessions(), "the end of the connections to the bastion")


def test_a_bastion_that_dies_is_a_lost_link(tmp_path: Path, sshd: Sshd, gate: Sshd) -> None:
    """The end of the bastion ends the session with LinkLost, and with it the agent on the device."""
    device = _device(tmp_path, sshd, _block("board", sshd, "ProxyJump gate") + _block("gate", gate))
    with open_session(device) as session:
        session.acquire("the test")
        session.put(PROBE)
        with pytest.raises(LinkLost):
            for _ in session.run([Visit("p", 100_000, 1)] * 1000):
                gate.kill_sessions()
    wait_until(lambda: not sshd.sessions(), "the end of the connection behind the bastion")


# Key agents -----------------------------------------------------------------------------------------------------


@contextmanager
def _key_agent(folder: Path, *keys: Path) -> Iterator[Path]:
    """A real ssh-agent that holds these keys, whose passphrase is UNLOCKS; yields its socket."""
    path = folder / "agent.sock"
    ask = folder / "ask.sh"
    ask.write_text(f"#!/bin/sh\necho '{UNLOCKS}'\n")
    ask.chmod(0o700)
    environment = {**os.environ, "SSH_AUTH_SOCK": str(path), "SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"}
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: _answers(path), "the agent")
            for key in keys:
                subprocess.run(["ssh-add", "-q", str(key)], env=environment, check=True, stdin=subprocess.DEVNULL)
            yield path
        finally:
            process.terminate()


def _answers(path: Path) -> bool:
    """Return whether an agent accepts connections: its socket exists a moment before."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def _locked_key(path: Path, kind: str = "ed25519") -> Path:
    command = [
        "ssh-keygen",
        "-q",
        "-t",
        kind,
        *(["-b", "2048"] if kind == "rsa" else []),
        "-N",
        UNLOCKS,
        "-C",
        "",
        "-f",
        str(path),
    ]
    subprocess.run(command, check=True)
    return path


@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
def test_a_key_with_a_passphrase_through_a_named_agent(tmp_path: Path, sshd: Sshd, kind: str) -> None:
    """The agent that devices.toml names signs; the private key is never read, and may be absent."""
    key = _locked_key(tmp_path / "locked", kind)
    other = _locked_key(tmp_path / "other")
    agent_line = authorized_keys_line("board", sshd.device().transport).rpartition(" ssh-")[0]
    assert agent_line.startswith("restrict")
    sshd.authorized_keys.write_text(
        sshd.authorized_keys.read_text().rpartition(" ssh-")[0] + " " + key.with_suffix(".pub").read_text()
    )
    with _key_agent(tmp_path, other, key) as path:
        for identity in (key, key.with_suffix(".pub")):
            assert _measure(sshd.device(identity=identity, key_agent=path)) == 15
        key.unlink()
        device = sshd.device(identity=key, key_agent=path)
        assert _measure(device) == 15
        assert key.with_suffix(".pub").read_text().split()[1] in authorized_keys_line("board", device.transport)
    assert _accepted(sshd) == 3


def test_the_only_key_of_an_agent_needs_no_name(tmp_path: Path, sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an identity the agent's only key is used; key_agent = "SSH_AUTH_SOCK" is the agent of the session."""
    key = _locked_key(tmp_path / "locked")
    sshd.authorized_keys.write_text(
        sshd.authorized_keys.read_text().rpartition(" ssh-")[0] + " " + key.with_suffix(".pub").read_text()
    )
    config = _block("board", sshd).replace(f"IdentityFile {sshd.identity}", "IdentityFile none")
    device = _device(tmp_path, sshd, config, 'key_agent = "SSH_AUTH_SOCK"\n')
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with pytest.raises(ConfigurationError, match="SSH_AUTH_SOCK is not set"):
        open_session(device)
    with _key_agent(tmp_path, key) as path:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        assert _measure(device) == 15


def test_no_agent_is_asked_unless_it_is_named(tmp_path: Path, sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key with a passphrase is refused though the session's agent holds it: devices.toml does not name the agent."""
    key = _locked_key(tmp_path / "locked")
    with _key_agent(tmp_path, key) as path:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        with pytest.raises(ConfigurationError, match=r"devices\.board\.identity.*cannot be used") as caught:
            open_session(sshd.device(identity=key))
    assert "key_agent" in caught.value.next_step and caught.value.fault == "user"


def test_agents_that_do_not_help_are_errors_of_the_user(tmp_path: Path, sshd: Sshd) -> None:
    """No agent, no key, several keys, another key: each error says which, and how to add the key."""
    key, other = _locked_key(tmp_path / "locked"), _locked_key(tmp_path / "other")
    with pytest.raises(ConfigurationError, match="does not answer") as caught:
        open_session(sshd.device(identity=key, key_agent=tmp_path / "none.sock"))
    assert "ssh-agent -a" in caught.value.next_step
    with _key_agent(tmp_path) as path:
        with pytest.raises(ConfigurationError, match="holds 0 keys"):
            open_session(sshd.device(identity=None, key_agent=path))
        environment = {**os.environ, "SSH_AUTH_SOCK": str(path), "SSH_ASKPASS": str(tmp_path / "ask.sh")}
        environment["SSH_ASKPASS_REQUIRE"] = "force"
        subprocess.run(["ssh-add", "-q", str(other)], env=environment, check=True, stdin=subprocess.DEVNULL)
        with pytest.raises(ConfigurationError, match="does not hold the identity of board") as caught:
            open_session(sshd.device(identity=key, key_agent=path))
        assert f"ssh-add {key}" in caught.value.next_step
        with pytest.raises(ConfigurationError, match="public half"):
            open_session(sshd.device(identity=tmp_path / "absent", key_agent=path))
        subprocess.run(["ssh-add", "-q", str(key)], env=environment, check=True, stdin=subprocess.DEVNULL)
        with pytest.raises(ConfigurationError, match=r"does not hold exactly one key.*holds 2 keys"):
            open_session(sshd.device(identity=None, key_agent=path))
        with pytest.raises(AuthenticationError, match="refused the identity"):
            open_session(sshd.device(identity=other, key_agent=path))
    assert _accepted(sshd) == 0


@pytest.mark.parametrize("answer", [b"\0\0\0\1\5", b"\0\0\0\5\x0c\0\0\0\7", b""])
def test_a_socket_that_is_no_agent_is_refused(tmp_path: Path, sshd: Sshd, answer: bytes) -> None:
    """Refusals and garbage instead of an agent's answer are errors, not tracebacks."""
    path = tmp_path / "fake.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            stream, _ = server.accept()
            with stream:
                stream.recv(100)
                stream.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(ConfigurationError, match="does not answer"):
            open_session(sshd.device(key_agent=path))
        thread.join(300)
