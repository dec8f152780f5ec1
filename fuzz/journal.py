"""The journal of samples: SQLite files with changed bytes, pages and values, and extracts that another host sends.

A journal that opens with other contents than were committed, without that being noticed, is a fault.
"""

import contextlib
import functools
import hashlib
import random
import sqlite3
import tempfile
import zlib
from collections.abc import Iterator
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any
from unittest import mock

from fuzz import network_seeds
from fuzz.edits.draft import BOUND_DIMS
from fuzz.mutation import INTEGERS, NUMBERS, TEXTS, any_value, json_text, mutate_bytes
from fuzz.outcome import Outcome
from harness.errors import HarnessError, JournalError
from harness.lut.build import build_lut
from harness.measure.journal.journal import Journal
from harness.measure.journal.merge import merge
from harness.measure.journal.records import CampaignKey, Slot
from harness.measure.journal.transfer import extract
from harness.network.fusion.fusion_rules import DEFAULT_RULES
from harness.network.layers import cut
from harness.network.reading.limited_reading import prepared
from harness.network.reading.read import parse_model
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.probe_plan import CutNetwork, ProbePlan, plan_probes
from harness.samples import Sample
from harness.workspace import Workspace, as_workspace

_JOURNAL, _EXTRACT = b"J", b"E"
"""The first byte of an input: a journal that is opened, or an extract that is merged into one."""
_DEVICE, _JOB = "board", "night"
_TABLES = ("campaigns", "probes", "layers", "chains", "rounds", "series", "samples", "digests", "blocks")
_BUILT = 64
"""One intact journal in so many is built into a table, which takes a second; of altered ones, all."""
_PAGE_BYTES = 512
_MOST_BATCHES = 8


def read(data: bytes, folder: Path) -> Outcome:
    """Open a journal, check it and read all that counts as intact; or merge an extract into a new journal."""
    workspace = _empty(folder)
    try:
        if data[:1] == _EXTRACT:
            return _merge(workspace, data[1:])
        workspace.journal.write_bytes(data[1:])
        outcome = _check(workspace)
        if not outcome.is_accepted or zlib.crc32(data) % _BUILT == 0:
            build_lut(_DEVICE, workspace=workspace)
        return outcome
    except HarnessError as error:
        if type(error) is HarnessError:  # it stands for a bug
            raise
        return Outcome.REFUSED


def _check(workspace: Workspace) -> Outcome:
    """Check as `harness journal check` does, and each campaign as `harness lut build` does."""
    with Journal(workspace.journal) as journal:
        for campaign in journal.campaigns(_DEVICE):
            if journal.check(campaign.id) == "intact":  # several changes may make one of an earlier version
                _compare(journal, campaign.id, used=True)
        verdicts = journal.check_all()
        for number, verdict in verdicts.items():
            if verdict == "intact":
                _compare(journal, number)
        return Outcome.of("altered" not in verdicts.values())


def _compare(journal: Journal, campaign: int, used: bool = False) -> None:
    """Fail if a campaign is none of the seeds'; `used` compares only what a table is built from."""
    if _content(journal, campaign, used) not in _known():
        raise AssertionError(f"campaign {campaign} is {journal.check(campaign)} with other contents")


def _content(journal: Journal, campaign: int, used: bool = False) -> str:
    """Return a digest of what can be read of a campaign; with `used`, of what a table is built from."""
    found = journal.campaign(campaign)
    parts: list[Any] = [found.key, found.complete, found.excluded, found.clock, found.rules, found.created]
    parts += [sorted(journal.probes(campaign).items(), key=repr), journal.layers(campaign), journal.chains(campaign)]
    parts += [sorted(journal.samples(campaign).items(), key=repr)]
    if not used:
        parts += [journal.spent_s(campaign), [journal.rounds(campaign, batch) for batch in range(_MOST_BATCHES)]]
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _merge(workspace: Workspace, content: bytes) -> Outcome:
    with Journal(workspace.journal) as journal:
        try:
            merge(journal, content, job=_JOB, device=_DEVICE)
        except JournalError:
            return Outcome.REFUSED
        verdicts = journal.check_all()
        if "altered" in verdicts.values():
            raise AssertionError(f"a journal is altered after merging: {verdicts}")
        for number in verdicts:
            _content(journal, number)
    return Outcome.ACCEPTED


def _empty(folder: Path) -> Workspace:
    """Return a workspace without a journal."""
    workspace = as_workspace(folder)
    workspace.journal.parent.mkdir(parents=True, exist_ok=True)
    for path in workspace.journal.parent.iterdir():
        path.unlink()
    return workspace


@functools.cache
def _known() -> frozenset[str]:
    """Return the contents of the campaigns of the seeds."""
    found: set[str] = set()
    with tempfile.TemporaryDirectory() as root:
        for at, seed in enumerate(seeds()):
            if seed[:1] == _JOURNAL:
                path = Path(root) / f"{at}.sqlite"
                path.write_bytes(seed[1:])
                with Journal(path) as journal:
                    found.update(_content(journal, one, used) for one in journal.numbers() for used in (True, False))
    return frozenset(found)


class _StoppedClock:
    """The time of all campaigns and series, so that the seeds do not depend on when they are made."""

    @staticmethod
    def now(zone: tzinfo) -> datetime:
        """Return that time."""
        return datetime(2026, 1, 2, 3, 4, 5, tzinfo=zone)


@functools.cache
def seeds() -> list[bytes]:
    """Return a journal of two campaigns, of which one is complete, in large and small pages, and an extract of it."""
    with tempfile.TemporaryDirectory() as root:
        path = Path(root) / "journal.sqlite"
        plan = _plan()
        with Journal(path) as journal, mock.patch("harness.measure.journal.journal.datetime", _StoppedClock):
            for seed, complete in ((1, True), (2, False)):
                _measure(journal, plan, seed, complete)
        large, sent = path.read_bytes(), extract(path, _JOB)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            for statement in ("PRAGMA journal_mode=DELETE", f"PRAGMA page_size={_PAGE_BYTES}", "VACUUM"):
                db.execute(statement)
            db.execute("PRAGMA journal_mode=WAL")
        return [_JOURNAL + large, _JOURNAL + path.read_bytes(), _EXTRACT + sent]


def _plan() -> ProbePlan:
    content = network_seeds.plain()[0]
    network = prepared(parse_model("n", "n", content), BOUND_DIMS, None)
    one = CutNetwork(network, cut(network, DEFAULT_RULES), frozenset())
    return plan_probes([one], DEFAULT_RULES[:3], AuxiliaryKind.AVGPOOL)


def _measure(journal: Journal, plan: ProbePlan, seed: int, complete: bool) -> None:
    """Record a campaign on a device whose latency is linear in the bytes that a probe transfers."""
    settings = {"purpose": "profile", "seed": seed, "job": _JOB}
    campaign = journal.begin(CampaignKey(_DEVICE, plan.id, settings, {"cpu": "x"}), plan, "device", 5).id
    noise = random.Random(seed)  # noqa: S311 - not a secret
    for number, batch in enumerate(plan.batches):
        for turn in range(2):
            taken = []
            for position, name in enumerate(batch.probes):
                terms = plan.probes[name].terms
                base = 100_000 + terms.input_bytes + 2 * terms.output_bytes + 500 * terms.auxiliaries
                ticks = [round(base * noise.uniform(1, 1.01)) for _ in range(2)]
                taken.append((Slot(number, turn, position), name, [Sample(one + 9, None, one, 0) for one in ticks]))
            journal.add(campaign, 5, taken, {"load": 0.25})
            journal.finish_round(campaign, 5, number, turn + 1)
    journal.spend(campaign, 5, 0.5)
    if complete:
        journal.complete(campaign, 5)


def mutate(data: bytes, draw: random.Random) -> bytes:
    """Change bytes, pages or, by SQL, values and rows."""
    mode, content = data[:1] or _JOURNAL, data[1:]
    if len(content) < _PAGE_BYTES or draw.random() < 0.2:
        return mode + mutate_bytes(content, draw)
    if draw.random() < 0.5:
        return mode + _changed_by_sql(content, draw)
    return mode + _changed_pages(content, draw)


def _changed_pages(content: bytes, draw: random.Random) -> bytes:
    """Flip bits where there are values, clear, exchange or copy parts of pages, or change the headers of pages."""
    changed = bytearray(content)
    size = int.from_bytes(content[16:18], "big") or _PAGE_BYTES
    size = size if 512 <= size <= len(content) else _PAGE_BYTES
    page = size * draw.randrange(len(content) // size)
    kind = draw.randrange(8)
    if kind == 0:  # the header of a page: its kind, its number of cells, where they lie
        changed[page + (100 if page == 0 else 0) + draw.randrange(12)] = draw.randrange(256)
    elif kind == 1:
        at = page + draw.randrange(size)
        end = min(len(changed), at + draw.choice((1, 8, 64, size)))
        changed[at:end] = bytes(end - at)
    elif kind == 2:
        other = size * draw.randrange(len(content) // size)
        changed[page : page + size], changed[other : other + size] = (
            content[other : other + size],
            content[page : page + size],
        )
    elif kind == 3:
        other = size * draw.randrange(len(content) // size)
        changed[page : page + size] = content[other : other + size]
    elif kind == 4:
        changed[draw.randrange(100)] = draw.choice((0, 1, 2, 3, 4, 255))
    else:
        held = range(page, min(page + size, len(content)))
        used = [at for at in held if bool(content[at]) is (kind < 7)]  # or what nothing uses
        for _ in range(draw.choice((1, 1, 2, 8))):
            if used:
                changed[draw.choice(used)] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _changed_by_sql(content: bytes, draw: random.Random) -> bytes:
    """Change one value or one row; the file stays a valid database."""
    with _in_memory(content) as db, contextlib.suppress(sqlite3.Error, UnicodeError, OverflowError):
        table = draw.choice(_TABLES)
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
        rows = db.execute(f"SELECT * FROM {table} LIMIT 200").fetchall()  # noqa: S608 - our own names
        if not rows:
            return mutate_bytes(content, draw)
        row, column = draw.choice(rows), draw.choice(columns)
        held = dict(zip(columns, row, strict=True))
        where = " AND ".join(f'"{name}" IS ?' for name in columns)
        kind = draw.random()
        if kind < 0.1:
            db.execute(f"DELETE FROM {table} WHERE {where}", row)  # noqa: S608
        elif kind < 0.2:
            copied = {**held, column: _value(held.get(column), draw)}
            marks = ",".join("?" * len(columns))
            db.execute(f"INSERT INTO {table} VALUES ({marks})", tuple(copied.values()))  # noqa: S608
        else:
            values = (_value(held.get(column), draw), *row)
            db.execute(f'UPDATE {table} SET "{column}"=? WHERE {where}', values)  # noqa: S608
        return _serialised(db, content)
    return mutate_bytes(content, draw)


def _value(value: Any, draw: random.Random) -> Any:
    if isinstance(value, int) and draw.random() < 0.7:
        return value + draw.choice((-1, 1, 1 << 20))
    if isinstance(value, str) and value[:1] in ("{", "[") and draw.random() < 0.7:
        return json_text(any_value(draw), draw).decode("utf-8", "replace")
    return draw.choice((None, b"\xff", *INTEGERS[:8], *NUMBERS, *TEXTS[:12]))


@contextlib.contextmanager
def _in_memory(content: bytes) -> Iterator[sqlite3.Connection]:
    """Give a copy in memory, which has no write-ahead log."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.execute("PRAGMA foreign_keys=OFF")
        with contextlib.suppress(sqlite3.Error):
            db.deserialize(content[:18] + b"\x01\x01" + content[20:])
        yield db


def _serialised(db: sqlite3.Connection, content: bytes) -> bytes:
    changed = db.serialize()
    return changed[:18] + content[18:20] + changed[20:]
