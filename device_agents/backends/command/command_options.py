"""Options of the command backend: arguments with placeholders, and how to read the latency.

docs/vendor_tools.md explains them.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Sequence, Set, Tuple, Union

from device_agents.backends import Refused
from device_agents.backends.command.latency_rule import UNITS_NS, LatencyRule, latency_rule
from device_agents.backends.command.tool_process import find_program
from device_agents.backends.option_reader import OptionReader

_OPTIONS = {"run", "push", "remove", "latency", "unit", "clock", "runs", "warmup", "timeout_s", "version"}
_NOT_MEASURED = ("remove", "timeout_s", "version")
_CLOCKS = ("wall", "device")
_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_OF_MODEL = ("model", "name")
_OF_RUN = (*_OF_MODEL, "output", "runs", "warmup")
_MOST_WORDS, _MOST_RUNS = 200, 100_000
_TIMEOUT_S, _LONGEST_TIMEOUT_S = 20.0, 100.0


@dataclass(frozen=True)
class CommandOptions:
    """The checked options of one device; `push` and `remove` may be empty, `version` is a text or arguments.

    `in_file`: the tool writes its latency to the file {output}. `in_json`: it prints a JSON document.
    """

    run: Tuple[str, ...]
    push: Tuple[str, ...]
    remove: Tuple[str, ...]
    version: Union[str, Tuple[str, ...]]
    rule: LatencyRule
    in_file: bool
    in_json: bool
    unit: str
    clock: str
    runs: int
    warmup: int
    timeout_s: float
    digest: str


def read_options(options: Dict[str, Any]) -> CommandOptions:
    """Return checked options; raises Refused or ValueError if one is missing, wrong, or names a missing program."""
    read = OptionReader("command", options, _OPTIONS)
    run = _template(options, "run", _OF_RUN)
    if not run or not {"model", "name"} & _placeholders(run):
        raise Refused("the option run of the command backend needs an argument that contains {model} or {name}")
    latency, version = options.get("latency"), options.get("version")
    if not isinstance(latency, str):
        raise Refused("the command backend needs the option latency, a text")
    if not version:
        raise Refused("the command backend needs the option version: a text, or a command that prints it")
    timeout_s = read.number("timeout_s", _TIMEOUT_S, _LONGEST_TIMEOUT_S)
    if not timeout_s:
        raise read.wrong("timeout_s", "must be above 0")
    kept = {name: value for name, value in options.items() if name not in _NOT_MEASURED}
    return CommandOptions(
        run=run,
        push=_template(options, "push", _OF_MODEL),
        remove=_template(options, "remove", _OF_MODEL),
        version=version if isinstance(version, str) else _template(options, "version", ()),
        rule=latency_rule(latency),
        in_file="output" in _placeholders(run),
        in_json=latency.startswith("json:"),
        unit=read.one_of("unit", UNITS_NS),
        clock=read.one_of("clock", _CLOCKS, _CLOCKS[0]),
        runs=read.whole("runs", 10, 1, _MOST_RUNS),
        warmup=read.whole("warmup", 3, 0, _MOST_RUNS),
        timeout_s=timeout_s,
        digest=hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16],
    )


def filled(words: Sequence[str], values: Mapping[str, str]) -> List[str]:
    """Return the arguments with their placeholders replaced."""
    return [_PLACEHOLDER.sub(lambda place: values[place[1]] if place[1] else place[0][0], word) for word in words]


def _template(options: Mapping[str, Any], name: str, known: Sequence[str]) -> Tuple[str, ...]:
    """Return checked arguments, the program first; empty if the option is not given."""
    words = options.get(name, [])
    if not isinstance(words, list) or not all(isinstance(word, str) and "\0" not in word for word in words):
        raise Refused(f"the option {name} of the command backend must be a list of texts, the program first")
    if len(words) > _MOST_WORDS:
        raise Refused(f"the option {name} of the command backend has more than {_MOST_WORDS} arguments")
    for word in words:
        for place in _PLACEHOLDER.finditer(word):
            if place[0] not in ("{{", "}}") and place[1] not in known:
                raise Refused(
                    f"the option {name} of the command backend has no placeholder {place[0]!r}; it has "
                    f"{', '.join('{%s}' % one for one in known) or 'none'}, and braces are doubled: {{{{ }}}}"
                )
    if words and (_placeholders(words[:1]) or not find_program(words[0])):
        raise Refused(f"the program {words[0]!r} of the option {name} is neither an absolute path nor on PATH")
    return tuple(words)


def _placeholders(words: Sequence[str]) -> Set[str]:
    return {place[1] for word in words for place in _PLACEHOLDER.finditer(word) if place[1]}
