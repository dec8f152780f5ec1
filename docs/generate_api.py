"""Write docs/api.md from the docstrings of what `harness` exports: `make docs`. A test fails if it is out of date."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel

import harness

PAGE = Path(__file__).with_name("api.md")
HEAD = """# Python reference

This page lists every name that the package `harness` exports, with the docstrings of the code. `make docs` writes it.
[python.md](python.md) shows how to use them.
"""
_LONGEST = 100


def page() -> str:
    """Return the whole page: functions, then classes, then errors."""
    values = {name: getattr(harness, name) for name in harness.__all__}
    functions = [name for name, value in values.items() if inspect.isfunction(value)]
    classes = [name for name, value in values.items() if inspect.isclass(value)]
    others = [name for name in values if name not in functions and name not in classes]
    parts = [HEAD, "## Functions\n", *(_function(name, values[name]) for name in functions)]
    parts += ["## Classes\n", *(_class(name, values[name]) for name in classes)]
    parts += ["## Modules and constants\n", *(_other(name, values[name]) for name in others)]
    return "\n".join(parts)


def _function(name: str, function: Any) -> str:
    return f"### `{name}`\n\n{_code(name + _signature(function))}\n{_text(function)}\n"


def _class(name: str, kind: type) -> str:
    parts = [f"### `{name}`\n", f"{_text(kind)}\n"]
    if dataclasses.is_dataclass(kind):
        fields = "\n".join(map(_field, dataclasses.fields(kind)))
        parts.append(_code(fields))
    elif issubclass(kind, BaseModel):
        parts.append(_code("\n".join(f"{field}: {_unannotated(of)}" for field, of in kind.__annotations__.items())))
    elif issubclass(kind, enum.Enum):
        parts.append(_code("\n".join(f"{one.name} = {one.value!r}" for one in kind)))
    elif kind.__init__ is not object.__init__ and not issubclass(kind, Exception | tuple):
        parts.append(_code(name + _signature(kind)))
    parts += [_member(name, member, value) for member, value in _members(kind)]
    return "\n".join(parts)


def _other(name: str, value: Any) -> str:
    if isinstance(value, ModuleType):
        return f"### `{name}`\n\n{_text(value).replace('::', '').strip()}\n"
    return f"### `{name}`\n\nThe version of the package.\n"


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Return the public methods and properties that a class defines itself, in the order of its source."""
    for name, value in vars(kind).items():
        is_member = inspect.isfunction(value) or isinstance(value, property | cached_property | classmethod)
        if is_member and not name.startswith("_") and inspect.getdoc(value):
            yield name, value


def _member(owner: str, name: str, value: Any) -> str:
    if isinstance(value, property | cached_property):
        return f"**`{owner}.{name}`** (property)\n\n{_text(value)}\n"
    function = value.__func__ if isinstance(value, classmethod) else value
    return f"**`{owner}.{name}`**\n\n{_code(name + _signature(function, bound=True))}\n{_text(function)}\n"


def _field(each: dataclasses.Field[Any]) -> str:
    kind = _unannotated(each.type)
    has_default = each.default is not dataclasses.MISSING and len(repr(each.default)) < _LONGEST
    return f"{each.name}: {kind}" + (f" = {each.default!r}" if has_default else "")


def _unannotated(annotation: Any) -> str:
    """Return a field's type without what checks its values."""
    inner = re.sub(r"Annotated\[([\w.]+), [^\[\]]*\]", r"\1", str(annotation))
    return re.sub(r"^Annotated\[(.*?), (?:Field|AfterValidator)\(.*\)\]$", r"\1", inner)


def _signature(function: Any, bound: bool = False) -> str:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[1 if bound else 0 :]
    shown_as = [one.replace(annotation=_plain(one.annotation), default=_default(one.default)) for one in parameters]
    plain = signature.replace(parameters=shown_as, return_annotation=_plain(signature.return_annotation))
    text = str(plain)
    if len(text) <= _LONGEST:
        return text
    shown = [str(one) for one in plain.parameters.values()]
    keyword = next((at for at, one in enumerate(parameters) if one.kind is one.KEYWORD_ONLY), None)
    if keyword is not None:
        shown.insert(keyword, "*")
    lines = "".join(f"    {one},\n" for one in shown)
    returns = plain.return_annotation
    return f"(\n{lines})" + ("" if returns is inspect.Signature.empty else f" -> {_name(returns)}")


class _Plain:
    """An annotation that is shown without quotes."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _plain(annotation: Any) -> Any:
    return _Plain(annotation) if isinstance(annotation, str) else annotation


def _default(value: Any) -> Any:
    """Return a default as it is shown: three dots for a function."""
    return _Plain("...") if inspect.isfunction(value) else value


def _name(annotation: Any) -> str:
    return annotation.__name__ if inspect.isclass(annotation) else repr(annotation)


def _code(text: str) -> str:
    return f"```text\n{text}\n```\n"


def _text(value: Any) -> str:
    return inspect.getdoc(value) or ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
