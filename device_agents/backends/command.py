"""A vendor's tool as a backend: a program that is called with a model and tells a latency in what it prints.

docs/vendor_tools.md explains the options. A call takes a list of arguments, never a line for a shell; what the
network sends has no part in them. A tool that gives no latency for a probe refuses it at loading; one that gave
some and stops doing so ends the worker, as a runtime that crashes does.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Deque, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from device_agents import arrays
from device_agents.backends import LoadRequest, Refused, Sample
from device_agents.backends.command_latency import nanoseconds
from device_agents.backends.command_options import filled, read_options
from device_agents.backends.command_process import MAX_OUTPUT_BYTES, Call, Launcher, ToolFailed
from device_agents.backends.onnx_bytes import with_weights
from device_agents.truth import Revealed

_VERSION_LETTERS, _COMMAND_LETTERS = 500, 900
_PUSH_S, _REMOVE_S, _VERSION_S = 150.0, 30.0, 30.0
"""With a call between them less than the host grants a worker for loading a probe; the last, for its start."""


@dataclass(frozen=True)
class _ModelFile:
    """A complete model in a folder of its own, which holds what the tool puts beside it, and who uses it."""

    folder: str
    name: str
    probes: Set[str] = field(default_factory=set)

    @property
    def values(self) -> Dict[str, str]:
        """What stands for the model in arguments."""
        return {"model": os.path.join(self.folder, self.name), "name": self.name}


class CommandBackend:
    """Calls a tool for each sample, or for each few where it tells the latencies of single runs."""

    name = "command"
    reveals: Tuple[str, ...] = ()

    def __init__(self, options: Dict[str, Any]) -> None:
        self._options = read_options(options)
        self.clock = self._options.clock
        self._launcher = Launcher()
        self._version = self._told_version()
        self._files: Dict[str, _ModelFile] = {}
        self._loaded: Dict[str, _ModelFile] = {}
        self._waiting: Dict[str, Deque[Sample]] = {}

    def fingerprint(self) -> Dict[str, str]:
        """The tool's version, its arguments, and a digest of all options that change what is measured."""
        known = self._options
        settings = f"runs={known.runs},warmup={known.warmup},unit={known.unit},clock={known.clock}"
        return {
            "runtime": "command",
            "runtime_version": self._version,
            "settings": f"{settings},options={known.digest}",
            "command": " ".join(known.run)[:_COMMAND_LETTERS],
        }

    def load(self, request: LoadRequest) -> Optional[Revealed]:
        """Writes the complete model, pushes it and calls the tool once; a copy of what is there shares all that.

        Each call is a new process that warms itself up, or does not: what the first one tells is as good as the rest.
        """
        self.unload(request.probe)
        key = _digest(request)
        first: List[Sample] = []
        if key not in self._files:
            self._files[key], first = self._prepared(request)
        self._files[key].probes.add(request.probe)
        self._loaded[request.probe] = self._files[key]
        self._waiting[request.probe] = deque(first)
        return None

    def unload(self, probe: str) -> None:
        """Removes the model, here and where it was pushed to, once nobody uses it; raises Refused."""
        self._waiting.pop(probe, None)
        file = self._loaded.pop(probe, None)
        if file is None:
            return
        file.probes.discard(probe)
        if not file.probes:
            self._files = {key: one for key, one in self._files.items() if one is not file}
            try:
                self._removed(file)
            except (ToolFailed, OSError) as error:
                raise Refused(f"the model could not be removed: {error}") from error

    def run(self, probe: str) -> Sample:
        """The next latency that the tool told of this probe; calls it where none is left."""
        waiting = self._waiting[probe]
        if not waiting:
            try:
                waiting.extend(self._measured(self._loaded[probe]))
            except ToolFailed as error:
                raise SystemExit(f"{error}") from error  # it told a latency before: not the probe, the device
        return waiting.popleft()

    def _told_version(self) -> str:
        told = self._options.version
        if not isinstance(told, str):
            try:
                call = self._call(told, {}, _VERSION_S)
            except ToolFailed as error:
                raise Refused(f"the version of the tool cannot be told: {error}") from error
            told = call.output if call.output.strip() else call.errors
        if not told.strip():
            raise Refused("the tool tells no version")
        return " ".join(told.split())[:_VERSION_LETTERS]

    def _prepared(self, request: LoadRequest) -> Tuple[_ModelFile, List[Sample]]:
        taken = {file.name for file in self._files.values()}
        # Few names, used again: what a session that was cut off has left elsewhere is overwritten by the next.
        number = next(number for number in range(len(taken) + 1) if f"probe-{number}.onnx" not in taken)
        try:
            folder = tempfile.mkdtemp(prefix="model-", dir=os.getcwd())
        except OSError as error:
            raise Refused(str(error)) from error
        file = _ModelFile(folder, f"probe-{number}.onnx")
        try:
            weights = {spec["name"]: arrays.make(spec) for spec in request.weights}
            with open(file.values["model"], "xb") as content:
                content.write(with_weights(request.model, weights))
            if self._options.push:
                self._call(self._options.push, file.values, _PUSH_S)
            return file, self._measured(file)
        except (ToolFailed, OSError, ValueError) as error:
            with suppress(ToolFailed, OSError):  # what went wrong first is what to tell
                self._removed(file)
            raise Refused(str(error)) from error

    def _removed(self, file: _ModelFile) -> None:
        try:
            if self._options.remove:
                self._call(self._options.remove, file.values, _REMOVE_S)
        finally:
            shutil.rmtree(file.folder, ignore_errors=True)

    def _measured(self, file: _ModelFile) -> List[Sample]:
        with _new_folder() as folder:
            known = self._options
            output = os.path.join(folder, "output")
            values = {**file.values, "output": output, "runs": str(known.runs), "warmup": str(known.warmup)}
            call = self._launcher.call(filled(known.run, values), known.timeout_s, folder)
            try:
                times_ns = self._times_ns(call, output)
            except ValueError as error:
                raise ToolFailed(f"{error}{call.last_words()}") from error
        share_ns = max(1, call.wall_ns // len(times_ns))
        return [Sample(one) if self.clock == "wall" else Sample(share_ns, None, one) for one in times_ns]

    def _times_ns(self, call: Call, output: str) -> List[int]:
        known = self._options
        printed = call.output if known.in_json else f"{call.output}\n{call.errors}"
        figures = known.rule.find(_read(output) if known.in_file else printed)
        if known.rule.gives_list and len(figures) < known.runs:
            raise ValueError(f"the tool tells {len(figures)} latencies instead of {known.runs}")
        times_ns = [nanoseconds(figure, known.unit) for figure in figures[-known.runs :]]
        if self.clock == "wall" and max(times_ns) > call.wall_ns:
            longest_s, call_s = max(times_ns) / 1e9, call.wall_ns / 1e9
            raise ValueError(f"a latency of {longest_s:g} s in a call that took {call_s:g} s: is the unit right?")
        return times_ns

    def _call(self, words: Sequence[str], values: Mapping[str, str], timeout_s: float) -> Call:
        with _new_folder() as folder:
            return self._launcher.call(filled(words, values), timeout_s, folder)


@contextmanager
def _new_folder() -> Iterator[str]:
    """A folder for one call, which goes with all that the tool leaves in it."""
    folder = tempfile.mkdtemp(prefix="call-", dir=os.getcwd())
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _digest(request: LoadRequest) -> str:
    return hashlib.sha256(request.model + json.dumps(request.weights, sort_keys=True).encode()).hexdigest()


def _read(path: str) -> str:
    """A file that the tool wrote, and nothing that it put there instead of one."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise ValueError("the tool wrote no {output}: it is no file")
        with open(path, "rb") as content:
            data = content.read(MAX_OUTPUT_BYTES + 1)
    except OSError as error:
        raise ValueError(f"the tool wrote no {{output}}: {error.strerror}") from error
    if len(data) > MAX_OUTPUT_BYTES:
        raise ValueError(f"{{output}} is larger than {MAX_OUTPUT_BYTES >> 20} MiB")
    return data.decode("utf-8", "replace")
