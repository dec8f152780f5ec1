"""Text from files and devices made safe for where it goes, durations in words, files read without surprises."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

MAX_TEXT = 2000
_CONTROL_PICTURES = 0x2400
_DELETE = 0x7F
_FORMULA_STARTS = ("=", "+", "-", "@")
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([smhd]?)\Z")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST_S = 1e8


def printable(text: str, limit: int = MAX_TEXT) -> str:
    """Text on one line without control, direction or surrogate characters, not longer than the limit."""
    clean = "".join(_visible(character) for character in text[: limit + 1])
    return clean if len(text) <= limit else clean[: limit - 1] + "…"


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    if code < ord(" "):
        return chr(_CONTROL_PICTURES + code)
    return "\N{SYMBOL FOR DELETE}" if code == _DELETE else "\N{REPLACEMENT CHARACTER}"


def duration_s(text: str) -> float:
    """The seconds of `90`, `90s`, `10m`, `2h` or `7d`; raises ValueError."""
    found = _DURATION.match(text.strip())
    seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    if not 0 < seconds < _LONGEST_S:
        raise ValueError('is not a duration; write "90s", "10m", "2h" or "7d"')
    return seconds


def in_words_of_toml(message: str) -> str:
    """What pydantic says of a value, where the file knows arrays and no tuples."""
    message = message.removeprefix("Value error, ")
    return message.replace("a valid tuple", "an array").replace("Tuple should", "The array should")


def spreadsheet_cell(value: object) -> object:
    """A value for a CSV file that no spreadsheet takes for a formula."""
    if not isinstance(value, str):
        return value
    clean = printable(value)
    return "'" + clean if clean.lstrip().startswith(_FORMULA_STARTS) else clean


def read_file(path: Path, limit_bytes: int) -> bytes:
    """The content of a plain file; raises OSError for pipes and devices, and for files over the limit."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a pipe would wait for a writer
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(0, "not a plain file")
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise OSError(0, f"larger than {limit_bytes:,} bytes")
    return content
