"""A hostile device behind a real sshd: what it says stays data."""

import logging
import shlex
import sys
from pathlib import Path

import pytest
from nullbench import build_network
from sshd_server import REPOSITORY, Sshd

from harness import build_lut, estimate, profile
from harness.device.inventory import load_inventory
from harness.errors import ConfigurationError, HarnessError
from harness.measure.policy import RepeatPolicy
from harness.workspace import Workspace

MARK = "planted"
HOSTILE_AGENT = """
import sys
from device_agents import agent, backends, fingerprint, worker
from device_agents.__main__ import main

NAMES = {NAMES!r}
plain = fingerprint.hardware
fingerprint.hardware = lambda: {{**plain(), **{{f"fact{{i}}": name for i, name in enumerate(NAMES)}}}}
if sys.argv[1:2] != ["worker"]:
    from device_agents import worker_process as child
    child.sys = type(sys)("sys")
    child.sys.executable = {PROGRAM!r}
sys.exit(main())
"""


@pytest.fixture
def workspace(tmp_path: Path, sshd: Sshd) -> Workspace:
    """Return a workspace with the sshd as device `board`."""
    folder = tmp_path / "workspace"
    folder.mkdir()
    device = sshd.device().transport
    (folder / "devices.toml").write_text(
        '[devices.board]\nbackend = "null"\ntransport = "ssh"\nhost = "127.0.0.1"\nresource = "board"\n'
        f'port = {sshd.port}\nuser = "{device.user}"\n'
        f'identity = "{sshd.identity}"\nknown_hosts = "{sshd.known_hosts}"\n'
    )
    return Workspace(folder)


def files_below(folder: Path) -> dict[str, bytes]:
    """Return every file with its content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def hostile_names(tmp_path: Path) -> list[str]:
    """Return paths that a careless host would write to or read from."""
    return [f"../../{MARK}", str(tmp_path / MARK), f"~/{MARK}", f"C:\\{MARK}", f"{MARK}/../../{MARK}", f"{MARK}\0x"]


def test_names_of_a_device_are_no_paths(workspace: Workspace, sshd: Sshd, tmp_path: Path) -> None:
    """Facts that look like paths pass through campaign, table and estimate as text: no file is created or read."""
    program = tmp_path / "agent.py"
    interpreter = tmp_path / "python"
    program.write_text(HOSTILE_AGENT.format(NAMES=hostile_names(tmp_path), PROGRAM=str(interpreter)))
    # The supervisor starts its worker by `INTERPRETER -m device_agents worker FD`; the hostile one hands on the words.
    interpreter.write_text(f'#!/bin/sh\nshift 2\nexec {shlex.quote(sys.executable)} {shlex.quote(str(program))} "$@"\n')
    interpreter.chmod(0o700)
    path = f"PYTHONPATH={shlex.quote(str(REPOSITORY))}"
    sshd.force(f"env {path} {shlex.quote(sys.executable)} {shlex.quote(str(program))}")
    network = build_network(tmp_path / "chain.onnx", (8, 16), 8, 16)
    profile([str(network)], device="board", workspace=workspace, policy=RepeatPolicy(runs=5))
    table = build_lut("board", workspace=workspace)
    estimate([str(network)], lut=table.path)
    assert any(MARK in value for value in table.fingerprint.values()), "the hostile facts did not arrive"
    assert not [path for path in tmp_path.parent.rglob("*") if MARK in path.name]
    assert not [path for path in (Path.home() / MARK, Path.cwd() / MARK, Path("/tmp") / MARK) if path.exists()]


def test_private_key_is_in_no_file_or_log(
    workspace: Workspace, sshd: Sshd, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After a campaign over SSH, no file of the workspace and no log record contains a line of the key."""
    lines = [line.encode() for line in sshd.identity.read_text().splitlines()[1:-1]]
    assert len(lines) > 2
    network = build_network(tmp_path / "chain.onnx", (8, 16), 8, 16)
    with caplog.at_level(logging.DEBUG):
        profile([str(network)], device="board", workspace=workspace, policy=RepeatPolicy(runs=5))
    assert any(record.name.startswith("paramiko") for record in caplog.records)
    contents = [*files_below(workspace.root).values(), caplog.text.encode()]
    assert not [line for line in lines if any(line in content for content in contents)]


def test_errors_about_a_key_do_not_tell_it(workspace: Workspace, sshd: Sshd) -> None:
    """The error for a damaged private key does not contain its content."""
    first, *middle, last = sshd.identity.read_text().splitlines()
    for lines in ([first, *middle[1:], last], [first, *middle], middle, [first, *reversed(middle), last]):
        sshd.identity.write_text("\n".join(lines))
        with pytest.raises(HarnessError) as refused:
            profile(["builtin:dscnn"], device="board", workspace=workspace)
        texts = "".join(str(part) for part in (refused.value, refused.value.__cause__, refused.value.__context__))
        assert not [line for line in middle if line in texts]


@pytest.mark.parametrize("key", ["password", "passphrase", "private_key", "token"])
def test_configuration_takes_no_secret(key: str, tmp_path: Path) -> None:
    """devices.toml has no key for a secret, and the error for one does not repeat it."""
    path = tmp_path / "devices.toml"
    path.write_text(f'[devices.a]\ntransport = "ssh"\nhost = "h"\nuser = "u"\nidentity = "k"\n{key} = "hunter2"\n')
    with pytest.raises(ConfigurationError) as refused:
        load_inventory(path)
    assert key in str(refused.value) and "hunter2" not in str(refused.value)
