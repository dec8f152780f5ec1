"""Run a command that compiles a file in a process with limits: what a small file may cost is known beforehand.

A command works on the network long after it was read: it compiles, times and computes values. Its results are values of
many types, so the process does all of it and prints, and this one only waits for it.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import typer

from harness.cli.terminal.output import erase_line
from harness.errors import ErrorRecord, HarnessError, record_of
from harness.network.reading.limits import NPU, Limits
from harness.text import printable, shortened

Command = Callable[..., None]
_MAX_TEXT = 4000
_TASK = "to compile or run"


def limited(runs: int = 1) -> Callable[[Command], Command]:
    """Return a decorator that runs a command on a file within limits; built-in networks have none.

    `runs` is how many times the processor time of one compilation the command may take.
    """

    def around(command: Command) -> Command:
        @functools.wraps(command)
        def run(**values: Any) -> None:
            from harness.network.model_references import is_builtin

            # With other threads a fork could inherit a lock for ever; the program itself has none here.
            if is_builtin(values["model"]) or threading.active_count() > 1:
                command(**values)
            else:
                _run_in_child(lambda: command(**values), values["model"], NPU.limits(runs=runs))

        return run

    return around


def _run_in_child(command: Callable[[], None], reference: str, limits: Limits) -> None:
    """Run a command in a child; raises its error, or UnsupportedNetwork if it exceeded a limit."""
    from harness.network.reading.limited_process import answer_of_command

    # Each thread of a library counts as memory; small matrices gain nothing from threads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    answer = None
    try:
        answer = answer_of_command(
            lambda: json.dumps(_ended(command)).encode() + b"\n", limits, lambda sent: sent.endswith(b"\n")
        )
    finally:
        if answer is None or not answer.content:
            erase_line()  # that the process could not erase
    shown = printable(reference, 200)
    if answer.is_out_of_time:
        raise NPU.too_slow(shown, _TASK, answer.time(limits), limits)
    if not answer.content:
        why = f"A library may have crashed ({signal.Signals(answer.signal).name})" if answer.signal else ""
        raise NPU.too_large(shown, _TASK, limits, why)
    found = json.loads(answer.content)
    kind = found["kind"]
    if kind == "memory":
        raise NPU.too_large(shown, _TASK, limits)
    if kind == "exit" and found["code"]:
        raise typer.Exit(found["code"])
    if kind == "pipe":
        raise BrokenPipeError
    if kind == "system":
        raise OSError(*found["arguments"])
    if kind == "bug":
        raise RuntimeError(f"in the process with limits:\n{found['text']}")
    if kind == "error":
        raise ErrorRecord(**found["error"]).error()


def _ended(command: Callable[[], None]) -> dict[str, Any]:
    """Run a command in the child and return how it ended."""
    try:
        command()
        sys.stdout.flush()
    except typer.Exit as end:
        sys.stdout.flush()
        return {"kind": "exit", "code": end.exit_code}
    except HarnessError as error:
        if _is_about_memory(error):
            return {"kind": "memory"}
        return {"kind": "error", "error": asdict(record_of(error, _MAX_TEXT))}
    except MemoryError:
        return {"kind": "memory"}
    except BrokenPipeError:
        return {"kind": "pipe"}
    except OSError as error:
        text = shortened(error.strerror or str(error))[:_MAX_TEXT]
        return {"kind": "system", "arguments": [error.errno, text] if error.errno else [text]}
    except Exception:
        return {"kind": "bug", "text": traceback.format_exc()[-_MAX_TEXT:]}
    return {"kind": "exit", "code": 0}


def _is_about_memory(error: BaseException | None) -> bool:
    """Return whether a library had too little memory, whatever became of its exception."""
    from harness.host_runtime import is_shortage

    while error is not None:
        if isinstance(error, Exception) and not isinstance(error, HarnessError) and is_shortage(error):
            return True
        error = error.__cause__
    return False
