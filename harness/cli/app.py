"""The program `harness`: assembles the commands, and turns errors into messages and exit codes."""

from __future__ import annotations

import contextlib
import importlib
import io
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Annotated, Any

import typer

from harness.cli.options.arguments import remember
from harness.cli.options.result_files import ResultCommand
from harness.cli.terminal.output import discard, note, print_error
from harness.errors import (
    CHECK_FILE,
    ConfigurationError,
    DamagedFileWarning,
    HarnessError,
    InputError,
    Interrupted,
    bug,
)
from harness.files import FULL
from harness.version import VERSION

EXIT_CODES = """
Exit codes: 0 ok, 1 a bug, 2 usage, 3 invalid file or setting, 4 device unreachable or busy,
5 measurement unstable or incomplete, 6 layers not in the table, 7 regression found, 130 interrupted,
141 the reader closed the output early.
"""

_COMMANDS = ("demo", "profile", "estimate", "validate", "report", "compare", "benchmark", "trace", "worker")
_GROUPS = ("lut", "journal", "npu", "devices", "agent", "nightly")
"""Each is a module of `harness.cli`; a command is a function of its module's name, a group is the module's `app`."""

_CLOSED_PIPE = 128 + signal.SIGPIPE
"""The exit code that a shell reports for SIGPIPE; 0 would hide that a verdict such as 7 was never reached."""

_debug = False
_interrupted: Interrupted | None = None


def _print_version(is_given: bool) -> None:
    if is_given:
        print(VERSION)
        raise typer.Exit


def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback with every error.")] = False,
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    global _debug
    _debug = debug


def program(words: Sequence[str] = ()) -> typer.Typer:
    """Return the program with the command that these words name, with all if they name none.

    The modules of all commands together take longer to load than a short command to run.
    """
    app = typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Measure how long each layer of a neural network takes on a device, and predict whole networks from it.",
        epilog=EXIT_CODES,
    )
    app.callback()(_options)
    named = next((word for word in words if not word.startswith("-")), "")
    everything = (*_COMMANDS, *_GROUPS)
    for name in (named,) if named in everything else everything:
        module = importlib.import_module(f"harness.cli.{name}")
        if name in _COMMANDS:
            app.command(name)(getattr(module, name))
        else:
            app.add_typer(module.app, name=name)
    _check_results(app)
    return app


def _check_results(app: typer.Typer) -> None:
    for info in app.registered_commands:
        info.cls = ResultCommand
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _check_results(group.typer_instance)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; always ends by SystemExit."""
    global _interrupted
    _interrupted = None
    remember(sys.argv[1:] if arguments is None else arguments)
    signal.signal(signal.SIGINT, _interrupt)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without ± shows a question mark
            stream.reconfigure(errors="replace")
    try:
        try:
            with _warnings_as_notes():
                program(sys.argv[1:] if arguments is None else arguments)(arguments, prog_name="harness")
        except SystemExit as end:
            if isinstance(end.__context__, BrokenPipeError):  # click's own code for it is 1
                raise end.__context__ from None
            raise
        finally:
            sys.stdout.flush()
    except HarnessError as error:
        _end(error, error)
    except BrokenPipeError:  # the reader of the output has closed it
        discard(sys.stdout)
        sys.exit(_CLOSED_PIPE)
    except OSError as error:
        discard(sys.stdout)
        full = "Free space on the disk, or write to another one"
        step = full if error.errno in FULL else CHECK_FILE
        _end(ConfigurationError("A file cannot be read or written", why=str(error), next_step=step), error)
    except MemoryError as error:
        step = "Use a smaller network, or give the command more memory"
        _end(InputError("There is not enough memory for this", why=str(error), next_step=step), error)
    except Exception as error:  # a library may turn an interrupt inside of it into an error of its own
        _end(_interrupted or bug(error), error)


@contextlib.contextmanager
def _warnings_as_notes() -> Iterator[None]:
    """Print warnings of harness as lines on stderr, each once."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def shown(message: Warning | str, category: type[Warning], *place: Any, **also: Any) -> None:
            if issubclass(category, DamagedFileWarning):
                note(f"warning: {message}")
            else:
                show(message, category, *place, **also)

        warnings.showwarning = shown
        warnings.simplefilter("default", DamagedFileWarning)
        yield


def _interrupt(_signal: int, _frame: FrameType | None) -> Any:
    global _interrupted
    _interrupted = Interrupted("Interrupted")
    raise _interrupted


def _end(error: HarnessError, cause: BaseException) -> None:
    try:
        if _debug:
            traceback.print_exception(cause)
        print_error(error)
    except BrokenPipeError:  # nobody reads the error; the exit code still reports it
        discard(sys.stderr)
    sys.exit(error.exit_code)
