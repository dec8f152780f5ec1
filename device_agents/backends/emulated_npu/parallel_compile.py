"""Compile many models on all cores: in this process and in forks of it.

All take the numbers of models from one pipe, the largest model first, and each fork writes what it finds to a file of
its own. What one does not finish is missing in the result; loading the probe compiles the model then, and reports what
is wrong with it. This process keeps the estimates of the chains that it met, and later forks inherit them.
"""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
from typing import IO, Dict, Iterator, List, Sequence, Tuple

from device_agents.backends.emulated_npu.timed_model import TimedModel, from_json, time_model, to_json
from device_agents.child_processes import end_with_parent
from device_agents.emulated_npu.gc_tuning import YOUNG_OBJECTS_OF_MANY_MODELS, rare_collections
from device_agents.emulated_npu.machine import Machine

MOST_MODELS = 1000
"""As many numbers as a pipe holds with room to spare."""
_NUMBER = struct.Struct("<H")


def time_models(models: Sequence[bytes], machine: Machine, jobs: int) -> Dict[bytes, TimedModel]:
    """Return the timed models that `jobs` processes compiled, those left out that could not be; raises OSError."""
    found: Dict[bytes, TimedModel] = {}
    for first in range(0, len(models), MOST_MODELS):
        part = sorted(models[first : first + MOST_MODELS], key=len, reverse=True)
        found.update(_time_part(part, machine, min(jobs, len(part))))
    return found


def _time_part(models: Sequence[bytes], machine: Machine, jobs: int) -> Dict[bytes, TimedModel]:
    waiting, fill = os.pipe()
    children: List[int] = []
    results = [tempfile.TemporaryFile() for _ in range(jobs - 1)]  # noqa: SIM115 - closed below
    try:
        try:
            os.write(fill, b"".join(map(_NUMBER.pack, range(len(models)))))
        finally:
            os.close(fill)  # the forks do not have it, and all see the end of the numbers
        try:
            with contextlib.suppress(OSError):  # as many processes as the system allows
                for result in results:
                    children.append(_fork(models, machine, waiting, result))
            own = list(_timed(models, machine, waiting))
        finally:
            for child in children:
                os.waitpid(child, 0)
        found = (*own, *(one for result in results for one in _read(result)))
        return {models[number]: from_json(content) for number, content in found}
    finally:
        os.close(waiting)
        for result in results:
            result.close()


def _timed(models: Sequence[bytes], machine: Machine, waiting: int) -> Iterator[Tuple[int, bytes]]:
    """Compile models whose numbers arrive on a pipe; yields their numbers and results."""
    with rare_collections(YOUNG_OBJECTS_OF_MANY_MODELS):
        while taken := os.read(waiting, _NUMBER.size):
            (number,) = _NUMBER.unpack(taken)
            with contextlib.suppress(Exception):  # loading the probe meets the same error, and reports it
                yield number, to_json(time_model(models[number], machine))


def _fork(models: Sequence[bytes], machine: Machine, waiting: int, result: IO[bytes]) -> int:
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        end_with_parent(parent)
        for number, content in _timed(models, machine, waiting):
            result.write(b"%d %s\n" % (number, content))
            result.flush()
        code = 0
    finally:
        os._exit(code)  # nothing of the worker's own ending may run here


def _read(result: IO[bytes]) -> List[Tuple[int, bytes]]:
    """Return the whole lines of a result; a fork that was killed may have left part of one."""
    result.seek(0)
    found = []
    for line in result.read().split(b"\n")[:-1]:
        number, _, content = line.partition(b" ")
        found.append((int(number), content))
    return found
