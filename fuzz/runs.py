"""Run one target under atheris until its time is over, and collect its figures and faults."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from fuzz.figures import Figures
from fuzz.outcome import Outcome
from fuzz.target import MAX_INPUT_BYTES, RSS_LIMIT_MB, STUCK_S, memory_folder, target

ROOT = Path(__file__).resolve().parents[1]
_LEAST_S = 2
_EDGES = re.compile(r"\bcov: (\d+)")
_MEMORY = re.compile(r"peak_rss_mb: +(\d+)")
_ENDINGS = {"crash": "crash", "timeout": "hang", "oom": "memory"}
_REPLAY_S = 300
_GRACE_S = 300
"""Time beyond its own that a run may take on a busy machine before it is ended."""
_REFUSALS = (Outcome.REFUSED.name, Outcome.STOPPED.name)
_VARIABLES = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "ORT_DISABLE_TELEMETRY": "1"}


def fuzz(name: str, seconds: int, keep: Path) -> Figures:
    """Fuzz one target; after a fault, continue with the corpus so far until the time is over."""
    chosen = target(name)
    with tempfile.TemporaryDirectory(prefix="harness-fuzz-", dir=memory_folder()) as scratch:
        corpus = Path(scratch) / "corpus"
        corpus.mkdir()
        for at, seed in enumerate(chosen.seeds()):
            (corpus / f"seed{at}").write_bytes(seed)
        counts: Counter[str] = Counter()
        edges = memory_mb = run = 0
        slowest_s, faults = 0.0, []
        started_s = time.monotonic()
        while (left_s := seconds - (time.monotonic() - started_s)) > _LEAST_S or run == 0:
            run += 1
            statistics = Path(scratch) / f"statistics{run}.json"
            log = _one_run(name, max(_LEAST_S, int(left_s)), run, statistics, keep, corpus)
            found = json.loads(statistics.read_text()) if statistics.exists() else {"outcomes": {}}
            executed = max(found.get("inputs", 0), _last(r"number_of_executed_units: (\d+)", log))
            counts.update({"inputs": executed, **found["outcomes"]})
            if found.get("slowest_s", 0.0) > slowest_s:
                slowest_s = found["slowest_s"]
                (keep / f"{name}-slowest").write_bytes(statistics.with_suffix(".slowest").read_bytes())
            edges = max([edges, *(int(number) for number in _EDGES.findall(log))])
            memory_mb = max([memory_mb, *(int(number) for number in _MEMORY.findall(log))])
            if fault := _fault(log):
                if chosen.isolated and _is_refused(name, log):
                    counts["stopped"] += 1
                else:
                    faults.append(fault)
        taken_s = time.monotonic() - started_s
    return Figures(
        target=name,
        seconds=round(taken_s, 1),
        inputs=counts["inputs"],
        accepted=counts["accepted"],
        checked=counts["checked"] + counts["accepted"] if chosen.isolated else None,
        stopped=counts["stopped"] if chosen.isolated else None,
        slowest_s=round(slowest_s, 4),
        edges=edges,
        peak_rss_mb=memory_mb,
        faults=tuple(dict.fromkeys(faults)),
    )


def _one_run(name: str, seconds: int, run: int, statistics: Path, keep: Path, corpus: Path) -> str:
    """Run a process of libFuzzer, which ends at the first fault, and return its log."""
    files = statistics.with_suffix(".files")
    files.mkdir()
    limits = [f"-max_total_time={seconds}", f"-timeout={STUCK_S}", f"-rss_limit_mb={RSS_LIMIT_MB}"]
    limits += [f"-max_len={MAX_INPUT_BYTES}", "-len_control=0", "-mutate_depth=1", "-keep_seed=1"]
    limits += [f"-seed={run}", "-print_final_stats=1"]
    command = [sys.executable, "-m", "fuzz.instrumented", name, str(statistics), str(files)]
    command += [*limits, f"-artifact_prefix={keep}/{name}-{run}-", str(corpus)]
    log = keep / f"{name}-{run}.log"
    with log.open("wb") as file:
        nothing, environment = subprocess.DEVNULL, {**os.environ, **_VARIABLES}
        streams: dict[str, Any] = {"stdin": nothing, "stdout": file, "stderr": file}
        try:
            subprocess.run(command, cwd=ROOT, env=environment, timeout=seconds + _GRACE_S, check=False, **streams)
        except subprocess.TimeoutExpired:
            file.write(b"\nTimeoutError: the run did not end by itself\n")
    return log.read_text(errors="replace")


def _is_refused(name: str, log: str) -> bool:
    """Return whether the program refuses the input that ended a run: it reads it in a process with limits."""
    written = re.search(r"Test unit written to (\S+)", log)
    if written is None:
        return False
    command = [sys.executable, "-m", "fuzz.replay", name, written[1]]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_REPLAY_S, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0 and done.stdout.strip() in _REFUSALS


def _fault(log: str) -> str:
    """Return what ended a run early: its kind, the error and where it was raised; empty if nothing did."""
    found = re.search(r"Test unit written to \S*-(crash|timeout|oom|leak|slow-unit)-", log)
    ended = "Done " in log
    if ended and (found is None or found[1] == "slow-unit"):
        return ""
    kind = _ENDINGS.get(found[1], found[1]) if found else "ended without an input"
    error = re.findall(r"^(\w[\w.]*(?:Error|Exception|Warning|Interrupt|Exit)\b.*)$", log, re.MULTILINE)
    place = re.findall(r'File "[^"]*?((?:harness|device_agents|fuzz)/[^"]+)", line (\d+)', log)
    place = [one for one in place if not one[0].startswith("fuzz/")] or place
    where = f" at {place[-1][0]}:{place[-1][1]}" if place else ""
    return f"{kind}{where}: {error[0][:120] if error else (log.strip().splitlines() or ['no output'])[-1][:120]}"


def _last(pattern: str, log: str) -> int:
    found = re.findall(pattern, log)
    return int(found[-1]) if found else 0
