"""Reading and building tables of growing size: a part of docs/performance.md.

Tables that are read hold copies of the entries of the published one. Tables that are built come from campaigns over
built-in networks on the `null` device, whose runs take no time.
"""

import dataclasses
import hashlib
import statistics
from functools import partial
from pathlib import Path
from unittest import mock

from benchmarks.generated_page import Section
from benchmarks.performance.measuring import Growth, Run, Task, cpu, fitted, grow, growth_table, half_decades, in_turns
from benchmarks.performance.page import reached, reached_linear
from harness import build_lut, cache, profile
from harness.latency.estimators import estimate_layers
from harness.lut.campaign_source import read_campaign
from harness.lut.learning import learn_predictor
from harness.lut.table import Lut
from harness.lut.table_choice import PUBLISHED
from harness.lut.table_files import publish, read_lut
from harness.measure.journal.journal import Journal
from harness.measure.policy import RepeatPolicy
from harness.network.model_references import BUILTIN_NAMES, BUILTIN_PREFIX
from harness.workspace import Workspace

DEVICE = "bench"
SIZES, QUICK_SIZES = half_decades(100, 100_000), (100, 200, 400)
MOST_PARSED, MOST_S = 40_000, 0.05
"""The largest table that is read without the cache, and the wanted time of the largest one with it."""
LOOKUPS = 60
LISTS = (("dscnn",), ("squeezenet",), ("squeezenet", "mobilenetv2"), BUILTIN_NAMES[4:10], BUILTIN_NAMES)
QUICK_LISTS = (("dscnn",), ("bert_mini",), ("bert_mini", "dscnn"))
RUNS = 4


def tables_section(run: Run) -> Section:
    """Read tables over three decades of entries, and build some."""
    sizes, lists = (QUICK_SIZES, QUICK_LISTS) if run.quick else (SIZES, LISTS)
    folder = run.folder("tables")
    with mock.patch.dict("os.environ", {cache.VARIABLE: str(folder / "cache")}):
        (known,) = map(read_lut, (PUBLISHED / "npu01").glob("*-*"))
        parsed = [size for size in sizes if size <= MOST_PARSED]
        paths = {size: publish(_of_size(known, size), folder).path for size in sizes}
        reading = {
            f"load and look up {LOOKUPS}": grow(sizes, lambda size: _reading(paths[size], size), run.repeats),
            "the same without the cache": grow(parsed, lambda size: _reading(paths[size], size, ""), run.repeats),
        }
    noted, bare = reading.values()
    largest_s = noted.times_s[sizes[-1]]
    building = _building(run, lists)
    text = (
        f"CPU time, medians of {run.repeats} in turns. The cache notes that a large table was checked:\n\n"
        f"{growth_table('entries', reading)}\n\n`harness lut build`, and two of its steps; `joint` has a covariance of "
        f"all layers:\n\n{growth_table('entries', building)}"
    )
    return Section(
        text,
        (
            reached_linear("entries: load a table, look up 60", noted),
            reached("entries: load 100,000, look up 60", f"{1e3 * largest_s:.0f} ms", largest_s <= MOST_S),
            reached_linear("entries: load a table without the cache", bare),
        ),
    )


def _of_size(known: Lut, count: int) -> Lut:
    """Return the table with so many entries, each with a key of its own."""
    plain = [entry for entry in known.entries if "@" not in entry.context]
    entries = []
    for number in range(count):
        signature = f"{plain[number % len(plain)].signature}|{number}"
        key = hashlib.sha256(signature.encode()).hexdigest()[:16]
        entries.append(dataclasses.replace(plain[number % len(plain)], signature=signature, key=key))
    return dataclasses.replace(known, entries=entries, chains=(), correlations=b"")


def _reading(path: Path, count: int, cache_folder: str | None = None) -> Task:
    keys = [entry.key for number, entry in enumerate(read_lut(path).entries) if number % max(1, count // LOOKUPS) == 0]

    def look_up() -> None:
        with mock.patch.dict("os.environ", {} if cache_folder is None else {cache.VARIABLE: cache_folder}):
            table = read_lut(path)
            if any(table.find(key, ("chip",)) is None for key in keys[:LOOKUPS]):
                raise SystemExit("an entry is missing")

    look_up()
    return look_up


def _building(run: Run, lists: tuple[tuple[str, ...], ...]) -> dict[str, Growth]:
    """Build a table of each list of networks, and time the whole and its steps in turns."""
    tasks: dict[str, dict[str, Task]] = {}
    for number, names in enumerate(lists):
        workspace = run.workspace(f"tables-{number}")
        workspace.devices.write_text(f'[devices.{DEVICE}]\nbackend = "null"\noptions = {{ noise = 0.01 }}\n')
        profile(
            [BUILTIN_PREFIX + name for name in names], device=DEVICE, workspace=workspace, policy=RepeatPolicy(RUNS)
        )
        table = build_lut(DEVICE, workspace=workspace)
        tasks[str(len(table.entries))] = _steps(table, workspace)
    growths = {}
    for step in next(iter(tasks.values())):
        found = in_turns({size: steps[step] for size, steps in tasks.items()}, run.repeats)
        growths[step] = fitted({int(size): statistics.median(cpu(times)) for size, times in found.items()})
    return growths


def _steps(table: Lut, workspace: Workspace) -> dict[str, Task]:
    with Journal(workspace.journal) as journal:
        measured, overhead = read_campaign(journal, journal.campaign(max(entry.campaign for entry in table.entries)))
    return {
        "build": partial(build_lut, DEVICE, workspace=workspace),
        "layers and covariance": partial(estimate_layers, measured, "joint", overhead),
        "predictor": partial(learn_predictor, table.entries),
    }
