"""`harness` and `python -m harness`: the command line."""

import signal
import sys


def main() -> None:
    """Entry point of the console script; Ctrl-C ends it with 130 also before the commands are loaded.

    When the command is done its exit code stands: Ctrl-C while the interpreter ends would replace it.
    """
    signal.signal(signal.SIGINT, lambda _signal, _frame: sys.exit(130))
    from harness.cli.app import main as run

    try:
        run()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    main()
