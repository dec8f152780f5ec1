"""Kill the controller, the agent and the worker, and cut the link, each at random moments of its life.

Trials run in lanes side by side. Each lane is a process of `benchmarks.reliability.trial` with leases of its own.
"""

import json
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks.generated_page import ROOT
from benchmarks.reliability.trial import GRACE_S, HUNG, SHORT, VICTIMS, Trial

LANES = 2
BOUND_S = SHORT.lease_ttl_s + GRACE_S
"""The longest time from a cut until the board is free: the lease, and the time that its holder takes to end."""
_SUMMED = ("leased", "kept", "lost", "doubled", "differing", "refused")


@dataclass(frozen=True)
class _Lane:
    victim: str
    first: int
    count: int


def measure_kills(folder: Path, count: int, seed: int) -> list[dict[str, Any]]:
    """Cut each victim `count` times; `folder` keeps the workspaces and the output of the lanes.

    Returns the figures of each victim (`_summarised`).
    """
    folder.mkdir(parents=True, exist_ok=True)
    half = -(-count // LANES)
    lanes = [
        _Lane(victim, first, min(half, count - first))
        for victim in reversed(VICTIMS)  # lanes of the link wait two minutes at their end
        for first in range(0, count, half)
    ]
    with ThreadPoolExecutor(LANES) as pool:
        printed = list(pool.map(lambda lane: _run(folder, lane, seed), lanes))
    found = []
    for victim in VICTIMS:
        mine = [lines for lane, lines in zip(lanes, printed, strict=True) if lane.victim == victim]
        found.append(_summarised(victim, seed, [one for lines in mine for one in lines]))
    return found


def _run(folder: Path, lane: _Lane, seed: int) -> list[dict[str, Any]]:
    """Run a lane and return its lines; raises CalledProcessError if it fails, with the reason in its log."""
    name = f"{lane.victim}-{lane.first}"
    command = [sys.executable, "-m", "benchmarks.reliability.trial", str((folder / name).absolute())]
    command += ["--victim", lane.victim, "--seed", str(seed), "--first", str(lane.first), "--count", str(lane.count)]
    printed = folder / f"{name}.jsonl"
    with printed.open("wb") as lines, (folder / f"{name}.log").open("wb") as log:
        subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=lines, stderr=log, check=True)
    return [json.loads(line) for line in printed.read_text(encoding="utf-8").splitlines()]


def _summarised(victim: str, seed: int, printed: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of all cuts of one kind of victim.

    `missed` counts moments at which the victim had ended already, so that another moment was drawn. `leased` counts
    cuts while the board was leased, `begun` cuts after the first sample. `past_lease` counts boards that were free
    later than one lease after the cut, `held` those that were not free within lease and grace. `findings` names each
    trial in which a count that must be zero is not.
    """
    names = {field.name for field in fields(Trial)}
    trials = [Trial(**one) for one in printed if names == set(one)]
    lives = [one["life_s"] for one in printed if "life_s" in one]
    free = [one.free_s for one in trials if one.free_s is not None and one.leased]
    ended = [one.ended_s for one in trials if one.ended_s is not None]
    counts = {name: sum(getattr(one, name) for one in trials) for name in _SUMMED}
    return {
        "victim": victim,
        "seed": seed,
        "cuts": len(trials),
        "missed": sum(one.draws - 1 for one in trials),
        "life_s": statistics.median(lives),
        **counts,
        "begun": sum(one.kept > 0 for one in trials),
        "campaigns_too_many": sum(one.campaigns != 1 for one in trials),
        "not_resumed": sum(one.resumed != "" for one in trials),
        "past_lease": sum(one.free_s is None or one.free_s > SHORT.lease_ttl_s for one in trials),
        "held": sum(map(_is_held, trials)),
        "hung": sum(one.ending == HUNG for one in trials),
        "left_behind": sum(one["left_behind"] for one in printed if "left_behind" in one),
        "free_median_s": round(statistics.median(free), 3) if free else None,
        "free_slowest_s": max(free, default=None),
        "ended_slowest_s": max(ended, default=None),
        "kinds": dict(Counter(one.cut for one in trials)),
        "endings": dict(Counter(one.ending or "none" for one in trials)),
        "findings": tuple(_words(one, seed) for one in trials if _is_finding(one)),
    }


def _is_held(one: Trial) -> bool:
    return one.free_s is None or one.free_s > BOUND_S


def _is_finding(one: Trial) -> bool:
    wrong = one.lost or one.doubled or one.differing or one.refused or one.campaigns != 1 or one.resumed
    return bool(wrong) or one.ending == HUNG or _is_held(one)


def _words(one: Trial, seed: int) -> str:
    options = f"--victim {one.victim} --first {one.number} --count 1 --seed {seed}"
    return f"python -m benchmarks.reliability.trial FOLDER {options}: {one}"
