"""Text: cleaned for where it is shown, safe names for paths and commands, durations, sizes in bytes, and tables.

Text from files and devices may hold anything: terminal control sequences, characters that reverse the writing
direction, lone surrogates. `printable` and `last_part` make it safe to show.
"""

import difflib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

MAX_TEXT = 2000
SAFE_NAME_RULE = "must be 1 to 64 letters, digits, dots, dashes or underscores"
_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\Z")
_PICTURES = {**{chr(code): chr(0x2400 + code) for code in range(0x20)}, "\x7f": "\N{SYMBOL FOR DELETE}"}
_LONG_WORD = re.compile(r"(\S{60})\S{81,}(\S{60})")
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([smhd]?)\Z")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LATENCY = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(s|ms|us|µs)\Z")
_LATENCY_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}
_LONGEST_S = 1e8
_BYTE_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
NAME_WIDTH = 48
"""Characters of a layer's name in a table."""


def printable(text: str, limit: int = MAX_TEXT) -> str:
    """Return the text on one line, cut after `limit` characters, with visible stand-ins for unprintable ones."""
    unknown = "\N{REPLACEMENT CHARACTER}"
    clean = "".join(one if one.isprintable() else _PICTURES.get(one, unknown) for one in text[: limit + 1])
    return clean if len(text) <= limit else clean[: limit - 1] + "…"


def shortened(text: str) -> str:
    """Return the text with the middle of very long words left out: names and paths have any length."""
    return _LONG_WORD.sub(r"\1…\2", text)


def whole_number(text: str, most_digits: int) -> int | None:
    """Return a text of digits as a number; None for any other text, and for one with more than `most_digits`."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= most_digits else None


def unused_name(name: str, used: set[str]) -> str:
    """Return a name, with `'` at its end as often as it is in `used`, and add it there."""
    while name in used:
        name = f"{name}'"
    used.add(name)
    return name


def last_part(text: str, limit: int = 600) -> str:
    """Return the text on one line without unprintable characters; of a long one the end, where errors stand."""
    plain = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return plain if len(plain) <= limit else "…" + plain[-limit:]


def first_line(content: bytes, limit: int = 60) -> str:
    """Return the first line of what is perhaps text, without unprintable characters."""
    return last_part(content.decode("utf-8", "replace").strip().partition("\n")[0][:limit])


def is_safe_name(text: str, longest: int = 64) -> bool:
    """Return whether a text is safe as a part of paths and commands (see `SAFE_NAME_RULE`)."""
    return len(text) <= longest and _SAFE_NAME.match(text) is not None


def safe_name(text: str) -> str:
    """Return the text itself; raise ValueError if it is not a safe name."""
    if not is_safe_name(text):
        raise ValueError(SAFE_NAME_RULE)
    return text


def milliseconds(seconds: float, digits: int = 3) -> str:
    """Return milliseconds with at most four decimals, or as many as `digits` significant digits take."""
    value = seconds * 1e3
    if not value or abs(value) >= 1:
        return f"{value:.1f}" if abs(value) >= 1000 else f"{value:.3f}" if value else "0"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])
    return f"{value:.{max(4, digits - 1 - exponent)}f}"


def microseconds(seconds: float) -> str:
    """Return microseconds with three significant digits, and from 1000 on as a whole number."""
    value = seconds * 1e6
    for digits, least in ((0, 99.95), (1, 9.995), (2, 0.9995), (3, 0.09995)):
        if abs(value) >= least:
            return f"{value:,.{digits}f}"
    return f"{value:.3g}"


def signed_percent(fraction: float) -> str:
    """Return a signed percentage; zero has no minus."""
    return f"{fraction:+.1%}".replace("-0.0%", "+0.0%")


def interval_ms(bounds: tuple[float, float]) -> str:
    """Return an interval in milliseconds."""
    return f"[{milliseconds(bounds[0])}, {milliseconds(bounds[1])}]"


def count_of(number: float) -> str:
    """Return a count in thousands, millions or billions, with three significant digits."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("K", 1e3)):
        if number >= 0.9995 * size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.0f}"


def sentences(*texts: str) -> str:
    """Return texts as sentences, without empty ones and without the last full stop.

    A text that begins with a small letter goes on after a colon.
    """
    said = ""
    for text in filter(None, texts):
        joint = ": " if text[0].islower() else " " if said.endswith("?") else ". "
        said += (joint if said else "") + text.rstrip(".")
    return said


def first_names(names: Iterable[str], most: int) -> str:
    """Return the first names with commas between them, and … if there are more."""
    found = list(names)
    return ", ".join([*found[:most], *(["…"] if len(found) > most else [])])


def counted(number: int, noun: str) -> str:
    """Return a number and its noun, which takes an s unless the number is one."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def dim_options(dims: Mapping[str, int]) -> str:
    """Return values of dimensions and inputs as options of a command, each a word of a shell."""
    return " ".join(f"--dim {shlex.quote(f'{name}={value}')}" for name, value in dims.items())


def clock_name(clock: str) -> str:
    """Return a clock's name; for wall time, also what its samples include besides the network's own work."""
    return "wall (includes other work on the device)" if clock == "wall" else printable(clock, 40)


def did_you_mean(name: str, known: Iterable[str], label: str) -> str:
    """Return a question with the most similar known names, or all known names after a label."""
    names = tuple(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f"Did you mean {' or '.join(near)}?" if near else f"{label}: {', '.join(names)}"


def is_time(text: str) -> bool:
    """Return whether a text is a time with its time zone, in ISO 8601."""
    try:
        return text.isascii() and text.isprintable() and datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def duration_s(text: str) -> float:
    """Return the seconds of `90`, `90s`, `10m`, `2h` or `7d`; raise ValueError for other text."""
    return _seconds(_DURATION.match(text.strip()), _SECONDS, 'is not a duration; write "90s", "10m", "2h" or "7d"')


def latency_s(text: str) -> float:
    """Return the seconds of a latency such as `5ms`, `300us` or `0.01s`; raise ValueError for other text."""
    return _seconds(_LATENCY.match(text.strip()), _LATENCY_UNITS, 'is not a latency; write "5ms", "300us" or "0.01s"')


def _seconds(found: re.Match[str] | None, units: Mapping[str, float], problem: str) -> float:
    seconds = float(found[1]) * units[found[2]] if found else 0.0
    if not 0 < seconds < _LONGEST_S:
        raise ValueError(problem)
    return seconds


def byte_size(count: float) -> str:
    """Return a number of bytes in the largest unit that it reaches, with four significant digits."""
    for unit, size in _BYTE_UNITS:
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count:g} B" if count else "0"


def four_digits(value: float) -> str:
    """Return a number with four significant digits, from 1000 on as a whole number in groups of three digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


@dataclass(frozen=True)
class Table:
    """Columns of text; the first `left` of them, and with `bars` the last one, are flush left."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1
    bars: bool = False


Facts = tuple[tuple[str, str], ...]
"""Lines of text, each after a label."""
Part = Table | Facts | str
"""A part of a text report; a str is a separate line."""
