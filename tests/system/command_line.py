"""The command line as its users meet it: a subprocess in a temporary workspace."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

TIMEOUT_S = float(os.environ.get("SYSTEM_TEST_TIMEOUT_S", "60"))


@dataclass(frozen=True)
class Outcome:
    """What one command left behind."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object that stdout holds, and nothing beside it."""
        found = json.loads(self.stdout, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
        assert isinstance(found, dict) and found["schema_version"] == 1
        return found

    def __str__(self) -> str:
        return f"exit {self.code}\n--- stdout\n{self.stdout[:3000]}\n--- stderr\n{self.stderr[:3000]}"

    def assert_plain(self) -> None:
        """Nothing that moves a cursor, and no traceback, reached the terminal."""
        for text in (self.stdout, self.stderr):
            raw = sorted({character for character in text if not (character.isprintable() or character == "\n")})
            assert not raw, f"control characters {raw!r} reached the terminal\n{self}"
        assert "Traceback" not in self.stderr, str(self)
        assert "a bug" not in self.stderr, str(self)

    def assert_ok(self) -> Outcome:
        """The command succeeded."""
        assert self.code == 0, str(self)
        self.assert_plain()
        return self

    def assert_refused(self, *codes: int, mentions: tuple[str, ...] = ()) -> Outcome:
        """One clear error with one of these exit codes, that mentions each of the words."""
        assert self.code in codes, str(self)
        self.assert_plain()
        said = [line for line in self.stderr.splitlines() if line.lower().startswith("error:")]
        assert len(said) == 1 and len(said[0]) > len("error: "), f"not exactly one error\n{self}"
        assert self.stdout == "", f"an error with a result\n{self}"
        for word in mentions:
            assert word.lower() in self.stderr.lower(), f"{word!r} is not mentioned\n{self}"
        return self


@dataclass(frozen=True)
class Harness:
    """Runs `harness` in one workspace."""

    workspace: Path
    runtime: Path
    home: Path
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of every command: leases and home folder of the test, no telemetry."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HARNESS_", "PYTHON"))}
        own = {"HARNESS_RUNTIME_FOLDER": str(self.runtime), "HOME": str(self.home), "ORT_DISABLE_TELEMETRY": "1"}
        return {**kept, **own, "LC_ALL": "C.UTF-8", "XDG_CACHE_HOME": str(self.home / ".cache"), **self.extra}

    def start(self, *arguments: str | Path, **options: Any) -> subprocess.Popen[str]:
        """Starts a command in a process group of its own, as a shell does."""
        return subprocess.Popen(
            [sys.executable, "-m", "harness", *map(str, arguments)], cwd=self.workspace, env=self.environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
            encoding="utf-8", errors="backslashreplace", **options,
        )  # fmt: skip

    def __call__(self, *arguments: str | Path, **options: Any) -> Outcome:
        """Runs a command to its end."""
        process = self.start(*arguments, **options)
        try:
            stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            pytest.fail(f"harness {' '.join(map(str, arguments))} hangs")
        return Outcome(process.returncode, stdout, stderr)

    def state(self) -> dict[str, str]:
        """Hash of every file of the workspace, by relative path."""
        return {
            str(path.relative_to(self.workspace)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(self.workspace.rglob("*"))
            if path.is_file() and not path.is_symlink() and not _leftover(path)
        }

    def kept(self) -> dict[str, str]:
        """Hash of every file of the journal and of the tables."""
        return {name: digest for name, digest in self.state().items() if name.startswith((".harness/", "lut/"))}

    def query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Rows of the journal."""
        path = self.workspace / ".harness" / "journal.sqlite"
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as journal:
            return journal.execute(sql, values).fetchall()

    @property
    def table(self) -> Path:
        """The folder of the only table."""
        (found,) = (path.parent for path in self.workspace.glob("lut/*/*/manifest.json"))
        return found


def _leftover(path: Path) -> bool:
    """What a reader of the journal, such as these tests, leaves beside it: an empty log and its index."""
    return path.name.endswith("-shm") or (path.name.endswith("-wal") and path.stat().st_size == 0)


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of the condition."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.01)
    return pytest.fail(f"waited in vain for {what}")
