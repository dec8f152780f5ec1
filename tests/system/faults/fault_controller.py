"""A process that has imported `harness` and runs each command in a fork of itself, with a fault.

Reads orders as lines of JSON from standard input and answers each with one line. A fork may send itself a signal
at a step of the journal: before its n-th commit of something written, or after it. It may live with shorter deadlines,
and with a limit on the size of the files that it writes.
"""

import dataclasses
import functools
import json
import os
import resource
import sqlite3
import sys
from typing import Any


class _Journal(sqlite3.Connection):
    """A connection that counts commits and sends a signal at one of them.

    The end of a transaction that only reads is no commit.
    """

    at = 0
    number = 0
    moment = "before"
    commits = 0
    writes = False

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        """Executes a statement, and sends the signal at its commit."""
        if sql.startswith("BEGIN"):
            self.writes = sql == "BEGIN IMMEDIATE"
        if sql != "COMMIT" or not self.writes:
            return super().execute(sql, *values)
        _Journal.commits += 1
        if (_Journal.commits, _Journal.moment) == (_Journal.at, "before"):
            os.kill(os.getpid(), _Journal.number)
        cursor = super().execute(sql, *values)
        if (_Journal.commits, _Journal.moment) == (_Journal.at, "after"):
            os.kill(os.getpid(), _Journal.number)
        return cursor


def _run(order: dict[str, Any]) -> None:
    """Run one command in the fork, to its end."""
    os.setsid()
    os.chdir(order["folder"])
    os.environ.update(order["environment"])
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for stream, target in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
        os.dup2(target, stream)
    _Journal.at, _Journal.number, _Journal.moment = order["at"], order["signal"], order["moment"]
    sqlite3.connect = functools.partial(sqlite3.connect, factory=_Journal)  # type: ignore[assignment]
    if order["lease_ttl_s"]:
        from harness.device import session

        short = dataclasses.replace(session.Deadlines(), lease_ttl_s=order["lease_ttl_s"], margin_s=0.5)
        session.Deadlines = lambda: short  # type: ignore[assignment,misc]
    if order["file_bytes"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_bytes"], resource.RLIM_INFINITY))
    if order["arguments"]:
        from harness.__main__ import main

        sys.argv = ["harness", *order["arguments"]]
        main()
    else:
        _profile(order)


def _profile(order: dict[str, Any]) -> None:
    """Run the campaign alone, without golden probes."""
    from harness.device.inventory import find_device, load_inventory
    from harness.device.session import open_session
    from harness.errors import HarnessError
    from harness.measure.device_run import leased_run
    from harness.measure.journal.journal import Journal
    from harness.measure.policy import RepeatPolicy
    from harness.measure.profiling import profile_networks
    from harness.measure.request import ProfileRequest
    from harness.workspace import find_workspace

    request = ProfileRequest("bench", ("chain.onnx",), policy=RepeatPolicy(runs=order["runs"]))
    try:
        workspace = find_workspace()
        device, networks = find_device(load_inventory(workspace.devices), "bench"), request.networks()
        with (
            open_session(device) as session,
            Journal(workspace.journal) as journal,
            leased_run(session, device, journal) as run,
        ):
            profile_networks(run, networks, request)
    except HarnessError as error:
        print(f"{type(error).__name__}: {error}")
        sys.exit(error.exit_code)


def _serve() -> None:
    from harness.cli.app import program

    program()
    import harness.measure.profiling  # noqa: F401

    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            _, status = os.waitpid(order["wait"], os.WUNTRACED)
            print(status, flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                _run(order)
                code = 0
            except SystemExit as left:
                code = left.code if isinstance(left.code, int) else 1
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        print(pid, flush=True)


if __name__ == "__main__":
    _serve()
