"""Controller, agent and worker killed, the link cut, each at random moments of its life: what was lost, doubled, held.

Trials run in lanes side by side, each a process of `reliability_trial.py` with leases of its own.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path

from reliability_trial import GRACE_S, HUNG, SHORT, VICTIMS, Trial

PROGRAM = Path(__file__).resolve().with_name("reliability_trial.py")
LANES = 2
BOUND_S = SHORT.lease_ttl_s + GRACE_S
"""What a lease may last beyond the cut, and what its holder may take to end."""


@dataclass(frozen=True)
class Victim:
    """All cuts of one kind.

    `missed` moments met a victim that was gone already, and were drawn anew. `leased` cuts fell while the board was
    leased, `begun` when samples were there already. `past_lease` boards were free
    later than their lease, after the cut; `held` ones not within lease and grace either.
    `findings` name each trial with anything that is to be zero and is not.
    """

    victim: str
    seed: int
    cuts: int
    missed: int
    life_s: float
    leased: int
    begun: int
    kept: int
    lost: int
    doubled: int
    differing: int
    refused: int
    campaigns_too_many: int
    not_resumed: int
    past_lease: int
    held: int
    hung: int
    left_behind: int
    free_median_s: float | None
    free_slowest_s: float | None
    ended_slowest_s: float | None
    kinds: dict[str, int]
    endings: dict[str, int]
    findings: tuple[str, ...]


@dataclass(frozen=True)
class _Lane:
    victim: str
    first: int
    count: int


def measure_kills(folder: Path, count: int, seed: int, victims: Sequence[str] = VICTIMS) -> list[Victim]:
    """`count` cuts of each victim; `folder` keeps the workspaces and what the lanes said."""
    folder.mkdir(parents=True, exist_ok=True)
    half = -(-count // LANES)
    lanes = [
        _Lane(victim, first, min(half, count - first))
        for victim in reversed(victims)  # lanes of the link end with two minutes of waiting
        for first in range(0, count, half)
    ]
    with ThreadPoolExecutor(LANES) as pool:
        told = list(pool.map(lambda lane: _run(folder, lane, seed), lanes))
    found = []
    for victim in victims:
        mine = [words for lane, words in zip(lanes, told, strict=True) if lane.victim == victim]
        found.append(_summarised(victim, seed, [one for words in mine for one in words]))
    return found


def _run(folder: Path, lane: _Lane, seed: int) -> list[dict[str, object]]:
    """What a lane said; raises CalledProcessError where it broke, with its words in its log."""
    name = f"{lane.victim}-{lane.first}"
    command = [sys.executable, str(PROGRAM), str(folder / name), "--victim", lane.victim, "--seed", str(seed)]
    command += ["--first", str(lane.first), "--count", str(lane.count)]
    told = folder / f"{name}.jsonl"
    with told.open("wb") as lines, (folder / f"{name}.log").open("wb") as log:
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=lines, stderr=log, check=True)
    return [json.loads(line) for line in told.read_text(encoding="utf-8").splitlines()]


def _summarised(victim: str, seed: int, told: Sequence[dict[str, object]]) -> Victim:
    names = {field.name for field in fields(Trial)}
    trials = [Trial(**one) for one in told if names == set(one)]  # type: ignore[arg-type]
    lives = [float(str(one["life_s"])) for one in told if "life_s" in one]
    free = [one.free_s for one in trials if one.free_s is not None and one.leased]
    ended = [one.ended_s for one in trials if one.ended_s is not None]
    return Victim(
        victim=victim,
        seed=seed,
        cuts=len(trials),
        missed=sum(one.draws - 1 for one in trials),
        life_s=statistics.median(lives),
        leased=sum(one.leased for one in trials),
        begun=sum(one.kept > 0 for one in trials),
        kept=sum(one.kept for one in trials),
        lost=sum(one.lost for one in trials),
        doubled=sum(one.doubled for one in trials),
        differing=sum(one.differing for one in trials),
        refused=sum(one.refused for one in trials),
        campaigns_too_many=sum(one.campaigns != 1 for one in trials),
        not_resumed=sum(one.resumed != "" for one in trials),
        past_lease=sum(one.free_s is None or one.free_s > SHORT.lease_ttl_s for one in trials),
        held=sum(map(_is_held, trials)),
        hung=sum(one.ending == HUNG for one in trials),
        left_behind=sum(int(str(one["left_behind"])) for one in told if "left_behind" in one),
        free_median_s=round(statistics.median(free), 3) if free else None,
        free_slowest_s=max(free, default=None),
        ended_slowest_s=max(ended, default=None),
        kinds=dict(Counter(one.cut for one in trials)),
        endings=dict(Counter(one.ending or "none" for one in trials)),
        findings=tuple(_words(one, seed) for one in trials if _is_finding(one)),
    )


def _is_held(one: Trial) -> bool:
    return one.free_s is None or one.free_s > BOUND_S


def _is_finding(one: Trial) -> bool:
    amiss = one.lost or one.doubled or one.differing or one.refused or one.campaigns != 1 or one.resumed
    return bool(amiss) or one.ending == HUNG or _is_held(one)


def _words(one: Trial, seed: int) -> str:
    again = f"reliability_trial.py FOLDER --victim {one.victim} --first {one.number} --count 1 --seed {seed}"
    return f"{again}: {one}"
