"""The form of nightly.toml: its keys, what they may hold, and what is wrong with them in words."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from datetime import time
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from harness.errors import ConfigurationError
from harness.fleet.cluster.access import dask_address
from harness.settings import SLOWDOWN_THRESHOLD
from harness.text import duration_s, in_words_of_toml, read_file

_MAX_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}\Z")
_SHARE = re.compile(r"([0-9]{1,2}(?:\.[0-9]{1,4})?)\s*%\Z")
_CLOCK = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])\Z")


def time_of_day(text: object) -> time:
    """The time of `02:30`; raises ValueError."""
    found = _CLOCK.match(text) if isinstance(text, str) else None
    if not found:
        raise ValueError('is not a time of day; write "02:30"')
    return time(int(found[1]), int(found[2]))


def _share(text: object) -> float:
    found = _SHARE.match(text.strip()) if isinstance(text, str) else None
    if not found or not float(found[1]):
        raise ValueError('is not a share above zero; write "1%" or "0.5%"')
    return float(found[1]) / 100


def _duration_s(text: object) -> float:
    return duration_s(text if isinstance(text, str) else "")


def _name(text: str) -> str:
    if not _NAME.match(text):
        raise ValueError("must be 1 to 64 letters, digits, dots, dashes or underscores")
    return text


_Name = Annotated[str, AfterValidator(_name)]
_Names = Annotated[tuple[_Name, ...], Field(strict=False, max_length=1000)]
_Duration = Annotated[float, BeforeValidator(_duration_s)]
_Text = Annotated[str, Field(min_length=1, max_length=4096)]


class _Settings(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class DaskForm(_Settings):
    """`engine = {dask = "tcp://…"}`, with three PEM files where the scheduler asks for TLS."""

    dask: Annotated[str, AfterValidator(dask_address)]
    tls_ca_file: _Text | None = None
    tls_cert: _Text | None = None
    tls_key: _Text | None = None


class NightlyForm(_Settings):
    """The table [nightly]."""

    devices: _Names = ()
    groups: _Names = ()
    all: bool = False
    budget: _Duration | None = None
    order: Literal["stale", "listed"] = "stale"
    max_age: _Duration = 7 * 86400.0
    day_begins: Annotated[time, BeforeValidator(time_of_day)] = time(12)
    keep: Annotated[int, Field(ge=1, le=365)] = 14
    threshold: Annotated[float, BeforeValidator(_share)] = SLOWDOWN_THRESHOLD
    engine: Literal["local"] | DaskForm = "local"
    retries: Annotated[int, Field(ge=0, le=10)] = 1


class SetForm(_Settings):
    """A table [[set]]."""

    name: _Name
    networks: Annotated[tuple[_Text, ...], Field(strict=False, max_length=1000)] = ()
    space: _Text | None = None
    devices: _Names = ()
    groups: _Names = ()
    all: bool = False
    runs: Annotated[int, Field(ge=1, le=100_000)] | Literal["auto"] = "auto"
    budget: _Duration | None = None
    dims: Mapping[str, Annotated[int, Field(ge=1, lt=1 << 31)]] = Field(default_factory=dict)
    weight: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] = 1.0


class PlanForm(_Settings):
    """The whole file."""

    nightly: NightlyForm
    set: Annotated[tuple[SetForm, ...], Field(strict=False, min_length=1, max_length=1000)]


_FORMS: Mapping[str, type[BaseModel]] = {"": PlanForm, "nightly": NightlyForm, "set": SetForm}
_UNION_MEMBERS = ("DaskForm", "literal['local']", "constrained-int", "literal['auto']", "int")


def read_plan_file(path: Path) -> PlanForm:
    """Reads a plan and checks its form; raises ConfigurationError, which names the key."""
    try:
        content = tomllib.loads(read_file(path, _MAX_BYTES).decode("utf-8-sig"))
    except FileNotFoundError as error:
        step = (
            'Write one: [nightly] with devices = ["NAME"], then [[set]] with a name and networks; see docs/nightly.md'
        )
        raise ConfigurationError(f"There is no plan {path}", next_step=step) from error
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read", why=error.strerror or str(error)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        step = "Correct the line; a key may be given only once"
        raise ConfigurationError(f"{path} is not valid TOML", why=str(error)[:300], next_step=step) from error
    try:
        return PlanForm.model_validate(content)
    except ValidationError as error:
        raise _from_pydantic(path, content, error) from None


def invalid(path: Path, key: str, what: str, step: str = "Correct the value") -> ConfigurationError:
    """What is wrong with a key of a plan."""
    return ConfigurationError(f"{path}: {key} {what}", next_step=step)


def _from_pydantic(path: Path, content: Mapping[str, Any], error: ValidationError) -> ConfigurationError:
    """The first problem in the words of the file: its key, and what is wrong with the value."""
    problems = error.errors(include_url=False, include_input=False)
    key_at = 3 if problems[0]["loc"][:1] == ("set",) else 2
    same = [one for one in problems if one["loc"][:key_at] == problems[0]["loc"][:key_at]]
    first = max(same, key=lambda one: len(one["loc"]))  # of a key that may hold several things the one that was meant
    place = [part for part in first["loc"] if part not in _UNION_MEMBERS]
    table = str(place[0]) if len(place) > 1 and place[0] in _FORMS else ""
    keys = [str(part)[:80] for part in place if isinstance(part, str)]
    key = ".".join(keys)
    if table == "set" and isinstance(place[1], int):
        key = ": ".join([_set_at(content, place[1]), *([".".join(keys[1:])] if keys[1:] else [])])
    if first["type"] == "extra_forbidden":
        form = DaskForm if keys[-2:-1] == ["engine"] else _FORMS[table]
        known = list(form.model_fields)
        near = difflib.get_close_matches(keys[-1], known, n=1)
        step = f"Did you mean {near[0]}?" if near else f"Known keys: {', '.join(known)}"
        return invalid(path, key, "is unknown", step)
    if first["type"] == "missing":
        return invalid(path, key, "is missing", "See docs/nightly.md for what a plan holds")
    message = in_words_of_toml(first["msg"])
    return invalid(path, key, message if message.startswith(("is ", "must ")) else f"is wrong: {message}")


def _set_at(content: Mapping[str, Any], index: int) -> str:
    """A set by its name, or by its number where it has none."""
    tables = content.get("set")
    table = tables[index] if isinstance(tables, list) and index < len(tables) else None
    name = table.get("name") if isinstance(table, dict) else None
    return f"set {name[:80]!r}" if isinstance(name, str) else f"set number {index + 1}"
