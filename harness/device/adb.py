"""The agent on a device at the end of adb, the Android debug bridge.

`adb push` copies the agent, and `adb shell -T` starts it: with the shell protocol of Android 7 and newer, standard
input, output and errors are separate streams of plain bytes.
"""

import os
import posixpath
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import NoReturn

from device_agents.child_processes import follow, kill_group
from harness.device.bundle import Bundle, build_bundle
from harness.device.inventory import Adb
from harness.device.local import LocalConnection, start_process
from harness.errors import (
    AuthenticationError,
    ConfigurationError,
    DeviceError,
    DeviceUnreachable,
    HarnessError,
    reason_of,
)
from harness.text import last_part

_PUSH_S = 120.0
_MOST_BYTES = 1 << 20
"""What adb may print: states, features, hashes and messages."""
_SHELL_PROTOCOL = "shell_v2"
_STATES = {
    "unauthorized": "Unlock the device and allow debugging by this computer on its screen",
    "authorizing": "Unlock the device and allow debugging by this computer on its screen",
    "no permissions": "Allow this user to open the USB device: install the udev rules for Android, or join plugdev",
    "offline": "Reconnect the device; over a network run `adb disconnect` and `adb connect` again",
    "not found": "List the devices with `adb devices`; connect one over a network with `adb connect HOST:PORT`",
}
"""What adb reports about a device that cannot be used, and what helps; the first three are a matter of permission."""
_FORBIDDEN = ("unauthorized", "authorizing", "no permissions")


def start_over_adb(name: str, settings: Adb) -> LocalConnection:
    """Push the agent to a device unless it has it, and start it; raises a DeviceError or ConfigurationError."""
    bridge = _Bridge(name, settings)
    bridge.check()
    bundle = build_bundle()
    path = posixpath.join(settings.folder, posixpath.basename(bundle.path))
    bridge.install(bundle, path)
    folder = settings.folder
    # Android has neither /tmp nor a home folder that the user of adb may write to.
    surroundings = [f"HARNESS_RUNTIME_FOLDER={folder}/leases", f"HOME={folder}", f"TMPDIR={folder}"]
    command = shlex.join(["env", *surroundings, settings.python, path])
    return start_process(f"The agent on {name}", bridge.words("shell", "-T", command))


class _Bridge:
    """adb's command line for one device."""

    def __init__(self, name: str, settings: Adb) -> None:
        self._name = name
        self._settings = settings

    def words(self, *arguments: str) -> list[str]:
        """The command for this device."""
        return [self._settings.adb, "-s", self._settings.serial, *arguments]

    def check(self) -> None:
        """Raise an error unless the device answers and has the shell protocol."""
        self._run([self._settings.adb, "start-server"], self._settings.connect_timeout_s)
        state = self._ask("get-state")
        if state.returncode or state.stdout.strip() != "device":
            self._refuse(state.stderr or state.stdout)
        features = self._ask("features")
        if features.returncode:
            self._refuse(features.stderr)
        if _SHELL_PROTOCOL not in features.stdout.split():
            what = f"{self._name} has no {_SHELL_PROTOCOL}, adb's protocol for streams of bytes"
            step = "Use Android 7 or newer and a recent adb"
            raise DeviceUnreachable(what, next_step=step)

    def install(self, bundle: Bundle, path: str) -> None:
        """Copy the agent unless the device has it; its name holds its hash, and what arrives is compared with it."""
        if self._hash(path) == bundle.sha256:
            return
        part = f"{path}.{os.urandom(6).hex()}.part"
        self._shell(["mkdir", "-p", posixpath.dirname(path)])
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "agent.pyz"
            source.write_bytes(bundle.content)
            pushed = self._ask("push", str(source), part, timeout_s=_PUSH_S)
        if pushed.returncode:
            self._cannot_copy(pushed.stderr or pushed.stdout)
        if self._hash(part) != bundle.sha256:
            self._ask("shell", "-T", shlex.join(["rm", "-f", part]))
            self._cannot_copy("the file on the device reads back differently")
        self._shell(["mv", "-f", part, path])

    def _hash(self, path: str) -> str:
        done = self._ask("shell", "-T", shlex.join(["sha256sum", path]))
        return done.stdout.split(" ")[0].strip() if done.returncode == 0 else ""

    def _shell(self, words: list[str]) -> None:
        done = self._ask("shell", "-T", shlex.join(words))
        if done.returncode:
            self._cannot_copy(done.stderr)

    def _cannot_copy(self, why: str) -> NoReturn:
        step = f"Set folder to one on the device that adb's user may write to; it is {self._settings.folder}"
        what = f"The agent cannot be copied to {self._name}"
        raise DeviceUnreachable(what, why=last_part(why.strip(), 200), next_step=step)

    def _refuse(self, said: str) -> NoReturn:
        text = last_part(said.strip(), 200) or "adb printed nothing"
        what = f"{self._name} ({self._settings.serial}) is not reachable"
        for state, step in _STATES.items():
            if state in text:
                kind: type[DeviceError] = AuthenticationError if state in _FORBIDDEN else DeviceUnreachable
                what = f"{self._name} does not allow debugging by this computer" if state in _FORBIDDEN else what
                raise kind(what, why=text, next_step=step)
        step = "Start Android on the device, with USB debugging enabled in the developer options"
        raise DeviceUnreachable(what, why=text, next_step=step)

    def _ask(self, *arguments: str, timeout_s: float | None = None) -> subprocess.CompletedProcess[str]:
        return self._run(self.words(*arguments), timeout_s or self._settings.connect_timeout_s)

    def _run(self, words: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        try:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            raise self._no_tool(error) from None
        outputs = [bytearray(), bytearray()]
        problem = "was interrupted"
        with process:
            try:
                problem = follow(process, outputs, timeout_s, _MOST_BYTES)
            finally:
                if problem:  # otherwise only the server of adb may be left, which is meant to stay
                    kill_group(process.pid)
        if problem:
            why = f"`adb {words[-1] if len(words) == 2 else words[3]}` {problem}"
            step = "Reconnect the device, or restart the server of adb with `adb kill-server`"
            raise DeviceUnreachable(f"{self._name} is not reachable", why=why, next_step=step)
        output, errors = (one.decode("utf-8", "replace") for one in outputs)
        return subprocess.CompletedProcess(words, process.returncode, output, errors)

    def _no_tool(self, error: OSError) -> HarnessError:
        what = f"devices.{self._name}.adb: {self._settings.adb} cannot be started"
        step = 'Install the platform tools of Android, or name the program: adb = "/path/to/adb"'
        return ConfigurationError(what, why=reason_of(error), next_step=step)
