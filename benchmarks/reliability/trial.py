"""Run trials of one kind of victim: a job is cut at a random moment of the victim's life, and run again.

    python -m benchmarks.reliability.trial FOLDER --victim agent --first 0 --count 50 --seed 1

Prints a line of JSON for each trial. Moments are uniform over the life of the victim in an undisturbed run, which is
measured first; the same seed draws the same fractions of it. Only processes that the trial started are killed.
"""

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
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fault_proxy import BlackHole, Close, FaultProxy, Reset
from nullbench import build_network

from benchmarks.reliability.journal import Samples, Visits, reading, samples, visits
from device_agents.lease import holder_of
from harness.device import session
from harness.device.session import Deadlines
from harness.fleet.execution import run_request
from harness.measure.policy import RepeatPolicy
from harness.measure.request import ProfileRequest
from harness.workspace import Workspace

VICTIMS = ("controller", "agent", "worker", "link")
CUTS = (Reset, Close, BlackHole)
SHORT = Deadlines(lease_ttl_s=4.0, start_s=20.0, reply_s=10.0, load_s=20.0, run_s=20.0, margin_s=1.0)
"""A short lease, so that trials soon see whether a board is free when its lease has run out."""
GRACE_S = 5.0
HUNG = "hung"
"""The ending of a controller that still runs two minutes after the cut."""
IDLE_S = 135.0
"""An agent without a lease that receives nothing exits after two minutes."""
IMPORTED = (
    *("benchmarks.reliability.trial", "fault_proxy", "nullbench", "harness.fleet.local_engine"),
    *("harness.lut.build", "onnx", "paramiko"),
)
"""Modules imported before a controller is forked, so that its life is that of its job."""
_POLL_S = 0.005
_DRAWS = 20
_UNDISTURBED = 3
_JOIN_LIMIT_S = 120.0
MODEL, ENDING = "small.onnx", "ending.json"
POLICY = RepeatPolicy(runs=4)


@dataclass(frozen=True)
class Trial:
    """The effects of one cut.

    `share` is the fraction of the victim's life that had passed; `draws` moments were drawn until the victim was still
    running at one of them. `free_s` is the time from the cut until the board was free, `ended_s` until all processes of
    the job had ended; None if that took longer than the longest lease. `differing` counts series that differ from an
    undisturbed campaign. `ending` is the error of the cut run, `resumed` that of the run after it ("" for none).
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
    """A folder of workspaces with one null device each, on this machine or behind SSH, and their controllers."""

    def __init__(self, folder: Path, victim: str, proxy: FaultProxy | None, ssh: str) -> None:
        self.folder, self.victim, self.proxy, self._ssh = folder, victim, proxy, ssh
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([*IMPORTED])
        build_network(folder / MODEL, widths=(8, 16))

    def workspace(self, name: str) -> Path:
        """Create a workspace whose device has the same name."""
        folder = self.folder / name
        folder.mkdir()
        (folder / MODEL).write_bytes((self.folder / MODEL).read_bytes())
        lines = f'[devices.{name}]\nbackend = "null"\nexclusive = true\n{self._ssh}'
        lines += f"[devices.{name}.options]\nnoise = 0.01\nseed = 1\n"
        (folder / "devices.toml").write_text(lines, encoding="utf-8")
        return folder

    def start(self, folder: Path, deadlines: Deadlines | None = SHORT) -> multiprocessing.process.BaseProcess:
        """Start a controller in a process of its own."""
        (folder / ENDING).unlink(missing_ok=True)
        process = self._context.Process(target=run_job, args=(folder, folder.name, f"job/{folder.name}", deadlines))
        process.start()
        return process

    def wait_for_victim(self, controller: multiprocessing.process.BaseProcess, accepted: int) -> int | None:
        """Return the pidfd of the victim when it starts, -1 for the link, or None if the controller ended first."""
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
        """Cut, and return whether the victim was still running."""
        if self.proxy is not None:
            self.proxy.inject(cut())
            return True
        if _has_ended(victim, 0.0):
            return False
        signal.pidfd_send_signal(victim, signal.SIGKILL)
        return True


def undisturbed(bench: Bench) -> tuple[float, Visits]:
    """Return the median life of the victim in seconds, and the series of its campaign."""
    lives: list[float] = []
    found: list[Visits] = []
    for number in range(_UNDISTURBED):
        folder = bench.workspace(f"{bench.victim}-undisturbed-{number}")
        accepted = bench.proxy.accepted if bench.proxy else 0
        controller = bench.start(folder)
        victim = bench.wait_for_victim(controller, accepted)
        assert victim is not None, read_ending(folder)
        started_s = time.monotonic()
        if victim < 0:
            controller.join(_JOIN_LIMIT_S)
        else:
            assert _has_ended(victim, _JOIN_LIMIT_S)
        lives.append(time.monotonic() - started_s)
        controller.join(_JOIN_LIMIT_S)
        assert read_ending(folder) == Ending("", ""), read_ending(folder)
        found += visits(Workspace(folder).journal).values()
    assert len(set(found)) == 1, "undisturbed campaigns differ"
    return statistics.median(lives), found[0]


def trial(bench: Bench, number: int, seed: int, life_s: float, expected: Visits) -> Trial:
    """Cut at a random moment at which the victim still runs, then run the job again."""
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
                kind = cut.__name__ if bench.proxy else "SIGKILL"
                before = samples(folder)  # committed by then
                effects = _resume(bench, folder, controller, struck_s, before, expected)
                return Trial(bench.victim, number, share, draws, kind, leased, **effects)
        controller.join(_JOIN_LIMIT_S)
    raise SystemExit(f"{bench.victim} {number}: the victim had ended at each of {_DRAWS} moments")


def _resume(
    bench: Bench,
    folder: Path,
    controller: multiprocessing.process.BaseProcess,
    struck_s: float,
    before: Samples,
    expected: Visits,
) -> dict[str, Any]:
    """Wait for the end of a controller whose victim was struck, run the job again, and return the effects."""
    free_s = _until(lambda: holder_of(folder.name) is None, struck_s, 4 * SHORT.lease_ttl_s)
    controller.join(_JOIN_LIMIT_S)
    hung = controller.is_alive()
    if hung:
        controller.kill()
    ending, local = read_ending(folder), bench.proxy is None
    if bench.proxy is not None:
        bench.proxy.heal()
    ended_s = _until(lambda: not agents_here(), struck_s, SHORT.lease_ttl_s + 2 * GRACE_S) if local else None
    before |= samples(folder)  # samples written between the cut and the end count as well
    again = bench.start(folder, None)
    again.join(_JOIN_LIMIT_S)
    again.kill()  # harmless if it has ended
    resumed = read_ending(folder)
    after = samples(folder)
    found = visits(Workspace(folder).journal, f"job/{folder.name}")
    taken = next(iter(found.values()), ())
    with reading(Workspace(folder).journal) as db:
        refused = db.execute("SELECT count(*) FROM probes WHERE refused IS NOT NULL").fetchone()[0]
    return {
        "ending": HUNG if hung else "killed" if ending is None else ending.failure,
        "free_s": free_s,
        "ended_s": None if ended_s is None else round(ended_s, 3),
        "kept": before.total(),
        "lost": (before - after).total(),
        "doubled": sum(count - 1 for count in after.values()) + len(taken) - len({visit[:3] for visit in taken}),
        "differing": len(set(taken) ^ set(expected)),
        "refused": refused,
        "campaigns": len(found),
        "resumed": "still running" if resumed is None else f"{resumed.failure} {resumed.words}".strip(),
    }


def _until(holds: Callable[[], bool], since_s: float, bound_s: float) -> float | None:
    """Return the seconds since `since_s` until `holds` is true, or None if it is not within `bound_s`."""
    while not holds():
        if time.monotonic() - since_s > bound_s:
            return None
        time.sleep(_POLL_S)
    return round(time.monotonic() - since_s, 3)


def _has_ended(pidfd: int, timeout_s: float) -> bool:
    return bool(select.select([pidfd], [], [], timeout_s)[0])


@contextlib.contextmanager
def _link(folder: Path, victim: str) -> Iterator[tuple[FaultProxy | None, str]]:
    """Start a real sshd behind a proxy for the victim `link`; also yield the settings of a device behind it."""
    if victim != "link":
        yield None, ""
        return
    from sshd_server import running_sshd

    with running_sshd(folder / "sshd", folder / "leases") as sshd, FaultProxy(("127.0.0.1", sshd.port)) as proxy:
        sshd.trust(proxy.port)
        settings = sshd.device().transport.model_dump(mode="json", exclude_none=True)
        settings |= {"port": proxy.port, "transport": settings.pop("kind")}
        limits = {"connect_timeout_s": 5.0, "banner_timeout_s": 5.0, "auth_timeout_s": 5.0}
        yield proxy, "".join(f"{key} = {json.dumps(value)}\n" for key, value in (settings | limits).items())


def main() -> None:
    """Run trials and print their effects; at the end, the number of processes that still run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder to work in; must not exist")
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


def agent_below(parent: int, known: set[int]) -> int | None:
    """Return the process of an agent or a worker whose parent is `parent`, or None.

    Processes with another parent are added to `known`, and skipped by later calls.
    """
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in known:
            continue
        with contextlib.suppress(OSError, IndexError):
            stat = Path("/proc", name, "stat").read_text(errors="replace")
            if int(stat.rpartition(")")[2].split()[1]) != parent:
                known.add(int(name))
            elif b"device_agents" in Path("/proc", name, "cmdline").read_bytes():
                return int(name)
    return None


def agents_here() -> list[int]:
    """Return agents and workers that use the lease folder of this process."""
    wanted = b"HARNESS_RUNTIME_FOLDER=%s\0" % os.fsencode(os.environ["HARNESS_RUNTIME_FOLDER"])
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            folder = Path("/proc", name)
            if name.isdigit() and b"\0device_agents" in (folder / "cmdline").read_bytes():
                found += [int(name)] if wanted in (folder / "environ").read_bytes() else []
    return found


@dataclass(frozen=True)
class Ending:
    """How a run ended: the class and the text of its failure, both empty if its campaign is complete."""

    failure: str
    words: str


def run_job(folder: Path, device: str, job: str, deadlines: session.Deadlines | None) -> None:
    """Run the job once, with these deadlines instead of the defaults, and write how it ended."""
    with (folder / "output.txt").open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    if deadlines is not None:
        session.Deadlines = lambda: deadlines  # type: ignore[assignment,misc]
    request = ProfileRequest(device=device, models=(str(folder / MODEL),), policy=POLICY, name=job)
    failure = run_request(request, Workspace(folder), stop=threading.Event()).failure
    ending = Ending("", "") if failure is None else Ending(failure.kind, f"{failure.what}. {failure.why}")
    (folder / ENDING).write_text(json.dumps(asdict(ending)), encoding="utf-8")


def read_ending(folder: Path) -> Ending | None:
    """Return how the last run ended, or None if it was killed before it could write that."""
    path = folder / ENDING
    return Ending(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


if __name__ == "__main__":
    main()
