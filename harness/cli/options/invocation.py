"""The command line of this process, which reports repeat under "Reproduce"."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from harness.text import printable

_words: tuple[str, ...] = ()


def remember(arguments: Sequence[str]) -> None:
    """Keep the arguments of the program for `command_words`."""
    global _words
    _words = tuple(arguments)


def command_words() -> tuple[str, ...]:
    """Return the words of the command that runs."""
    return ("harness", *_words)


def command_line() -> str:
    """Return the command that runs as a shell reads it."""
    return shlex.join(map(printable, command_words()))
