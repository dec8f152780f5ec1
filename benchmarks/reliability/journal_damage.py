"""Damage and edit copies of a journal, and count what `harness journal check` says to each.

    python -m benchmarks.reliability.journal_damage

Each copy has one change: of bytes, as by a bad disk, cable or copy, or of rows, as by an editor. A copy whose check
finds nothing must have the contents as before, in every table, and as every query of harness reads them. The command
prints the counts and ends with status 1 if one copy has other contents unnoticed.
"""

import os
import random
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from altered_journals import DAMAGES, contents, damaged, edit_at_random, editing
from nullbench import Bench

from benchmarks.generated_page import table
from harness.errors import JournalError
from harness.measure.journal.journal import Journal
from harness.measure.policy import RepeatPolicy

EDITS = "one to three rows edited by SQL"
EACH, SEED = 150, 15
"""Copies for each kind of damage, twice that for edits; and the seed of all changes."""
OUTCOMES = ("altered", "refused", "as before", "unnoticed")


def make_journals(folder: Path) -> list[bytes]:
    """Return the file of a journal after each of several campaigns and decisions; the last one is damaged."""
    bench = Bench(folder)
    states = []
    for runs in (3, 4, 5):
        campaign = bench.profile(policy=RepeatPolicy(runs=runs)).campaign
        states.append(bench.workspace.journal.read_bytes())
        with Journal(bench.workspace.journal) as journal:
            token = journal.campaign(campaign).token
            journal.exclude(campaign, token, "hot" if runs == 4 else None)
            journal.refuse(campaign, token, next(iter(journal.probes(campaign))), "unknown operator")
        states.append(bench.workspace.journal.read_bytes())
    return states


def read_all(path: Path) -> object:
    """Return the contents as every query of harness reads them; raises JournalError."""
    with Journal(path) as journal:
        return [
            (
                journal.campaign(number),
                journal.probes(number),
                journal.layers(number),
                journal.chains(number),
                journal.samples(number),
                journal.spent_s(number),
                [journal.slots(number, 0, round) for round in range(journal.rounds(number, 0))],
            )
            for number in journal.numbers()
        ]


def outcome_of(path: Path, before: tuple[object, object]) -> str:
    """Check a journal, and compare it with the contents before if nothing was found."""
    try:
        with Journal(path) as journal:
            if "altered" in journal.check_all().values():
                return "altered"
        return "as before" if (contents(path), read_all(path)) == before else "unnoticed"
    except JournalError:
        return "refused"
    except sqlite3.Error:  # only `contents` raises it, after a check that found nothing
        return "unnoticed"


def main() -> None:
    """Damage, check and print."""
    chance, counts, slowest_s = random.Random(SEED), Counter[tuple[str, str]](), 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["HARNESS_RUNTIME_FOLDER"] = name  # leases of its own
        *earlier, whole = make_journals(folder / "bench")
        path = folder / "journal.sqlite"
        path.write_bytes(whole)
        before = (contents(path), read_all(path))
        for kind in (*DAMAGES, EDITS, EDITS):
            for _ in range(EACH):
                for beside in folder.glob("journal.sqlite-*"):
                    beside.unlink()
                if kind == EDITS:
                    path.write_bytes(whole)
                    with editing(path) as db:
                        done = [edit_at_random(db, chance) for _ in range(chance.randint(1, 3))]
                else:
                    done = []
                    path.write_bytes(damaged(whole, chance.choice(earlier), kind, chance))
                started_s = time.perf_counter()
                found = outcome_of(path, before)
                slowest_s = max(slowest_s, time.perf_counter() - started_s)
                counts[kind, found] += 1
                if found == "unnoticed":
                    print(f"unnoticed: {kind} {done}", file=sys.stderr)
    kinds = (*DAMAGES, EDITS)
    rows = [(kind, *(counts[kind, one] for one in OUTCOMES)) for kind in kinds]
    rows.append(("all", *(sum(counts[kind, one] for kind in kinds) for one in OUTCOMES)))
    print(table(("change", *OUTCOMES), rows))
    print(f"\n{len(whole):,} bytes, {counts.total():,} copies, slowest check {1e3 * slowest_s:.0f} ms")
    sys.exit(1 if rows[-1][-1] else 0)


if __name__ == "__main__":
    main()
