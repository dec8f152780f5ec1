"""`harness` and `python -m harness`: the command line."""

import signal
import sys


def main() -> None:
    """Entry point of the console script; Ctrl-C ends it with 130 also before the commands are loaded."""
    signal.signal(signal.SIGINT, lambda _signal, _frame: sys.exit(130))
    from harness.cli.app import main as run

    run()


if __name__ == "__main__":
    main()
