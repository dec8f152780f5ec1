"""The command line of this process, which reports repeat under "Reproduce"."""

from __future__ import annotations

from collections.abc import Sequence

_words: tuple[str, ...] = ()


def remember(arguments: Sequence[str]) -> None:
    """Keep the arguments of the program for `command_words`."""
    global _words
    _words = tuple(arguments)


def command_words() -> tuple[str, ...]:
    """Return the words of the command that runs."""
    return ("harness", *_words)
