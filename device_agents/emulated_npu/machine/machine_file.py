"""Machine files: TOML with the keys of the description and no others, and the presets in `presets/`."""

from __future__ import annotations

import dataclasses
import difflib
import re
import reprlib
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from device_agents.emulated_npu.emulator_errors import InvalidMachine
from device_agents.emulated_npu.machine.consistency import check_machine
from device_agents.emulated_npu.machine.description import OPTIONAL_KEYS, SHARED_KEYS, CoreKind, Machine
from device_agents.emulated_npu.machine.parts import ValueRange
from device_agents.emulated_npu.unit_commands import DataType

_MAX_FILE_BYTES = 65_536
_LONGEST_INTEGER_BITS = 64
_DATA_TYPES = {kind.name.lower(): kind for kind in (DataType.FLOAT32, DataType.FLOAT16, DataType.INT8)}
# The last-level cache may be absent, the DDR may not.
_NEVER_ZERO = ("ddr.bytes", "ddr.bytes_per_s", "ddr.burst_bytes")

_KIND = re.compile(r"^kinds\.[0-9]+\.")
_T = TypeVar("_T")


def parse_machine(text: str, name: str) -> Machine:
    """Return the machine that a TOML text describes.

    Raises `InvalidMachine`, naming the key: the text is not TOML, a key is unknown or missing, a value has the wrong
    type or is out of range, or values contradict each other.
    """
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidMachine(f"Machine {name} is not TOML", str(error), "Correct its syntax") from error
    try:
        if "name" in content:
            why = "A machine has the name of its file"
            raise InvalidMachine("name is not a key of a machine", why, "Remove the line")
        content["name"] = name
        kinds = content.pop("kinds", [])
        machine = check_machine(_table(Machine, content, ""))
        return replace(machine, kinds=_kinds(kinds, content, machine)) if kinds else machine
    except InvalidMachine as error:
        raise error.at(f"Machine {name}") from error


def _kinds(tables: Any, content: Mapping[str, Any], machine: Machine) -> tuple[CoreKind, ...]:
    """Return the kinds of cores of a machine: each table has the keys in which they differ from the others."""
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        what = f"kinds is {_shown(tables)}"
        raise InvalidMachine(what, "It must be a list of tables", "Write the keys of each kind under [[kinds]]")
    found: list[CoreKind] = []
    for number, table in enumerate(tables):
        key = f"kinds.{number}"
        own = {name: value for name, value in table.items() if name != "cores"}
        for name in own.keys() & {*SHARED_KEYS, "kinds", "name"}:
            raise InvalidMachine(f"{key}.{name} is not a key of a kind of cores", "All cores share it", "Remove it")
        first, last = _core_range(f"{key}.cores", table.get("cores"), machine.cores.count)
        if any(first <= kind.last and kind.first <= last for kind in found):
            raise InvalidMachine(f"{key}.cores overlaps another kind", "A core is of one kind", "Correct the cores")
        merged = {
            name: {**value, **own[name]} if isinstance(value, dict) and isinstance(own.get(name), dict) else value
            for name, value in {**content, **{name: own[name] for name in own if name not in content}}.items()
        }
        merged |= {name: value for name, value in own.items() if not isinstance(value, dict)}
        found.append(CoreKind(first, last, check_machine(_table(Machine, merged, f"{key}."))))
    return tuple(found)


def _core_range(key: str, text: Any, count: int) -> tuple[int, int]:
    """Return the first and the last core of a range such as "4-7", or of one core."""
    matched = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", text) if isinstance(text, str) else None
    if matched is None:
        raise InvalidMachine(f"{key} is {_shown(text)}", 'It must be a range of cores, such as "4-7"', "Correct it")
    first, last = int(matched[1]), int(matched[2] or matched[1])
    if not first <= last < count:
        raise InvalidMachine(f"{key} is {_shown(text)}", f"Cores are 0 to {count - 1}", "Correct the range")
    return first, last


def read_machine(path: Path) -> Machine:
    """Return the machine of a file; its name is the file name without the suffix.

    Raises `InvalidMachine` as `parse_machine` does, and if the file cannot be read, is not text or is too large.
    """
    try:
        if not path.is_file():
            raise InvalidMachine(f"There is no machine file {path}", "", f"Presets: {', '.join(preset_names())}")
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        if len(content) > _MAX_FILE_BYTES:
            why = f"it is larger than {_MAX_FILE_BYTES} bytes"
            raise InvalidMachine(f"{path} is not a machine file", why, "Name a TOML file of a machine")
        return parse_machine(content.decode("utf-8"), path.stem)
    except (OSError, ValueError) as error:
        raise InvalidMachine(f"{path} cannot be read as a machine", str(error), "Name a TOML file in UTF-8") from error


def preset_names() -> tuple[str, ...]:
    """Return the names of the built-in machines, sorted."""
    folder = resources.files(__package__).joinpath("presets")
    return tuple(sorted(item.name[:-5] for item in folder.iterdir() if item.name.endswith(".toml")))


def load_preset(name: str) -> Machine:
    """Return a built-in machine; raise `InvalidMachine` for an unknown name."""
    return parse_machine(preset_text(name), name)


def preset_text(name: str) -> str:
    """Return the TOML of a built-in machine, with the source of each number; raise as `load_preset`."""
    if name not in preset_names():
        why = f"{_suggestion(name, preset_names())}Presets: {', '.join(preset_names())}"
        raise InvalidMachine(f"There is no machine {name!r}", why, "Name one of the presets")
    return resources.files(__package__).joinpath("presets", f"{name}.toml").read_text(encoding="utf-8")


def find_machine(reference: str) -> Machine:
    """Return the preset with this name, else the machine of the file; raise `InvalidMachine` if there is neither."""
    is_file_name = "/" in reference or reference.endswith(".toml")
    if reference not in preset_names() and is_file_name:
        return read_machine(Path(reference))
    return load_preset(reference)


def _suggestion(name: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {near[0]}? " if near else ""


def _shown(value: Any) -> str:
    """Return the value as text for a message; Python refuses to print integers of thousands of digits."""
    if isinstance(value, int) and value.bit_length() > _LONGEST_INTEGER_BITS:
        return f"a number of {value.bit_length()} bits"
    return reprlib.repr(value)


def _table(kind: type[_T], content: Mapping[str, Any], prefix: str) -> _T:
    """Return a dataclass from a table with its fields and no others; messages name keys as dotted paths."""
    types = get_type_hints(kind, include_extras=True)
    known = tuple(types)
    for key in content:
        if key not in types:
            why = f"{_suggestion(key, known)}Known: {', '.join(item for item in known if item != 'name')}"
            shown = key if key.isidentifier() else _shown(key)
            raise InvalidMachine(f"{prefix}{shown} is not a key of a machine", why, "Correct or remove it")
    for key in known:
        if key not in content and _KIND.sub("", prefix + key) not in OPTIONAL_KEYS:
            raise InvalidMachine(f"{prefix}{key} is missing", "", "Add it; the presets show every key with a source")
    return kind(**{key: _value(types[key], content[key], prefix + key) for key in known if key in content})


def _value(expected: Any, value: Any, key: str) -> Any:
    if dataclasses.is_dataclass(expected):
        if not isinstance(value, dict):
            raise InvalidMachine(f"{key} is {_shown(value)}", "It must be a table", f"Write its keys under [{key}]")
        return _table(cast(type[Any], expected), value, f"{key}.")
    if get_origin(expected) is Literal:
        return _choice(get_args(expected), value, key)
    if get_origin(expected) is Annotated:
        number, limits = get_args(expected)
        return _number(number, limits, value, key)
    if expected is DataType:
        return _DATA_TYPES[_choice(tuple(_DATA_TYPES), value, key)]
    if type(value) is not expected:
        raise InvalidMachine(f"{key} is {_shown(value)}", f"It must be a {expected.__name__}", "Correct the value")
    return value


def _choice(choices: tuple[str, ...], value: Any, key: str) -> str:
    if not isinstance(value, str) or value not in choices:
        why = f"{_suggestion(value, choices) if isinstance(value, str) else ''}It is one of {', '.join(choices)}"
        raise InvalidMachine(f"{key} is {_shown(value)}", why, "Choose one of them")
    return value


def _number(expected: type[int] | type[float], limits: ValueRange, value: Any, key: str) -> float:
    if type(value) is float and value.is_integer():  # 1e9 is a float in TOML
        value = int(value)
    if type(value) not in ((int,) if expected is int else (int, float)):
        noun = "a whole number" if expected is int else "a number"
        raise InvalidMachine(f"{key} is {_shown(value)}", f"It must be {noun}", "Correct the value")
    low, high = 1 if key in _NEVER_ZERO else limits.low, limits.high
    if not low <= value <= high:  # NaN is not
        why = f"It must be from {low:g} to {high:g}"
        raise InvalidMachine(f"{key} is {_shown(value)}", why, "Correct the value or its unit")
    return expected(value)
