"""Settings: the project's defaults, and the one reader of its TOML files with their error messages.

Every error names the file and the key, says what is wrong in TOML's words, and gives the next step.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from harness.errors import ConfigurationError, reason_of
from harness.files import read_file
from harness.text import did_you_mean

if TYPE_CHECKING:  # pydantic would double the start-up time of the command line
    from pydantic_core import ErrorDetails

DEFAULT_DEVICE = "cpu01"
"""The device of commands and functions that name none."""
SLOWDOWN_THRESHOLD = 0.01
"""The smallest relative change of a latency that counts as slower or faster."""
MOST_DRIFT = 0.5
"""The largest drift of the reference probe in a campaign that enters a table. It is twice what a processor's golden
probe may be off: only a change of the device's state exceeds it, whose effect on layers no interval would cover."""
VALIDATION_PROCESSES = 5
"""The most processes in which `harness validate` measures a network."""
NIGHT_STARTS_AT = "02:30"
"""Local time at which the timer of `harness nightly install` starts."""
NIGHT_DELAY = "20m"
"""The longest random delay of that timer."""
DEFAULT_SPACE = "builtin:common"
"""The space whose layers are measured where no network is named."""
BUILTIN_SPACES = (DEFAULT_SPACE, "builtin:int8", "builtin:machine")
"""The spaces of layers in the package."""
SPACE_COUNT = 500
"""The most layers of a space that one profiling run measures."""
SPACE_TARGET = 0.05
"""A space is measured until randomly drawn layers are predicted within this median relative error."""

MAX_SETTINGS_BYTES = 1 << 20
_MAX_SHOWN = 80
_MAX_KEY_PARTS = 16
_STRING_OR_COMMENT = re.compile(
    r'"""[^"\\]*+(?:(?:\\.|"(?!""))[^"\\]*+)*(?:"{3,5}|\\?\Z)'
    r"|'''[^']*+(?:'(?!'')[^']*+)*(?:'{3,5}|\Z)"
    r'|"[^"\\\n]*+(?:\\.[^"\\\n]*+)*"?'
    r"|'[^'\n]*+'?"
    r"|#[^\n]*+",
    re.DOTALL,
)
"""Also strings without an end, so that one pass over any text is enough. Possessive groups are wrong in Python 3.11.2,
possessive sets of characters are not."""
_LONG_KEY = re.compile(rf"(?:\.[ \t]*[\w-]+[ \t]*){{{_MAX_KEY_PARTS}}}")

Checked = TypeVar("Checked")
Keys = tuple["str | int", ...]


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file of at most 1 MiB in UTF-8, whose keys have at most 16 parts; raises ConfigurationError."""
    try:
        text = read_file(path, MAX_SETTINGS_BYTES).decode("utf-8-sig")
        _check_keys(path, text)
        return tomllib.loads(text)
    except OSError as error:
        step = "Name a TOML file that you may read"
        raise ConfigurationError(f"{path} cannot be read", why=reason_of(error), next_step=step) from error
    except UnicodeDecodeError as error:
        why = f"byte {error.start + 1} is not UTF-8 text"
        raise ConfigurationError(f"{path} is not valid TOML", why=why, next_step="Save it as UTF-8") from error
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits is also a ValueError
        why = str(error)[:300]
        raise ConfigurationError(f"{path} is not valid TOML", why=why, next_step="Correct the line") from error


def _check_keys(path: Path, text: str) -> None:
    """Raise ConfigurationError for a key of very many parts: the parser's memory grows with their square."""
    plain = _STRING_OR_COMMENT.sub(lambda found: "_" + "\n" * found[0].count("\n"), text)
    found = _LONG_KEY.search(plain)
    if found is not None:
        line = plain.count("\n", 0, found.start()) + 1
        what = f"{path}: the key in line {line} has more than {_MAX_KEY_PARTS} parts between dots"
        raise ConfigurationError(what, next_step="Correct the line; no setting is nested that deep")


def invalid_key(path: Path, key: str, what: str, next_step: str = "Correct the value") -> ConfigurationError:
    """Return the error for one key of a settings file."""
    return ConfigurationError(f"{path}: {key} {what}", next_step=next_step)


def check_settings(
    build: Callable[[Mapping[str, Any]], Checked],
    content: Mapping[str, Any],
    path: Path,
    *,
    prefix: str = "",
    known: Callable[[Keys], Sequence[str]] = lambda _: (),
    examples: Mapping[str, str] | None = None,
) -> Checked:
    """Return what `build` makes of a file's content; raise ConfigurationError for the first problem that it validates.

    `prefix` is the key of the table that the content is. `known` returns the names that are valid at some keys.
    `examples` has the advice for keys that are missing.
    """
    from pydantic import ValidationError

    try:
        return build(content)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
    found.sort(key=lambda one: one["type"] == "missing")  # a misspelt key is also missing
    problems = [(_keys_of(one, content), one) for one in found]
    first = problems[0][0]
    alternatives = [one for one in problems if one[0][: len(first)] == first]
    keys, problem = max(alternatives, key=lambda one: len(one[1]["loc"]))  # the one that came furthest was meant
    key = _shown(keys, content, prefix)
    if problem["type"] == "extra_forbidden":
        names = known(keys[:-1])
        step = did_you_mean(str(keys[-1]), names, "Known keys") if names else "Remove it"
        raise invalid_key(path, key, "is unknown", step)
    if problem["type"] == "missing" and isinstance(problem["loc"][-1], int):
        raise invalid_key(path, key, "has too few elements", "Add the others")
    if problem["type"] == "missing":
        raise invalid_key(path, key, "is missing", (examples or {}).get(key, "Add it"))
    message = problem["msg"].removeprefix("Value error, ")
    message = message.replace("a valid tuple", "an array").replace("Tuple should", "The array should")
    raise invalid_key(path, key, message if message.startswith(("is ", "must ")) else f"is wrong: {message}")


def _keys_of(problem: ErrorDetails, content: Any) -> Keys:
    """The keys of the file that lead to a problem: its location without the names of types that pydantic tried."""
    location, keys = problem["loc"], []
    for at, part in enumerate(location):
        is_key = isinstance(content, Mapping) and part in content
        is_index = isinstance(content, list | tuple) and isinstance(part, int) and part < len(content)
        if is_key or is_index:
            content = content[part]
            keys.append(part)
        elif problem["type"] == "missing" and at == len(location) - 1:
            keys.append(part)
    return tuple(keys)


def _shown(keys: Keys, content: Any, prefix: str) -> str:
    """Keys as a reader finds them: tables of an array by their name or number, elements of plain arrays left out."""
    text = prefix
    for part in keys:
        is_there = part in content if isinstance(content, Mapping) else isinstance(part, int) and part < len(content)
        content = content[part] if is_there else None
        if not isinstance(part, int):
            joint = "" if not text or text.endswith(" ") else "."
            text += joint + (part[:_MAX_SHOWN] if part.isprintable() else repr(part[:_MAX_SHOWN]))
        elif isinstance(content, Mapping):
            name = content.get("name")
            text += f" {name[:_MAX_SHOWN]!r}: " if isinstance(name, str) else f" number {part + 1}: "
    return text.removesuffix(": ")
