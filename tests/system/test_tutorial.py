"""docs/tutorial.md: its commands run as they stand, against a real sshd, and print what the page shows."""

import contextlib
import getpass
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sshd_server import Sshd, running_sshd

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"```sh\n(.*?)```(?:\n+```text\n(.*?)```)?", re.DOTALL)
_NUMBER = re.compile(r"[-+]?\d[\d.,:]*(?:e[-+]?\d+)?%?")
# The account of the board: a home folder of the test's own, and packages that need no download.
_ACCOUNT = """\
#!/bin/sh
export HOME={home} PATH={programs}:$PATH PYTHONPATH={packages} PIP_NO_INDEX=1
cd "$HOME" && exec /bin/sh -c "${{1:-$SSH_ORIGINAL_COMMAND}}"
"""
_SSH = """\
#!/bin/sh
exec /usr/bin/ssh -F none -i {identity} -o UserKnownHostsFile={known_hosts} -o LogLevel=ERROR "$@"
"""


class Block(NamedTuple):
    """Commands of the page, and what the page says they print."""

    commands: str
    printed: str


class Board(NamedTuple):
    """The sshd in the part of the reader's board."""

    server: Sshd
    account: Path

    def obey_authorized_keys(self) -> None:
        """Make sshd accept the keys that the reader wrote, each inside the home folder of the test."""
        file = self.server.home / ".ssh" / "authorized_keys"
        lines = file.read_text().splitlines() if file.exists() else []
        self.server.authorized_keys.write_text("".join(f"{self._confined(line)}\n" for line in lines))

    def _confined(self, line: str) -> str:
        forced = re.fullmatch(r'restrict,command="([^"]+)" (.*)', line)
        command = f"{self.account} {shlex.quote(forced[1])}" if forced else str(self.account)
        return f'restrict,command="{command}" {forced[2] if forced else line}'


def _script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o700)
    return path


UNSTABLE = 5
"""The exit code of a comparison that the machine's noise hides."""


def _masked(text: str) -> list[str]:
    """The lines of a text without numbers, hashes, keys, and the widths of columns."""
    text = re.sub(r"\b(?=\w*\d)[0-9a-f]{8,}\b|AAAA\S+|SHA256:\S+", "HASH", text)
    return [" ".join(_NUMBER.sub("0", line).split()) for line in text.splitlines()]


@contextlib.contextmanager
def _a_board(folder: Path, leases: Path) -> Iterator[Board]:
    """A board whose account accepts the reader's usual key, and has numpy and onnxruntime within pip's reach."""
    with running_sshd(folder / "sshd", leases) as server:
        (folder / "sshd" / "programs").mkdir()
        (folder / "sshd" / "programs" / "python3").symlink_to(sys.executable)
        values = {"programs": folder / "sshd" / "programs", "packages": sysconfig.get_paths()["purelib"]}
        account = _script(folder / "sshd" / "account", _ACCOUNT.format(home=server.home, **values))
        (server.home / ".ssh").mkdir()
        (server.home / ".ssh" / "authorized_keys").write_text(server.identity.with_suffix(".pub").read_text())
        yield Board(server, account)


def _environment(folder: Path, server: Sshd) -> dict[str, str]:
    """The reader's environment: harness, and ssh with the reader's usual key."""
    ssh = _script(folder / "ssh", _SSH.format(identity=server.identity, known_hosts=server.known_hosts))
    path = f"{ssh.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "HOME": str(folder), "LC_ALL": "C.UTF-8"}


def test_every_command_of_the_tutorial_works(tmp_path: Path, runtime_folder: Path) -> None:
    """From an empty folder, the page's commands end with a validated estimate, and print the lines that it shows."""
    naming, *blocks = [Block(*found) for found in _BLOCK.findall(PAGE)]
    assert "export BOARD=" in naming.commands
    assert len(blocks) == 11 and sum(bool(block.printed) for block in blocks) == 8
    workspace = tmp_path / "reader"
    workspace.mkdir()
    with _a_board(tmp_path, runtime_folder) as board:
        environment = _environment(tmp_path, board.server)
        named = f"export BOARD=127.0.0.1 PORT={board.server.port} LOGIN={getpass.getuser()}\n"
        for block in blocks:
            board.obey_authorized_keys()
            words = ["bash", "-euo", "pipefail", "-c", named + block.commands]
            done = subprocess.run(words, cwd=workspace, env=environment, capture_output=True, text=True, timeout=600)
            for _ in range(5):
                if done.returncode != UNSTABLE or not re.search(r"(speed|latency) of board .*changed", done.stderr):
                    break  # else the page advises to run the command again
                done = subprocess.run(words, cwd=workspace, env=environment, capture_output=True, text=True)
            if done.returncode == UNSTABLE and "The machine is noisy" in done.stderr:
                continue  # the page says what this means
            assert done.returncode == 0, f"{block.commands}\n{done.stdout}\n{done.stderr}"
            _assert_shown(block, done.stdout.replace(str(workspace), "~/board"))
        (bound,) = [line for line in board.server.authorized_keys.read_text().splitlines() if "pyz" in line]
        assert bound.startswith("restrict,command=")


def _assert_shown(block: Block, printed: str) -> None:
    """Each line of the page is printed, in the same order; a busy machine may print more."""
    lines = iter(_masked(printed))
    for line in _masked(block.printed.replace("board.lab", "127.0.0.1").replace(" lab ", f" {getpass.getuser()} ")):
        assert line in lines, f"{block.commands}\nprints no line {line!r}:\n{printed}"
