"""The command line as its users meet it: `harness ARGUMENTS` in a temporary workspace.

Calling a `Harness` runs the command in this process, which saves the start of an interpreter and its imports;
`Harness.process` runs it in a process of its own. Both give the same outcome: `assert_processes_agree` proves it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.__main__ import main

TIMEOUT_S = float(os.environ.get("SYSTEM_TEST_TIMEOUT_S", "300"))
_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)


@dataclass(frozen=True)
class Outcome:
    """The exit code of one command and what it printed."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object that stdout holds, and nothing beside it."""
        found = json.loads(self.stdout, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
        assert isinstance(found, dict) and found["schema_version"] == 1
        return found

    @property
    def data(self) -> dict[str, Any]:
        """The JSON object of a command that succeeded."""
        return self.assert_ok().json

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

    @classmethod
    def in_folder(cls, folder: Path) -> Harness:
        """An empty workspace, lease folder and home folder below `folder`."""
        for name in ("workspace", "runtime", "home"):
            (folder / name).mkdir(parents=True)
        return cls(folder / "workspace", folder / "runtime", folder / "home")

    @property
    def environment(self) -> dict[str, str]:
        """The environment of every command: leases and home folder of the test, caches of the run, no telemetry."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HARNESS_", "PYTHON"))}
        own = {"HARNESS_RUNTIME_FOLDER": str(self.runtime), "HOME": str(self.home), "ORT_DISABLE_TELEMETRY": "1"}
        return {**kept, **own, "LC_ALL": "C.UTF-8", **self.extra}

    def __call__(self, *arguments: str | Path, memory_bytes: int | None = None) -> Outcome:
        """Runs a command to its end in this process, which may take `memory_bytes` more than it has."""
        words = list(map(str, arguments))
        with contextlib.ExitStack() as surroundings:
            surroundings.enter_context(_environment(self.environment))
            surroundings.enter_context(contextlib.chdir(self.workspace))
            surroundings.enter_context(_signal_handlers())
            surroundings.enter_context(_memory_limit(memory_bytes))
            printed = surroundings.enter_context(_captured())
            code = _run_main(words)
        return Outcome(code, *printed)

    def start(self, *arguments: str | Path, **options: Any) -> subprocess.Popen[str]:
        """Starts a command in a process group of its own, as a shell does."""
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(
            [sys.executable, "-m", "harness", *map(str, arguments)],
            cwd=self.workspace,
            env=self.environment,
            start_new_session=True,
            encoding="utf-8",
            errors="backslashreplace",
            **{**streams, **options},
        )

    def process(self, *arguments: str | Path, **options: Any) -> Outcome:
        """Runs a command to its end in a process of its own."""
        process = self.start(*arguments, **options)
        try:
            stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            pytest.fail(f"harness {' '.join(map(str, arguments))} hangs")
        return Outcome(process.returncode, stdout or "", stderr or "")

    def assert_processes_agree(self, *arguments: str | Path) -> Outcome:
        """A process of its own ends with the same exit code and prints the same, letter by letter."""
        here = self(*arguments)
        assert self.process(*arguments) == here
        return here

    def state(self) -> dict[str, str]:
        """Hash of every file of the workspace, by relative path."""
        return {
            str(path.relative_to(self.workspace)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(self.workspace.rglob("*"))
            if path.is_file() and not path.is_symlink() and not _leftover(path)
        }

    def kept(self) -> dict[str, str]:
        """Hash of every file of the journal and of the tables."""
        kept = {name: one for name, one in self.state().items() if name.startswith((".harness/", "lut/"))}
        return {name: digest for name, digest in kept.items() if not name.startswith(".harness/validations/")}

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


def _run_main(words: Sequence[str]) -> int:
    """Runs the entry point as the interpreter would, and returns the exit code of its process."""
    before = sys.argv
    sys.argv = ["harness", *words]
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        sys.argv = before
    return 0


@contextlib.contextmanager
def _environment(environment: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _signal_handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in _HANDLED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _memory_limit(more_bytes: int | None) -> Iterator[None]:
    """Lets this process take so many bytes of address space beyond those that it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if more_bytes is not None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextlib.contextmanager
def _captured() -> Iterator[list[str]]:
    """Standard output and error in files, of Python and of libraries; the texts are in the list at the end."""
    texts: list[str] = []
    before = sys.stdout, sys.stderr
    for stream in before:
        stream.flush()
    with contextlib.ExitStack() as files, warnings.catch_warnings():
        _set_default_warnings()
        captured = [files.enter_context(tempfile.TemporaryFile()) for _ in before]
        saved = [os.dup(1), os.dup(2)]
        for number, file in enumerate(captured, 1):
            os.dup2(file.fileno(), number)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False, buffering=1)
        try:
            yield texts
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.close()
            sys.stdout, sys.stderr = before
            for number, handle in enumerate(saved, 1):
                os.dup2(handle, number)
                os.close(handle)
        for file in captured:
            file.seek(0)
            texts.append(file.read().decode("utf-8", "backslashreplace"))


def _set_default_warnings() -> None:
    """The filters of an interpreter without options."""
    warnings.resetwarnings()
    for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", category)


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
