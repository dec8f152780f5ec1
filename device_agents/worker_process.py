"""Start, kill and reap the worker process, and read the end of its output."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from typing import IO, Dict, Tuple

from device_agents import result_cache

_TAIL_BYTES = 2000
_OUTPUT_BYTES = 1 << 20
_PREFIX = "harness-worker-"
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class WorkerProcess:
    """One worker with its socket, private folder and output file."""

    def __init__(self) -> None:
        """Start the worker. Call this in the main thread: PR_SET_PDEATHSIG refers to the starting thread."""
        _sweep()
        self.folder, self._lock = _private_folder()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by dispose()
        self.socket, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "device_agents", "worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                cwd=self.folder,
                env=_environment(self.folder),
                start_new_session=True,  # a separate group, so that processes of a runtime die with it
            )
        except BaseException:
            self._discard()
            raise
        finally:
            theirs.close()
        self.socket.setblocking(False)

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its process group."""
        return self._process.pid

    def kill_now(self) -> None:
        """Send SIGKILL to the whole group, without waiting; never signals a process id that was reused."""
        if self._process.returncode is None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except OSError:  # it has ended, or its group does not exist yet
                self._process.kill()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end and reap the process; returns whether it has ended."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def ending(self) -> str:
        """Describe how the process ended."""
        code = self._process.returncode
        if code is None:
            return "still running"
        return "exit code %d" % code if code >= 0 else signal_name(-code)

    def tail(self) -> str:
        """Return the end of what the worker and its runtime printed."""
        return tail_of(self._output)

    def trim(self) -> None:
        """Keep the output file small, because a runtime may print a line per run."""
        if os.fstat(self._output.fileno()).st_size > _OUTPUT_BYTES:
            # The worker shares this file description and its offset.
            os.ftruncate(self._output.fileno(), 0)
            os.lseek(self._output.fileno(), 0, os.SEEK_SET)

    def dispose(self) -> None:
        """Kill and reap the worker and remove its folder; a second call does nothing."""
        self.kill_now()
        self._process.wait()
        self._discard()

    def _discard(self) -> None:
        self.socket.close()
        self._output.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def signal_name(number: int) -> str:
    """Return the name of a signal, for example "signal SIGKILL", or its number if it has no name."""
    try:
        return "signal %s" % signal.Signals(number).name
    except ValueError:
        return "signal %d" % number


def tail_of(output: IO[bytes]) -> str:
    """Return the end of what a process printed into a file; empty if the file is closed."""
    try:
        size = os.fstat(output.fileno()).st_size
        text = os.pread(output.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
    except (OSError, ValueError):
        return ""
    return text.decode("utf-8", "replace").strip()


def import_path() -> str:
    """Return a PYTHONPATH that begins with the folder or zip file that contains this package."""
    parent = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return os.pathsep.join(filter(None, (parent, os.environ.get("PYTHONPATH"))))


def _private_folder() -> Tuple[str, int]:
    """Return a new folder of mode 0700, and a lock on it that lasts as long as this process."""
    while True:
        folder = tempfile.mkdtemp(prefix=_PREFIX)
        try:
            lock = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # another agent swept it before it was opened
            continue
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.isdir(folder):  # no other agent swept it before it was locked
            return folder, lock
        os.close(lock)


def _sweep() -> None:
    """Remove the folders of killed agents of this user."""
    base = tempfile.gettempdir()
    for name in os.listdir(base):
        if not name.startswith(_PREFIX):
            continue
        path = os.path.join(base, name)
        try:
            lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
        except OSError:  # removed by another agent, of another user, or not a folder
            continue
        try:
            if os.fstat(lock).st_uid == os.getuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        except OSError:  # in use
            pass
        finally:
            os.close(lock)


def _environment(folder: str) -> Dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": import_path(),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "ORT_DISABLE_TELEMETRY": "1",
        "TMPDIR": folder,
        result_cache.VARIABLE: result_cache.folder(),  # a relative path counts from the folder of the agent
        **dict.fromkeys(_ONE_THREAD, "1"),
    }
