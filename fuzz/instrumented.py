"""One target under atheris: `python -m fuzz.instrumented TARGET STATISTICS FOLDER [libFuzzer options] CORPUS`.

Modules of the reader are instrumented at import. STATISTICS, a JSON file, is written when an input takes longer than
all before it, and every few inputs. The target writes its files to FOLDER.
"""

import hashlib
import json
import os
import random
import resource
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from fuzz.outcome import Outcome
from fuzz.target import HANG_S, MAX_INPUT_BYTES, Target, target

_ADDRESS_BYTES = 6 << 30
_WRITE_EVERY = 50
_REMEMBERED = 1 << 20
_BASES = 500
_REPLACED = 0.85
"""How often an accepted input is mutated in the place of a refused one."""
_BLIND = 0.05
"""How often libFuzzer changes the bytes itself."""


def main(words: list[str]) -> None:
    """Fuzz until libFuzzer ends the process."""
    import atheris

    name, statistics, folder = words[1], Path(words[2]), Path(words[3])
    resource.setrlimit(resource.RLIMIT_DATA, (_ADDRESS_BYTES, resource.RLIM_INFINITY))
    with atheris.instrument_imports(include=["harness", "device_agents"]):
        chosen = target(name)
    for seed in chosen.seeds():  # what is imported on first use takes seconds
        chosen.read(seed, folder)
    observed = _Observed(chosen, statistics, folder)
    atheris.Setup([words[0], *words[4:]], observed, custom_mutator=_mutator(chosen, observed))
    atheris.Fuzz()


class _Observed:
    """Reads inputs, counts what becomes of them, and keeps the slowest."""

    def __init__(self, chosen: Target, statistics: Path, folder: Path) -> None:
        self._target = chosen
        self._statistics = statistics
        self._folder = folder
        self._counts: Counter[Outcome] = Counter()
        self._slowest_s = 0.0
        self._accepted: dict[bytes, bool] = {}
        self._bases: list[bytes] = []

    def __call__(self, data: bytes) -> None:
        started_s = time.process_time()
        outcome = self._target.read(data, self._folder)
        taken_s = time.process_time() - started_s
        if taken_s > HANG_S:
            raise AssertionError(f"this took {taken_s:.0f} s of processor time")
        self._counts[outcome] += 1
        if len(self._accepted) < _REMEMBERED:
            self._accepted[_digest(data)] = outcome.is_accepted
        if taken_s > self._slowest_s:
            self._slowest_s = taken_s
            (self._statistics.with_suffix(".slowest")).write_bytes(data)
            self._write()
        elif self._counts.total() % _WRITE_EVERY == 0:
            self._write()

    def base(self, data: bytes, draw: random.Random) -> bytes:
        """Return what to mutate: mostly an accepted input, since what is changed in a refused one stays refused."""
        accepted = self._accepted.get(_digest(data))
        if accepted and data not in self._bases:
            self._bases.append(data)
            if len(self._bases) > _BASES:
                del self._bases[draw.randrange(len(self._bases))]
        if accepted is False and self._bases and draw.random() < _REPLACED:
            return draw.choice(self._bases)
        return data

    def _write(self) -> None:
        outcomes = {outcome.name.lower(): self._counts[outcome] for outcome in Outcome}
        found = {"inputs": self._counts.total(), "outcomes": outcomes, "slowest_s": self._slowest_s}
        aside = self._statistics.with_suffix(".part")
        aside.write_text(json.dumps(found))
        os.replace(aside, self._statistics)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()


def _mutator(chosen: Target, observed: _Observed) -> Any:
    import atheris

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        draw = random.Random(seed)  # noqa: S311 - not a secret
        data = observed.base(data, draw)
        if draw.random() < _BLIND:
            return bytes(atheris.Mutate(data, max_size))
        for _ in range(draw.choice((1, 1, 2, 4))):
            changed = chosen.mutate(data, draw)
            if len(changed) <= min(max_size, MAX_INPUT_BYTES):
                data = changed
        return data

    return mutate


if __name__ == "__main__":
    main(sys.argv)
