"""Find the latency in the output of a tool: at a path into a JSON document, or on a line that matches a pattern.

`json:$.a['b c'][0]` selects one number of a JSON document; one `[*]` selects a number of each element of a list.
`pattern:^…$` is a regular expression for a whole line, with one group for the number; exactly one line must match.
A missing or duplicate figure is an error and never a latency.
"""

from __future__ import annotations

import json
import math
import re
import signal
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Callable, Dict, Iterator, List, Tuple, Union

UNITS_NS = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}
LONGEST_S = 1e4
_MATCHING_S = 5.0
_STEP = re.compile(r"\.([A-Za-z_][A-Za-z0-9_-]*)|\['([^']+)'\]|\[([0-9]{1,6})\]|(\[\*\])")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_EACH = object()
_Step = Union[str, int, object]


@dataclass(frozen=True)
class LatencyRule:
    """How to find latencies: `find` returns the figures in a text, or raises ValueError with the reason.

    If the rule `gives_list`, each figure belongs to one run; otherwise there is one figure.
    """

    find: Callable[[str], List[float]]
    gives_list: bool


def latency_rule(expression: str) -> LatencyRule:
    """Return the rule for an expression of devices.toml; raises ValueError if it is malformed."""
    kind, _, rest = expression.partition(":")
    if kind == "json":
        steps = _steps(rest)
        return LatencyRule(lambda text: _figures(_document(text), steps, "$"), _EACH in steps)
    if kind == "pattern":
        pattern = _anchored(rest)
        return LatencyRule(lambda text: [_only_match(pattern, text)], False)
    raise ValueError("latency must be json:PATH or pattern:^EXPRESSION$")


def nanoseconds(figure: float, unit: str) -> int:
    """Return a latency in whole nanoseconds; raises ValueError if no run can take that long or that short."""
    if not math.isfinite(figure) or figure <= 0:
        raise ValueError("a latency of %g %s is not positive and finite" % (figure, unit))
    time_ns = figure * UNITS_NS[unit]
    if time_ns > LONGEST_S * 1e9:
        raise ValueError("a latency of %g %s is more than %g s" % (figure, unit, LONGEST_S))
    if round(time_ns) < 1:
        raise ValueError("a latency of %g %s is less than a nanosecond" % (figure, unit))
    return round(time_ns)


def _steps(path: str) -> Tuple[_Step, ...]:
    if not path.startswith("$"):
        raise ValueError("a JSON path must begin with $")
    steps: List[_Step] = []
    at = 1
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            raise ValueError("the JSON path needs .KEY, ['KEY'], [NUMBER] or [*] at %r" % path[at : at + 20])
        key, quoted, index, each = step.groups()
        steps.append(_EACH if each else int(index) if index else key or quoted)
        at = step.end()
    if steps.count(_EACH) > 1:
        raise ValueError("a JSON path may have one [*] at most")
    return tuple(steps)


def _document(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("the output is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError("the output is not JSON: %s" % error) from None


def _object(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a JSON object of the output has a key twice")
    return found


def _figures(value: Any, steps: Tuple[_Step, ...], place: str) -> List[float]:
    for at, step in enumerate(steps):
        if step is _EACH:
            if not isinstance(value, list) or not value:
                raise ValueError("%s is not a list with elements" % place)
            rest = steps[at + 1 :]
            return [one for index, item in enumerate(value) for one in _figures(item, rest, "%s[%d]" % (place, index))]
        kind = list if isinstance(step, int) else dict
        place = "%s[%s]" % (place, step) if kind is list else "%s.%s" % (place, step)
        inside = isinstance(value, kind) and (step < len(value) if isinstance(step, int) else step in value)
        if not inside:
            raise ValueError("the output has no %s" % place)
        value = value[step]
    if type(value) not in (int, float):
        raise ValueError("%s is not a number" % place)
    try:
        return [float(value)]
    except OverflowError:
        raise ValueError("%s is too large" % place) from None


def _anchored(source: str) -> "re.Pattern[str]":
    inner = source[1:-1]
    escaped = len(inner) - len(inner.rstrip("\\"))
    if len(source) < 3 or source[0] != "^" or source[-1] != "$" or escaped % 2:
        raise ValueError("a pattern must begin with ^ and end with $")
    try:
        re.compile(inner)  # checked separately: an unbalanced parenthesis would close the group below
        pattern = re.compile("^(?:%s)$" % inner, re.MULTILINE)
    except re.error as error:
        raise ValueError("the pattern is not a valid regular expression: %s" % error) from None
    if pattern.groups != 1:
        raise ValueError("a pattern must have one group, for the number; this one has %d" % pattern.groups)
    return pattern


class _TooSlowError(Exception):
    """Raised by the timer: a pattern such as (a+)+ may take forever."""


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise _TooSlowError in the body after `seconds`; works in the main thread only, where a worker does its work."""

    def ring(_number: int, _frame: Any) -> None:
        raise _TooSlowError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _only_match(pattern: "re.Pattern[str]", text: str) -> float:
    try:
        with _time_limit(_MATCHING_S):
            matches = list(islice(pattern.finditer(text.replace("\r\n", "\n")), 2))
    except _TooSlowError:
        raise ValueError("matching the pattern takes more than %g s; simplify it" % _MATCHING_S) from None
    if len(matches) != 1:
        raise ValueError("the pattern matches %s of the output" % ("more than one line" if matches else "no line"))
    figure = matches[0].group(1) or ""
    if not _NUMBER.fullmatch(figure):
        raise ValueError("the pattern finds %r, which is not a number" % figure[:40])
    return float(figure)
