"""The parameters of a machine by the dotted keys of its file, and machines with some of them changed.

Keys come from the nested dataclasses of machine/description.py; the reader of machine files checks types, limits and
contradictions, so a changed machine is checked like a file.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Union, get_type_hints

from device_agents.emulated_npu.emulator_errors import InvalidMachine
from device_agents.emulated_npu.machine import Machine, check_machine, parse_machine
from device_agents.emulated_npu.unit_commands import DataType

Value = Union[bool, int, float, str]
"""A value as in the file of a machine."""

_ONE_BUFFER = ("nb_bytes", "sb_bytes")


class ContradictoryMachine(InvalidMachine):
    """Every value is allowed by itself, but two of them contradict each other."""


def parameters() -> Mapping[str, Any]:
    """The type of every parameter by its key: `nb_bytes`, `mfu.rows`, `cores.link.bytes_per_s`, …"""
    return dict(_fields(Machine, ""))


def check_key(key: str) -> None:
    """Raises InvalidMachine for a key that no machine has; names the one that may be meant, and what there is."""
    known = tuple(parameters())
    if key in known:
        return
    inside = [item for item in known if item.startswith(f"{key}.")]
    if inside:
        raise InvalidMachine(f"{key} is a table of a machine", f"It holds {', '.join(inside)}", "Name one of them")
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    meant = near or [item for item in known if item.rpartition(".")[2] == key]
    why = f"Did you mean {' or '.join(meant)}? " if meant else ""
    raise InvalidMachine(f"{key} is no key of a machine", f"{why}Known: {', '.join(known)}", "Correct the key")


def with_tied(machine: Machine, settings: Mapping[str, Value]) -> dict[str, Value]:
    """The settings, with the size of the one buffer of a machine with `shared_buffer` under both of its keys."""
    shared = settings.get("shared_buffer", machine.shared_buffer)
    given = [key for key in _ONE_BUFFER if key in settings]
    if not shared or len(given) != 1:
        return dict(settings)
    return {**settings, **dict.fromkeys(_ONE_BUFFER, settings[given[0]])}


def changed(machine: Machine, settings: Mapping[str, Value]) -> Machine:
    """The machine with these values, of the same name.

    Raises InvalidMachine for a key that there is not, a value of the wrong type or beyond its limits, and
    ContradictoryMachine where the values contradict each other.
    """
    for key in settings:
        check_key(key)
    content = {**dict(_values(machine, "")), **with_tied(machine, settings)}
    try:
        # JSON's numbers, booleans and strings are TOML's as well.
        return parse_machine("\n".join(f"{key} = {json.dumps(value)}" for key, value in content.items()), machine.name)
    except InvalidMachine as error:
        # The reader refuses single values before it looks for contradictions; those are told by check_machine alone.
        contradiction = _contradiction(machine, content)
        if contradiction is not None and contradiction.what == error.what:
            raise ContradictoryMachine(error.what, error.why, error.next_step) from error
        raise


def _contradiction(machine: Machine, content: Mapping[str, Any]) -> InvalidMachine | None:
    try:
        check_machine(_replaced(machine, content, ""))
    except InvalidMachine as error:
        return error
    except TypeError:  # a value of a type that cannot even be compared
        return None
    return None


def _fields(kind: type[Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, expected in get_type_hints(kind).items():
        if dataclasses.is_dataclass(expected):
            yield from _fields(expected, f"{prefix}{name}.")  # type: ignore[arg-type]
        elif prefix or name != "name":
            yield prefix + name, expected


def _values(table: Any, prefix: str) -> Iterator[tuple[str, Value]]:
    for each in dataclasses.fields(table):
        value = getattr(table, each.name)
        if dataclasses.is_dataclass(value):
            yield from _values(value, f"{prefix}{each.name}.")
        elif prefix or each.name != "name":
            yield prefix + each.name, value.name.lower() if isinstance(value, DataType) else value


def _replaced(table: Any, content: Mapping[str, Any], prefix: str) -> Any:
    changes = {}
    for each in dataclasses.fields(table):
        value, key = getattr(table, each.name), prefix + each.name
        if dataclasses.is_dataclass(value):
            changes[each.name] = _replaced(value, content, f"{key}.")
        elif key in content and not isinstance(value, DataType):
            changes[each.name] = content[key]
    return dataclasses.replace(table, **changes)
