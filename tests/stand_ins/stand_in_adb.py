"""A stand-in for adb with the part of its command line that harness uses; it runs "on the device" what adb would.

`python -I -S stand_in_adb.py FOLDER ARGUMENTS…`: FOLDER holds `state`, which is that of the only device, and
`features`. Exit codes and messages are those of adb 34. Without -T, standard output passes a terminal as on a device.
"""

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

SERIAL = "emulator-5554"
UNAUTHORIZED = """error: device unauthorized.
This adb server's $ADB_VENDOR_KEYS is not set
Try 'adb kill-server' if that seems wrong.
Otherwise check for a confirmation dialog on your device."""


def main(folder: Path, arguments: list[str]) -> int:
    """Run one command of adb and return its exit code."""
    with (folder / "log").open("a") as log:
        log.write(" ".join(arguments) + "\n")
    if arguments == ["start-server"]:
        print("* daemon not running; starting now at tcp:5037", file=sys.stderr)
        return 0
    option, serial, command, *rest = arguments
    assert option == "-s", arguments
    state = (folder / "state").read_text()
    if serial != SERIAL:
        return _fail(f"error: device '{serial}' not found")
    if state == "hangs":
        time.sleep(60)
    if state == "unauthorized":
        return _fail(UNAUTHORIZED)
    if state == "offline":
        return _fail("error: device offline")
    if command == "get-state":
        print(state)
        return 0
    if command == "features":
        print((folder / "features").read_text())
        return 0
    return _push(*rest) if command == "push" else _shell(rest) if command == "shell" else _fail(f"adb: {command}?")


def _fail(message: str) -> int:
    print(message, file=sys.stderr)
    return 1


def _push(source: str, target: str) -> int:
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        return _fail(f"adb: error: failed to copy '{source}' to '{target}': remote {error.strerror}")
    print(f"{source}: 1 file pushed, 0 skipped.")
    return 0


def _shell(words: list[str]) -> int:
    """Run a command in the shell of the device; its streams are relayed, so it outlives this process as on a device."""
    plain = words[0] == "-T"
    command = " ".join(words[1:] if plain else words)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(["/bin/sh", "-c", command], bufsize=0, start_new_session=True, cwd="/", **pipes) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        threading.Thread(target=_relay, args=(0, process.stdin.fileno(), True, process.stdin), daemon=True).start()
        outputs = [
            threading.Thread(target=_relay, args=(process.stdout.fileno(), 1, plain)),
            threading.Thread(target=_relay, args=(process.stderr.fileno(), 2, plain)),
        ]
        for thread in outputs:
            thread.start()
        for thread in outputs:
            thread.join()
        return process.wait()


def _relay(source: int, sink: int, plain: bool, closing: object = None) -> None:
    try:
        while data := os.read(source, 65536):
            rest = memoryview(data if plain else data.replace(b"\n", b"\r\n"))
            while rest:
                rest = rest[os.write(sink, rest) :]
    except OSError:
        pass
    if closing is not None:
        closing.close()  # type: ignore[attr-defined]


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), sys.argv[2:])
    sys.stdout.flush()
    os._exit(code)  # the thread that reads standard input may wait for ever
