"""Options declared as fields of a dataclass, as parameters of a command.

`@spread` replaces every parameter of a command that is a dataclass by one option per field, and passes the command
the dataclass that holds their values. A field declares its option in one of two ways: by `Annotated[…, typer.Option]`,
or by metadata (`device_agents.emulated_npu.compiler.options.option`), for dataclasses outside the command line.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_origin, get_type_hints

import typer

from harness.errors import UsageError

Command = Callable[..., None]
_SIZE = re.compile(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})\Z")


@dataclass(frozen=True)
class OnlyFields:
    """Annotation of a dataclass parameter: the fields that the command offers; the others keep their defaults."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Heading:
    """Annotation of a dataclass parameter: the heading of its options in the help."""

    text: str


@dataclass(frozen=True)
class _Option:
    """One option of a command: the parameter that typer sees, and how its value becomes that of the field."""

    name: str
    parameter: inspect.Parameter
    convert: Callable[[Any], Any]


def spread(command: Command) -> Command:
    """Return the command with one option for each field of its dataclass parameters."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, tuple[Any, list[_Option]]] = {}
    parameters = []
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        kind: Any = hint.__origin__ if get_origin(hint) is Annotated else hint
        if not dataclasses.is_dataclass(kind):
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hint))
        else:
            options = _options(kind, getattr(hint, "__metadata__", ()))
            groups[parameter.name] = kind, options
            parameters += [each.parameter for each in options]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for group, (kind, options) in groups.items():
            fields = {each.name: each.convert(values.pop(each.parameter.name)) for each in options}
            values[group] = kind(**fields)
        command(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _options(kind: Any, notes: tuple[object, ...]) -> list[_Option]:
    hints = get_type_hints(kind, include_extras=True)
    only = next((each.names for each in notes if isinstance(each, OnlyFields)), None)
    heading = next((each.text for each in notes if isinstance(each, Heading)), None)
    chosen = [each for each in dataclasses.fields(kind) if only is None or each.name in only]
    return [_option(each, hints[each.name], heading) for each in chosen]


def _option(declared: dataclasses.Field[Any], hint: Any, heading: str | None) -> _Option:
    """Return the option of a field: its flag, its type in typer's words and its default."""
    if get_origin(hint) is Annotated:
        info = copy.copy(hint.__metadata__[0])
        info.rich_help_panel = heading
        annotation = Annotated[hint.__origin__, info]
        return _Option(declared.name, _parameter(declared.name, declared.default, annotation), _same)
    details = {key: declared.metadata[key] for key in ("min", "max", "metavar") if key in declared.metadata}
    if completion := declared.metadata.get("completion"):
        details["autocompletion"] = lambda incomplete: [name for name in completion() if name.startswith(incomplete)]
    name, default = declared.name, declared.default
    convert: Callable[[Any], Any] = _same
    if declared.default is True and "flag" not in declared.metadata:
        name, default, convert = f"no_{name}", False, operator.not_
    elif hint == tuple[int, int] | None:
        hint, details = str | None, {"metavar": "HxW"}
        convert = functools.partial(_size, _flag(declared, name))
    elif hint == tuple[str, ...]:
        hint, default, convert = list[str] | None, None, lambda values: tuple(values or ())
    info = typer.Option(_flag(declared, name), help=declared.metadata["help"], rich_help_panel=heading, **details)
    return _Option(declared.name, _parameter(name, default, Annotated[hint, info]), convert)


def _same(value: Any) -> Any:
    return value


def _flag(declared: dataclasses.Field[Any], name: str) -> str:
    return str(declared.metadata.get("flag") or f"--{name.replace('_', '-')}")


def _parameter(name: str, default: Any, hint: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if default is dataclasses.MISSING else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _size(flag: str, text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    found = _SIZE.match(text)
    if not found:
        why = "It must be a height and a width, both positive"
        raise UsageError(f"{flag} {text[:40]} is not HxW", why=why, next_step=f"Write {flag} 18x16")
    return int(found[1]), int(found[2])
