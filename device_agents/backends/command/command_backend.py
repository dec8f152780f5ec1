"""A vendor's tool as a backend: a program that runs a model and prints a latency.

docs/vendor_tools.md explains the options. A call passes a list of arguments and never uses a shell; only paths and
numbers chosen here replace placeholders. A tool that prints no latency when a probe is loaded refuses the probe. A
tool that printed latencies and then stops ends the worker, like a runtime that crashes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Deque, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple, Union

from device_agents import arrays
from device_agents.backends import Refused
from device_agents.backends.command.latency_rule import UNITS_NS, LatencyRule, latency_rule, nanoseconds
from device_agents.backends.command.tool_process import (
    MAX_OUTPUT_BYTES,
    Launcher,
    ToolCall,
    ToolFailed,
    ToolHung,
    find_program,
)
from device_agents.backends.onnx_bytes import with_weights
from device_agents.backends.option_reader import OptionReader
from device_agents.messages import LoadRequest, Revealed, Sample

MOST_HANGS = 3
"""Runs that do not end in time, with none between them that succeeds: the tool is broken, not the probes."""
_VERSION_LETTERS, _COMMAND_LETTERS = 500, 900
# A push, a run (100 s at most) and a removal stay below the 300 s that the host grants a worker to load a probe.
# The version must be printed while the worker starts.
_PUSH_S, _REMOVE_S, _VERSION_S = 150.0, 30.0, 30.0
_OPTIONS = {"run", "push", "remove", "latency", "unit", "clock", "runs", "warmup", "timeout_s", "version"}
_NOT_MEASURED = ("remove", "timeout_s", "version")
_CLOCKS = ("wall", "device")
_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_OF_MODEL = ("model", "name")
_OF_RUN = (*_OF_MODEL, "output", "runs", "warmup")
_MOST_WORDS, _MOST_RUNS = 200, 100_000
_TIMEOUT_S, _LONGEST_TIMEOUT_S = 20.0, 100.0


@dataclass(frozen=True)
class _ModelFile:
    """A complete model in its own folder, which all probes of equal `digest` use; the tool may write to the folder."""

    digest: str
    folder: str
    name: str

    @property
    def placeholders(self) -> Dict[str, str]:
        """Values of the placeholders for the model."""
        return {"model": os.path.join(self.folder, self.name), "name": self.name}


@dataclass(frozen=True)
class _PushedModel:
    """A loaded probe: its model, and samples that were measured but not yet asked for."""

    file: _ModelFile
    samples: Deque[Sample]


class CommandBackend:
    """Calls a tool for each sample, or for several samples together if it reports the latencies of single runs."""

    name = "command"
    reveals: Tuple[str, ...] = ()

    def __init__(self, options: Dict[str, Any]) -> None:
        self._options = read_options(options)
        self.clock = self._options.clock
        self._launcher = Launcher()
        self._hangs = 0
        self._version = self._read_version()
        self._loaded: Dict[str, _PushedModel] = {}

    def fingerprint(self) -> Dict[str, str]:
        """Return the tool's version, its arguments, and a digest of all options that change what is measured."""
        options = self._options
        settings = f"runs={options.runs},warmup={options.warmup},unit={options.unit},clock={options.clock}"
        return {
            "runtime": "command",
            "runtime_version": self._version,
            "settings": f"{settings},options={options.digest}",
            "command": " ".join(options.run)[:_COMMAND_LETTERS],
        }

    def load(self, request: LoadRequest) -> Optional[Revealed]:
        """Write the complete model, push it and call the tool once; equal models share one file.

        Each call starts a new process with its own warm-up, so the samples of this first call are kept.
        """
        self.unload(request.probe)
        digest = hashlib.sha256(request.model + json.dumps(request.weights, sort_keys=True).encode()).hexdigest()
        shared = [loaded.file for loaded in self._loaded.values() if loaded.file.digest == digest]
        file, first = (shared[0], []) if shared else self._prepared(request, digest)
        self._loaded[request.probe] = _PushedModel(file, deque(first))
        return None

    def unload(self, probe: str) -> None:
        """Remove the model, here and where it was pushed to, when no probe uses it; raises Refused."""
        dropped = self._loaded.pop(probe, None)
        if dropped is None or any(loaded.file is dropped.file for loaded in self._loaded.values()):
            return
        try:
            self._remove(dropped.file)
        except (ToolFailed, OSError) as error:
            raise Refused(f"the model could not be removed: {error}") from error

    def run(self, probe: str) -> Sample:
        """Return the next latency of this probe; calls the tool if there is none."""
        loaded = self._loaded[probe]
        if not loaded.samples:
            try:
                loaded.samples.extend(self._measure(loaded.file))
            except ToolFailed as error:
                raise SystemExit(f"{error}") from error  # it worked before: the device failed, not the probe
        return loaded.samples.popleft()

    def _read_version(self) -> str:
        version = self._options.version
        if not isinstance(version, str):
            try:
                call = self._call(version, {}, _VERSION_S)
            except ToolFailed as error:
                raise Refused(f"the tool does not report its version: {error}") from error
            version = call.output if call.output.strip() else call.errors
        if not version.strip():
            raise Refused("the tool printed no version")
        return " ".join(version.split())[:_VERSION_LETTERS]

    def _prepared(self, request: LoadRequest, digest: str) -> Tuple[_ModelFile, List[Sample]]:
        taken = {loaded.file.name for loaded in self._loaded.values()}
        # Names are few and used again, so that files an aborted session left on the device are overwritten.
        name = next(name for name in map("probe-{}.onnx".format, count()) if name not in taken)
        try:
            folder = tempfile.mkdtemp(prefix="model-", dir=os.getcwd())
        except OSError as error:
            raise Refused(str(error)) from error
        file = _ModelFile(digest, folder, name)
        try:
            weights = {spec["name"]: arrays.make(spec) for spec in request.weights}
            with open(file.placeholders["model"], "xb") as content:
                content.write(with_weights(request.model, weights))
            if self._options.push:
                self._call(self._options.push, file.placeholders, _PUSH_S)
            return file, self._measure(file)
        except (ToolFailed, OSError, ValueError) as error:
            with suppress(ToolFailed, OSError):  # the first error is the one to report
                self._remove(file)
            raise Refused(str(error)) from error

    def _remove(self, file: _ModelFile) -> None:
        try:
            if self._options.remove:
                self._call(self._options.remove, file.placeholders, _REMOVE_S)
        finally:
            shutil.rmtree(file.folder, ignore_errors=True)

    def _measure(self, file: _ModelFile) -> List[Sample]:
        options = self._options
        with _new_folder() as folder:
            output = os.path.join(folder, "output")
            counts = {"runs": str(options.runs), "warmup": str(options.warmup)}
            words = filled(options.run, {**file.placeholders, "output": output, **counts})
            call = self._call_run(words, folder)
            try:
                times_ns = self._times_ns(call, output)
            except ValueError as error:
                raise ToolFailed(f"{error}{call.last_words()}") from error
        share_ns = max(1, call.wall_ns // len(times_ns))
        return [Sample(one) if self.clock == "wall" else Sample(share_ns, None, one) for one in times_ns]

    def _call_run(self, words: Sequence[str], folder: str) -> ToolCall:
        """Call the tool for a model; raises SystemExit for the last of MOST_HANGS hangs."""
        try:
            call = self._launcher.call(words, self._options.timeout_s, folder)
        except ToolHung as hang:
            self._hangs += 1
            if self._hangs < MOST_HANGS:
                raise
            text = f"{MOST_HANGS} runs hung with none between that succeeded, and the tool is not called again: {hang}"
            raise SystemExit(text) from hang
        self._hangs = 0
        return call

    def _times_ns(self, call: ToolCall, output: str) -> List[int]:
        options = self._options
        printed = call.output if options.in_json else f"{call.output}\n{call.errors}"
        figures = options.rule.find(_read(output) if options.in_file else printed)
        if options.rule.gives_list and len(figures) < options.runs:
            raise ValueError(f"the tool reported {len(figures)} latencies instead of {options.runs}")
        times_ns = [nanoseconds(figure, options.unit) for figure in figures[-options.runs :]]
        if self.clock == "wall" and max(times_ns) > call.wall_ns:
            longest_s, call_s = max(times_ns) / 1e9, call.wall_ns / 1e9
            raise ValueError(f"a latency of {longest_s:g} s in a call that took {call_s:g} s: check the option unit")
        return times_ns

    def _call(self, words: Sequence[str], values: Mapping[str, str], timeout_s: float) -> ToolCall:
        with _new_folder() as folder:
            return self._launcher.call(filled(words, values), timeout_s, folder)


@contextmanager
def _new_folder() -> Iterator[str]:
    """Yield a folder for one call; it is removed with everything that the tool left in it."""
    folder = tempfile.mkdtemp(prefix="call-", dir=os.getcwd())
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _read(path: str) -> str:
    """Return the text of a regular file that the tool wrote; raises ValueError for anything else."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise ValueError("the tool wrote no {output}: it is not a regular file")
        with open(path, "rb") as content:
            data = content.read(MAX_OUTPUT_BYTES + 1)
    except OSError as error:
        raise ValueError(f"the tool wrote no {{output}}: {error.strerror}") from error
    if len(data) > MAX_OUTPUT_BYTES:
        raise ValueError(f"{{output}} is larger than {MAX_OUTPUT_BYTES >> 20} MiB")
    return data.decode("utf-8", "replace")


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
