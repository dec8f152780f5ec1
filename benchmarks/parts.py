"""The command line of a benchmark that rewrites a page part by part."""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.generated_page import PartsPage, Section
from harness.errors import HarnessError

_MET_WORDS = {True: "met", False: "not met", None: "no target"}
Run = TypeVar("Run")


def run_parts(
    description: str | None,
    page: PartsPage,
    parts: Mapping[str, Callable[[Run], Section]],
    begin: Callable[[Path, bool], Run],
) -> int:
    """Run the parts that the command line selects, and write each to the page before the next begins.

    `begin` returns the run in a folder, of small size if the second argument is true. Returns 1 if a part failed.
    """
    given = _arguments(description, parts)
    chosen = [part for part in given.parts.split(",") if part]
    with tempfile.TemporaryDirectory() as temporary:
        root = given.workspace or Path(temporary)
        root.mkdir(parents=True, exist_ok=True)
        path = given.page or (_copy(page.path, root) if given.quick else page.path)
        page = replace(page, path=path)
        page.check(chosen)
        run, started_s = begin(root, given.quick), time.monotonic()
        failed = [part for part in chosen if not run_part(part, parts[part], run, page)]
        say(f"all took {(time.monotonic() - started_s) / 60:.1f} min")
        if given.quick and given.page is None and given.workspace is None:
            print(path.read_text(encoding="utf-8"))
    return 1 if failed else 0


def run_part(name: str, part: Callable[[Run], Section], run: Run, page: PartsPage) -> bool:
    """Run a part and write it to the page. If it fails, print why, leave its block as it was and return False."""
    load, started_s, before_s = os.getloadavg()[0], time.monotonic(), cpu_s()
    say(f"== {name}")
    try:
        section = part(run)
    except (HarnessError, subprocess.SubprocessError) as error:
        say(f"{name} failed: {error}")
        return False
    took = f"{time.monotonic() - started_s:,.0f} s and {cpu_s() - before_s:,.0f} s of CPU time"
    load_words = f"the load of the machine was {load:.1f} before it"
    page.write(name, section, f"Measured on {datetime.now(UTC):%Y-%m-%d}; this part took {took}; {load_words}.")
    for row in section.reached:
        say(f"{row.target}: {row.figure} ({_MET_WORDS[row.met]})")
    return True


def cpu_s() -> float:
    """Return the CPU time of this process and of those that it waited for, in seconds."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in usage)


def harness_json(*words: str) -> dict[str, Any]:
    """Run a command of `harness` in a process, and return the JSON that it prints; raises CalledProcessError."""
    command = [sys.executable, "-m", "harness", *words, "--json"]
    found: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return found


def say(line: str) -> None:
    """Print progress on stderr."""
    print(line, file=sys.stderr, flush=True)


def _arguments(description: str | None, parts: Mapping[str, object]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workspace", type=Path, help="folder to work in; default: a temporary one")
    parser.add_argument("--parts", default=",".join(parts), help="parts to run, separated by commas; default: all")
    parser.add_argument("--quick", action="store_true", help="small sizes, a copy of the page")
    parser.add_argument("--page", type=Path, help="page to rewrite; default: the one in docs/")
    given = parser.parse_args()
    unknown = [part for part in given.parts.split(",") if part and part not in parts]
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}; parts are {', '.join(parts)}")
    return given


def _copy(page: Path, root: Path) -> Path:
    copy = root / page.name
    copy.write_text(page.read_text(encoding="utf-8"), encoding="utf-8")
    return copy
