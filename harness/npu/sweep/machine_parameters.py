"""The parameters of a machine by the dotted keys of its file, and machines with changed parameters.

The keys are the fields of the nested dataclasses of `machine`. Its reader checks types, limits and contradictions, so a
changed machine is checked as a file is.
"""

import dataclasses
import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any, get_type_hints

from device_agents.emulated_npu.emulator_errors import InvalidMachine
from device_agents.emulated_npu.machine import Machine, parse_machine
from device_agents.emulated_npu.unit_commands import DataType

ParameterValue = bool | int | float | str
"""A value as in the file of a machine."""

ONE_BUFFER = ("nb_bytes", "sb_bytes")
"""Keys of one size on a machine with `shared_buffer`."""
_OF_A_CACHE = ("llc.bytes_per_s", "llc.latency_ns", "llc.burst_bytes")


def parameters() -> Mapping[str, Any]:
    """Return the type of every parameter by its key: `nb_bytes`, `mfu.rows`, `cores.link.bytes_per_s`, …"""
    return dict(_fields(Machine, ""))


def check_key(key: str) -> None:
    """Raise InvalidMachine for an unknown key; the error names the nearest key, or all keys and tables of keys."""
    known = tuple(parameters())
    if key in known:
        return
    inside = [item for item in known if item.startswith(f"{key}.")]
    if inside:
        raise InvalidMachine(f"{key} is a table of a machine", f"It holds {', '.join(inside)}", "Name one of them")
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    meant = near or [item for item in known if item.rpartition(".")[2] == key]
    tables = dict.fromkeys(item.partition(".")[0] for item in known)
    why = f"Did you mean {' or '.join(meant)}?" if meant else f"Keys and tables of keys: {', '.join(tables)}"
    raise InvalidMachine(f"{key} is not a key of a machine", why, "Name one; `--set mfu=1` lists the keys of table mfu")


def with_tied(machine: Machine, settings: Mapping[str, ParameterValue]) -> dict[str, ParameterValue]:
    """Return the settings with the parameters that follow from them and are not set.

    With `shared_buffer`, the size of the one buffer stands under both of its keys. The halo buffer keeps its share of
    NB. A last-level cache of 0 bytes has no bandwidth, latency or bursts. Arithmetic of another type has that type's
    published area and energy.
    """
    tied = dict(settings)
    given = [key for key in ONE_BUFFER if key in settings]
    if settings.get("shared_buffer", machine.shared_buffer) and len(given) == 1:
        tied |= dict.fromkeys(ONE_BUFFER, settings[given[0]])
    nb_bytes = tied.get("nb_bytes")
    if type(nb_bytes) is int and nb_bytes > 0:
        tied.setdefault("halo_bytes", machine.halo_bytes * nb_bytes // machine.nb_bytes)
    if tied.get("llc.bytes") == 0:
        for key in _OF_A_CACHE:
            tied.setdefault(key, 0)
    if tied.get("data_type", machine.data_type.name.lower()) != machine.data_type.name.lower():
        for key in ("area.mac_um2", "area.lane_um2", "energy.mac_pj", "energy.lane_pj"):
            tied.setdefault(key, 0)
    return tied


def changed(machine: Machine, settings: Mapping[str, ParameterValue]) -> Machine:
    """Return the machine with these values, under the same name.

    Raises InvalidMachine for an unknown key and a value of the wrong type or beyond its limits, and
    ContradictoryMachine if two values contradict each other.
    """
    for key in settings:
        check_key(key)
    content = {**dict(_values(machine, "")), **with_tied(machine, settings)}
    # JSON's numbers, booleans and strings are TOML's as well.
    return parse_machine("\n".join(f"{key} = {json.dumps(value)}" for key, value in content.items()), machine.name)


def _fields(kind: type[Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, expected in get_type_hints(kind).items():
        if dataclasses.is_dataclass(expected):
            yield from _fields(expected, f"{prefix}{name}.")  # type: ignore[arg-type]
        elif prefix or name != "name":
            yield prefix + name, expected


def _values(table: Any, prefix: str) -> Iterator[tuple[str, ParameterValue]]:
    for each in dataclasses.fields(table):
        value = getattr(table, each.name)
        if dataclasses.is_dataclass(value):
            yield from _values(value, f"{prefix}{each.name}.")
        elif prefix or each.name != "name":
            yield prefix + each.name, value.name.lower() if isinstance(value, DataType) else value
