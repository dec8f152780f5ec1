"""One target under atheris: `python -m fuzz.instrumented TARGET STATISTICS FOLDER [libFuzzer options] CORPUS`.

Modules of the reader are instrumented at import. STATISTICS, a JSON file, is written when an input takes longer than
all before it, and every few thousand inputs. The target writes its files to FOLDER.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
from pathlib import Path
from typing import Any

from fuzz.target import MAX_INPUT_BYTES, Target, target

_ADDRESS_BYTES = 6 << 30
_WRITE_EVERY = 2000


def main(words: list[str]) -> None:
    """Fuzz until libFuzzer ends the process."""
    import atheris

    name, statistics, folder = words[1], Path(words[2]), Path(words[3])
    resource.setrlimit(resource.RLIMIT_DATA, (_ADDRESS_BYTES, resource.RLIM_INFINITY))
    with atheris.instrument_imports(include=["harness", "device_agents"]):
        chosen = target(name)
    atheris.Setup([words[0], *words[4:]], _Observed(chosen, statistics, folder), custom_mutator=_mutator(chosen))
    atheris.Fuzz()


class _Observed:
    """Reads inputs, counts them and the accepted ones, and keeps the slowest."""

    def __init__(self, chosen: Target, statistics: Path, folder: Path) -> None:
        self._target = chosen
        self._statistics = statistics
        self._folder = folder
        self._inputs = self._accepted = 0
        self._slowest_s = 0.0

    def __call__(self, data: bytes) -> None:
        started_s = time.perf_counter()
        accepted = self._target.read(data, self._folder)
        taken_s = time.perf_counter() - started_s
        self._inputs += 1
        self._accepted += accepted
        if taken_s > self._slowest_s:
            self._slowest_s = taken_s
            (self._statistics.with_suffix(".slowest")).write_bytes(data)
            self._write()
        elif self._inputs % _WRITE_EVERY == 0:
            self._write()

    def _write(self) -> None:
        found = {"inputs": self._inputs, "accepted": self._accepted, "slowest_s": self._slowest_s}
        aside = self._statistics.with_suffix(".part")
        aside.write_text(json.dumps(found))
        os.replace(aside, self._statistics)


def _mutator(chosen: Target) -> Any:
    import atheris

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        draw = random.Random(seed)  # noqa: S311 - not a secret
        if draw.random() < 0.1:
            return bytes(atheris.Mutate(data, max_size))
        for _ in range(draw.choice((1, 1, 2, 4))):
            data = chosen.mutate(data, draw)
        return data[: min(max_size, MAX_INPUT_BYTES)]

    return mutate


if __name__ == "__main__":
    main(sys.argv)
