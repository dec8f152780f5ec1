"""`python -m fuzz --seconds 60`: run all targets under atheris, one after the other; print a table and JSON.

Needs the extra `fuzz` (atheris, for CPython 3.11 to 3.13). Exits with 1 if an input crashed, hung or took too much
memory; such inputs are kept in the folder of `--keep`. `--docs` writes the figures into docs/security.md.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from fuzz.target import HANG_S, MAX_INPUT_BYTES, NAMES, RSS_LIMIT_MB, target

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "security.md"
_BEGIN, _END = "<!-- figures of make fuzz: begin -->", "<!-- figures of make fuzz: end -->"
_LEAST_S = 2
_EDGES = re.compile(r"\bcov: (\d+)")
_MEMORY = re.compile(r"peak_rss_mb: +(\d+)")
_ENDINGS = {"crash": "crash", "timeout": "hang", "oom": "memory"}


@dataclass(frozen=True)
class Figures:
    """Figures of one target; `faults` lists each crash, hang or breach of the memory limit once."""

    target: str
    seconds: float
    inputs: int
    accepted: int
    slowest_s: float
    edges: int
    peak_rss_mb: int
    faults: tuple[str, ...]


def main() -> int:
    """Run the targets and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Fuzz the four readers of foreign input.")
    parser.add_argument("--seconds", type=int, default=60, help="seconds for each target; default: 60")
    parser.add_argument("--keep", type=Path, default=None, help="folder for inputs that fail; default: a new one")
    parser.add_argument("--docs", action="store_true", help="write the figures into docs/security.md")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"{', '.join(NAMES)}; default: all")
    options = parser.parse_args()
    if unknown := sorted(set(options.targets) - set(NAMES)):
        parser.error(f"there is no target {unknown[0]!r}; choose from {', '.join(NAMES)}")
    if importlib.util.find_spec("atheris") is None:
        print(
            "atheris is not installed, so nothing was fuzzed. It has wheels for CPython 3.11 to 3.13 on Linux; "
            f"this is CPython {platform.python_version()}. Install the extra: pip install -e '.[fuzz]'",
            file=sys.stderr,
        )
        return 2
    keep = options.keep or Path(tempfile.mkdtemp(prefix="harness-fuzz-"))
    keep.mkdir(parents=True, exist_ok=True)
    results = []
    for name in options.targets or NAMES:
        print(f"{name}: {options.seconds} s", file=sys.stderr, flush=True)
        results.append(_fuzz(name, options.seconds, keep))
    table = _table(results)
    print(table)
    print(json.dumps({"schema_version": 1, "targets": [asdict(result) for result in results]}))
    if options.docs:
        _write_docs(table)
    if any(result.faults for result in results):
        print(f"Inputs that failed are in {keep}", file=sys.stderr)
        return 1
    return 0


def _fuzz(name: str, seconds: int, keep: Path) -> Figures:
    """Fuzz one target; after a fault, continue with the corpus so far until the time is over."""
    with tempfile.TemporaryDirectory(prefix="harness-fuzz-") as scratch:
        corpus = Path(scratch) / "corpus"
        corpus.mkdir()
        for at, seed in enumerate(target(name).seeds()):
            (corpus / f"seed{at}").write_bytes(seed)
        inputs = accepted = edges = memory = 0
        slowest_s, faults = 0.0, []
        started_s = time.monotonic()
        run = 0
        while (left_s := seconds - (time.monotonic() - started_s)) > _LEAST_S or run == 0:
            run += 1
            statistics = Path(scratch) / f"statistics{run}.json"
            files = Path(scratch) / f"files{run}"
            files.mkdir()
            log = _one_run(name, max(_LEAST_S, int(left_s)), run, statistics, files, keep, corpus)
            found = json.loads(statistics.read_text()) if statistics.exists() else {}
            inputs += max(found.get("inputs", 0), _last(r"number_of_executed_units: (\d+)", log))
            accepted += found.get("accepted", 0)
            if found.get("slowest_s", 0.0) > slowest_s:
                slowest_s = found["slowest_s"]
                (keep / f"{name}-slowest").write_bytes(statistics.with_suffix(".slowest").read_bytes())
            edges = max([edges, *(int(number) for number in _EDGES.findall(log))])
            memory = max([memory, *(int(number) for number in _MEMORY.findall(log))])
            if fault := _fault(log):
                faults.append(fault)
        taken_s = time.monotonic() - started_s
        unique = tuple(dict.fromkeys(faults))
        return Figures(name, round(taken_s, 1), inputs, accepted, round(slowest_s, 4), edges, memory, unique)


def _one_run(name: str, seconds: int, run: int, statistics: Path, files: Path, keep: Path, corpus: Path) -> str:
    """Run a process of libFuzzer, which ends at the first fault, and return its log."""
    limits = [f"-max_total_time={seconds}", f"-timeout={HANG_S}", f"-rss_limit_mb={RSS_LIMIT_MB}"]
    limits += [f"-max_len={MAX_INPUT_BYTES}", "-len_control=0", "-mutate_depth=1", "-keep_seed=1"]
    limits += [f"-seed={run}", "-print_final_stats=1"]
    command = [sys.executable, "-m", "fuzz.instrumented", name, str(statistics), str(files)]
    command += [*limits, f"-artifact_prefix={keep}/{name}-{run}-", str(corpus)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "ORT_DISABLE_TELEMETRY": "1"}
    log = keep / f"{name}-{run}.log"
    with log.open("wb") as file:
        limit_s = seconds + 120
        nothing = subprocess.DEVNULL
        subprocess.run(
            command, cwd=ROOT, env=environment, stdin=nothing, stdout=file, stderr=file, timeout=limit_s, check=False
        )
    return log.read_text(errors="replace")


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


def _table(results: list[Figures]) -> str:
    lines = [
        "| target | seconds | inputs | accepted | faults | slowest input | peak memory | edges reached |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for one in results:
        lines.append(
            f"| {one.target} | {one.seconds:.0f} | {one.inputs:,} | {one.accepted:,} | {len(one.faults)} "
            f"| {1000 * one.slowest_s:.0f} ms | {one.peak_rss_mb} MB | {one.edges:,} |"
        )
    return "\n".join(lines)


def _write_docs(table: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    if not after:
        raise SystemExit(f"{PAGE.name} has no markers for the figures")
    versions = f"CPython {platform.python_version()} and atheris {importlib.metadata.version('atheris')}"
    PAGE.write_text(f"{before}{_BEGIN}\n{table}\n\nWith {versions}.\n{_END}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
