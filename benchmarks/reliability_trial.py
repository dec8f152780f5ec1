"""Trials of one kind of victim, one after the other: a job is cut at a random moment of its life and run again.

    python benchmarks/reliability_trial.py FOLDER --victim agent --first 0 --count 50 --seed 1

Prints a line of JSON for each trial. The random moments are uniform over the life of the victim in an undisturbed
run, which is measured first; the same seed draws the same shares of it. Needs processes of its own to kill: everything
that is killed was started here.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import multiprocessing
import os
import random
import select
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from reliability_agents import agent_below, agents_here  # noqa: E402
from reliability_journal import Samples, Visits, reading, samples, visits  # noqa: E402
from reliability_sitting import MODEL, Told, sit, told_in  # noqa: E402

from device_agents.lease import holder_of  # noqa: E402
from harness.device.session import Deadlines  # noqa: E402
from harness.testing.fault_proxy import BlackHole, Close, FaultProxy, Reset  # noqa: E402
from harness.workspace import Workspace  # noqa: E402

VICTIMS = ("controller", "agent", "worker", "link")
CUTS = (Reset, Close, BlackHole)
SHORT = Deadlines(lease_ttl_s=4.0, start_s=20.0, reply_s=10.0, load_s=20.0, run_s=20.0, margin_s=1.0)
"""A short lease, so that a board that stays held until it runs out is seen to be free after that."""
GRACE_S = 5.0
HUNG = "hung"
"""Ending of a controller that was still there two minutes after the cut."""
IDLE_S = 135.0
"""An agent that never had a lease and hears nothing more ends by itself after two minutes."""
IMPORTED = (
    "harness",
    "harness.fleet.local_engine",
    "harness.lut.build",
    "harness.testing.fault_proxy",
    "onnx",
    "paramiko",
)
"""What a controller is forked with: its life is that of its job, not that of its imports."""
_POLL_S = 0.005
_DRAWS = 20
_UNDISTURBED = 3
_PATIENCE_S = 120.0


@dataclass(frozen=True)
class Trial:
    """What one cut did.

    `share` of the victim's life had passed, `draws` moments were drawn until one met a victim that was still there.
    `free_s` is the time from the cut until nobody held the board, `ended_s` until nothing of the job ran on it any
    more; None where that was still so after the longest lease. `differing` places are those that an undisturbed
    campaign has otherwise; `ending` is the error of the cut sitting, `resumed` that of the one after it ("" for none).
    """

    victim: str
    number: int
    share: float
    draws: int
    cut: str
    leased: bool
    ending: str
    free_s: float | None
    ended_s: float | None
    kept: int
    lost: int
    doubled: int
    differing: int
    refused: int
    campaigns: int
    resumed: str


class Bench:
    """A folder for workspaces with one null device each, on this machine or behind SSH; and their controllers."""

    def __init__(self, folder: Path, victim: str, proxy: FaultProxy | None, ssh: str) -> None:
        self.folder, self.victim, self.proxy, self._ssh = folder, victim, proxy, ssh
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([*IMPORTED])
        from nullbench import build_network

        build_network(folder / MODEL, widths=(8, 16))

    def workspace(self, name: str) -> Path:
        """A new workspace, whose device is named as it is."""
        folder = self.folder / name
        folder.mkdir()
        (folder / MODEL).write_bytes((self.folder / MODEL).read_bytes())
        lines = f'[devices.{name}]\nbackend = "null"\n{self._ssh}[devices.{name}.options]\nnoise = 0.01\nseed = 1\n'
        (folder / "devices.toml").write_text(lines, encoding="utf-8")
        return folder

    def start(self, folder: Path, deadlines: Deadlines | None = SHORT) -> multiprocessing.process.BaseProcess:
        """A controller in a process of its own."""
        (folder / "told.json").unlink(missing_ok=True)
        process = self._context.Process(target=sit, args=(folder, folder.name, f"job/{folder.name}", deadlines))
        process.start()
        return process

    def wait_for_victim(self, controller: multiprocessing.process.BaseProcess, accepted: int) -> int | None:
        """The pidfd of the victim when its life begins, -1 for the link; None where the controller ended before."""
        assert controller.pid is not None
        if self.victim == "controller":
            return os.pidfd_open(controller.pid)
        known: set[int] = set()
        parent = controller.pid
        while controller.is_alive():
            if self.proxy is not None:
                if self.proxy.accepted > accepted:
                    return -1
            elif (child := agent_below(parent, known)) is not None:
                if self.victim == "agent" or parent != controller.pid:
                    with contextlib.suppress(ProcessLookupError):
                        return os.pidfd_open(child)
                    return None
                parent, known = child, set()
            time.sleep(_POLL_S)
        return None

    def strike(self, victim: int, cut: Callable[[], Any]) -> bool:
        """Cuts; whether the victim was still there."""
        if self.proxy is not None:
            self.proxy.inject(cut())
            return True
        if _has_ended(victim, 0.0):
            return False
        signal.pidfd_send_signal(victim, signal.SIGKILL)
        return True


def undisturbed(bench: Bench) -> tuple[float, Visits]:
    """The median life of the victim in seconds, and the series of its campaign."""
    lives: list[float] = []
    found: list[Visits] = []
    for number in range(_UNDISTURBED):
        folder = bench.workspace(f"{bench.victim}-undisturbed-{number}")
        accepted = bench.proxy.accepted if bench.proxy else 0
        controller = bench.start(folder)
        victim = bench.wait_for_victim(controller, accepted)
        assert victim is not None, told_in(folder)
        started_s = time.monotonic()
        if victim < 0:
            controller.join(_PATIENCE_S)
        else:
            assert _has_ended(victim, _PATIENCE_S)
        lives.append(time.monotonic() - started_s)
        controller.join(_PATIENCE_S)
        assert told_in(folder) == Told("", ""), told_in(folder)
        found += visits(Workspace(folder).journal).values()
    assert len(set(found)) == 1, "undisturbed campaigns are alike"
    return statistics.median(lives), found[0]


def trial(bench: Bench, number: int, seed: int, life_s: float, expected: Visits) -> Trial:
    """One cut, at a moment that the victim lives to see, and the sitting after it."""
    draw = random.Random(f"{seed}/{bench.victim}/{number}")
    cut = CUTS[number % len(CUTS)]
    for draws in range(1, _DRAWS + 1):
        share = draw.random()
        folder = bench.workspace(f"{bench.victim}-{number}-{draws}")
        accepted = bench.proxy.accepted if bench.proxy else 0
        controller = bench.start(folder)
        victim = bench.wait_for_victim(controller, accepted)
        if victim is not None:
            time.sleep(share * life_s)
            leased = holder_of(folder.name) is not None
            struck = controller.is_alive() and bench.strike(victim, cut)
            struck_s = time.monotonic()
            if struck:
                before = samples(folder)
                return _resume(bench, folder, controller, before, struck_s, expected, victim=bench.victim,
                               number=number, share=share, draws=draws, leased=leased,
                               cut=cut.__name__ if bench.proxy else "SIGKILL")  # fmt: skip
        controller.join(_PATIENCE_S)
    raise SystemExit(f"{bench.victim} {number}: no moment of {_DRAWS} met a victim that was still there")


def _resume(
    bench: Bench, folder: Path, controller: multiprocessing.process.BaseProcess, before: Samples, struck_s: float,
    expected: Visits, **known: Any,
) -> Trial:  # fmt: skip
    free_s = _until(lambda: holder_of(folder.name) is None, struck_s, 4 * SHORT.lease_ttl_s)
    controller.join(_PATIENCE_S)
    hung = controller.is_alive()
    if hung:
        controller.kill()
    told, local = told_in(folder), bench.proxy is None
    if bench.proxy is not None:
        bench.proxy.heal()
    ended_s = _until(lambda: not agents_here(), struck_s, SHORT.lease_ttl_s + 2 * GRACE_S) if local else None
    before |= samples(folder)  # what it wrote in its last moments counts as well
    again = bench.start(folder, None)
    again.join(_PATIENCE_S)
    again.kill()  # harmless where it has ended
    resumed = told_in(folder)
    after = samples(folder)
    found = visits(Workspace(folder).journal, f"job/{folder.name}")
    taken = next(iter(found.values()), ())
    with reading(Workspace(folder).journal) as db:
        refused = db.execute("SELECT count(*) FROM probes WHERE refused IS NOT NULL").fetchone()[0]
    return Trial(
        **known,
        free_s=free_s,
        ending=HUNG if hung else "killed" if told is None else told.failure,
        ended_s=None if ended_s is None else round(ended_s, 3),
        kept=before.total(),
        lost=(before - after).total(),
        doubled=sum(count - 1 for count in after.values()) + len(taken) - len({visit[:3] for visit in taken}),
        differing=len(set(taken) ^ set(expected)),
        refused=refused,
        campaigns=len(found),
        resumed="still running" if resumed is None else f"{resumed.failure} {resumed.words}".strip(),
    )


def _until(holds: Callable[[], bool], since_s: float, bound_s: float) -> float | None:
    """Seconds since then until something holds; None where it does not within the bound."""
    while not holds():
        if time.monotonic() - since_s > bound_s:
            return None
        time.sleep(_POLL_S)
    return round(time.monotonic() - since_s, 3)


def _has_ended(pidfd: int, timeout_s: float) -> bool:
    return bool(select.select([pidfd], [], [], timeout_s)[0])


@contextlib.contextmanager
def _link(folder: Path, victim: str) -> Iterator[tuple[FaultProxy | None, str]]:
    """For the victim `link` a real sshd behind a proxy, and the lines that put a device there."""
    if victim != "link":
        yield None, ""
        return
    from sshd_server import running_sshd

    with running_sshd(folder / "sshd", folder / "leases") as sshd, FaultProxy(("127.0.0.1", sshd.port)) as proxy:
        sshd.trust(proxy.port)
        settings = sshd.device().transport.model_dump(mode="json")
        settings |= {"port": proxy.port, "transport": settings.pop("kind")}
        limits = {"connect_timeout_s": 5.0, "banner_timeout_s": 5.0, "auth_timeout_s": 5.0}
        yield proxy, "".join(f"{key} = {json.dumps(value)}\n" for key, value in (settings | limits).items())


def main() -> None:
    """Runs trials and prints what they did; at the end, what is still running."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where it works, a new folder")
    parser.add_argument("--victim", choices=VICTIMS, required=True)
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    given.folder.mkdir(parents=True)
    os.environ["HARNESS_RUNTIME_FOLDER"] = str(given.folder / "leases")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    say = functools.partial(print, flush=True)
    with _link(given.folder, given.victim) as (proxy, ssh):
        bench = Bench(given.folder, given.victim, proxy, ssh)
        life_s, expected = undisturbed(bench)
        say(json.dumps({"life_s": round(life_s, 3), "series": len(expected)}))
        for number in range(given.first, given.first + given.count):
            say(json.dumps(asdict(trial(bench, number, given.seed, life_s, expected))))
        _until(lambda: not agents_here(), time.monotonic(), IDLE_S)
        say(json.dumps({"left_behind": len(agents_here())}))


if __name__ == "__main__":
    main()
