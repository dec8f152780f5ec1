"""`harness` and `python -m harness`: the command line."""

import gc
import os
import signal
import sys


def main() -> None:
    """Entry point of the console script; Ctrl-C ends it with 130 also before the commands are loaded.

    When the command is done its exit code stands: Ctrl-C while the interpreter ends would replace it.
    """
    signal.signal(signal.SIGINT, lambda _signal, _frame: sys.exit(130))
    _open_closed_streams()
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"  # it would search all packages, and run what they name
    gc.set_threshold(50_000, 20, 20)  # searches for cycles among modules take a tenth of a short command
    from harness.cli.app import main as run

    try:
        run()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        gc.freeze()  # the interpreter searches for cycles once more before it ends, another tenth


def _open_closed_streams() -> None:
    """Open the null device for each standard stream that the caller closed (`>&-`).

    Otherwise printing fails, and the next file that is opened takes the number of the stream and receives its output.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
            os.set_inheritable(number, True)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


if __name__ == "__main__":
    main()
