"""Arguments of the functions that `harness` exports: checked where they enter, and numbers of numpy made plain.

An argument of one name means the same everywhere, so most rules belong to a name.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

from harness.errors import UsageError
from harness.text import printable

_MOST = 2**63 - 1
"""The journal holds no larger number."""
_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T")


@dataclass(frozen=True)
class Rule:
    """What an argument must be, in words, and how it is read: `read` raises ValueError or TypeError for any other.

    `shown` returns the text of a wrong argument in the error.
    """

    must: str
    read: Callable[[Any], Any]
    shown: Callable[[Any], str] = repr
    allows_none: bool = False


def instance(kind: type, must: str = "") -> Rule:
    """Return the rule that an argument is an object of a class."""
    return Rule(must or f"a {kind.__name__}", lambda value: _if(isinstance(value, kind), value))


def _if(condition: bool, value: Any) -> Any:
    if not condition:
        raise ValueError
    return value


def _whole(value: Any, least: int) -> int:
    is_number = isinstance(value, Integral) and not isinstance(value, bool)
    return int(_if(is_number and least <= value <= _MOST, value))


def _number(value: Any, is_allowed: Callable[[float], bool]) -> float:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    return float(_if(is_number and is_allowed(float(value)), value))


def _text(value: Any) -> str:
    return str(_if(isinstance(value, str), value))


def _list(values: Any, read: Callable[[Any], Any]) -> tuple[Any, ...]:
    is_list = isinstance(values, Sequence) and not isinstance(values, (str, bytes))
    return tuple(map(read, _if(is_list, values)))


def _sizes(values: Any) -> dict[str, int]:
    pairs = _if(isinstance(values, Mapping), values).items()
    return {_text(name): int(value) if isinstance(value, bool) else _whole(value, 0) for name, value in pairs}


COUNT = Rule("a whole number, 1 or more", lambda value: _whole(value, 1))
COUNTS = Rule(
    "a list of whole numbers, 1 or more, or None",
    lambda values: _if(len(values) > 0, _list(values, lambda one: one if one is None else _whole(one, 1))),
)
TEXT = Rule("a text", _text)
PATH = Rule("a path, as text or pathlib.Path", lambda value: _if(isinstance(value, (str, os.PathLike)), value))
_SECONDS = Rule("a number of seconds, 0 or more", lambda value: _number(value, lambda seconds: seconds >= 0))
_SWITCH = Rule("True or False", lambda value: bool(_if(any(value == one for one in (False, True)), value)))
_FUNCTION = Rule("a function", lambda value: _if(callable(value), value))
_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("batch", "threads", "processes", "runs", "min_rounds", "max_rounds"), COUNT),
    **dict.fromkeys(("wait_s", "budget_s", "wall_s"), _SECONDS),
    **dict.fromkeys(("strict", "fresh", "naive", "layers", "values", "write", "skip_invalid"), _SWITCH),
    **dict.fromkeys(("observe", "note"), _FUNCTION),
    **dict.fromkeys(("file", "mapping", "machine", "path"), PATH),
    "target": Rule("a share above 0, such as 0.01", lambda value: _number(value, lambda one: 0 < one < math.inf)),
    "seed": Rule("a whole number, 0 or more", lambda value: _whole(value, 0)),
    "device": Rule("the name of a device", _text),
    "devices": Rule("a list of names of devices", lambda values: _list(values, _text)),
    "preset": Rule("the name of a built-in machine", _text),
    "dims": Rule('the sizes of dimensions by name, such as {"batch": 1}', _sizes),
    "stop": instance(threading.Event, "a threading.Event"),
}


def _rules(annotations: Mapping[str, str], others: Mapping[str, Rule]) -> dict[str, Rule]:
    """Return the rule of each argument that has one."""
    found = {name: rule for name, rule in {**_RULES, **others}.items() if name in annotations}
    return {name: replace(rule, allows_none=annotations[name].endswith("None")) for name, rule in found.items()}


def _read(name: str, value: Any, rule: Rule) -> Any:
    """Return an argument as functions take it; raises UsageError for one that its rule does not allow."""
    try:
        return None if value is None and rule.allows_none else rule.read(value)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"{name} is {printable(rule.shown(value), 80)}", why=f"It must be {rule.must}") from None


def check_fields(one: Any, **others: Rule) -> None:
    """Check the fields of a new frozen dataclass as `checked` checks arguments, and replace them by what was read."""
    rules = _rules({each.name: str(each.type) for each in fields(one)}, others)
    for name, rule in rules.items():
        object.__setattr__(one, name, _read(name, getattr(one, name), rule))


def fields_of(kind: type, one: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, with the values of an object that has them, too."""
    return {each.name: getattr(one, each.name) for each in fields(kind)}


def _bound(
    function: Callable[..., Any], signature: inspect.Signature, args: Any, kwargs: Any
) -> inspect.BoundArguments:
    """Return arguments by their parameters; raises a TypeError that names the function if they do not fit them."""
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{function.__name__}(): {error}") from None


def spread(kind: Callable[_P, _T]) -> Callable[[Callable[[_T], _R]], Callable[_P, _R]]:
    """Let a function of one object take the arguments that a new object of this class takes, its own ones first."""
    own, signature = getattr(kind, "__annotations__", {}), inspect.signature(kind)
    parameters = sorted(signature.parameters.values(), key=lambda one: (one.kind, one.name not in own))

    def decorate(function: Callable[[_T], _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            bound = _bound(function, signature, args, kwargs)
            return function(kind(*bound.args, **bound.kwargs))

        returned = inspect.signature(function).return_annotation
        call.__signature__ = inspect.Signature(parameters, return_annotation=returned)  # type: ignore[attr-defined]
        return call

    return decorate


def checked(**others: Rule) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Check the arguments of a function; `others` are rules of this function alone.

    The function raises UsageError for an argument that its rule does not allow, before it does anything. None is
    allowed where the annotation ends with it.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        signature = inspect.signature(function)
        rules = _rules({name: str(one.annotation) for name, one in signature.parameters.items()}, others)

        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            bound = _bound(function, signature, args, kwargs)
            for name in rules.keys() & bound.arguments.keys():
                bound.arguments[name] = _read(name, bound.arguments[name], rules[name])
            return function(*bound.args, **bound.kwargs)

        return call

    return decorate
