"""`python -m fuzz --seconds 60`: run all targets under atheris, one after the other; print a table and JSON.

Needs the extra `fuzz` (atheris, for CPython 3.11 to 3.13). Exits with 1 if an input crashed, hung or took too much
memory; such inputs are kept in the folder of `--keep`. `--docs` writes the figures into docs/hostile_input.md; with
`--figures FILE` those of an earlier run, whose JSON the file holds, or of `python -m benchmarks.reliability fuzz`.
"""

import argparse
import importlib.util
import json
import platform
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from fuzz.figures import read_figures, table, write_docs
from fuzz.runs import fuzz
from fuzz.target import NAMES


def main() -> int:
    """Run the targets and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Fuzz the readers of foreign input.")
    parser.add_argument("--seconds", type=int, default=60, help="seconds for each target; default: 60")
    parser.add_argument("--keep", type=Path, default=None, help="folder for inputs that fail; default: a new one")
    parser.add_argument("--docs", action="store_true", help="write the figures into docs/hostile_input.md")
    parser.add_argument("--figures", type=Path, default=None, help="with --docs: write these figures, do not fuzz")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"{', '.join(NAMES)}; default: all")
    options = parser.parse_args()
    if unknown := sorted(set(options.targets) - set(NAMES)):
        parser.error(f"there is no target {unknown[0]!r}; choose from {', '.join(NAMES)}")
    if options.figures is not None:
        write_docs(read_figures(options.figures))
        return 0
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
        results.append(fuzz(name, options.seconds, keep))
        print(json.dumps(asdict(results[-1])), file=sys.stderr, flush=True)
    print(table(results))
    print(json.dumps({"schema_version": 2, "targets": [asdict(result) for result in results]}))
    if options.docs:
        write_docs(results)
    if any(result.faults for result in results):
        print(f"Inputs that failed are in {keep}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
