"""Journals that something other than harness has written to: a bad disk, an editor, a host that forges digests."""

import contextlib
import random
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from harness.measure.journal import digest

TABLES = ("campaigns", "probes", "layers", "chains", "rounds", "series", "samples", "digests", "blocks")
_SECTOR = 512


@contextlib.contextmanager
def editing(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a journal as an editor does, without the checks of harness; commits at the end."""
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA foreign_keys=OFF")
        yield db


def cover(db: sqlite3.Connection) -> None:
    """Give all campaigns the digests of what they hold now."""
    for (number,) in db.execute("SELECT id FROM campaigns").fetchall():
        digest.forget(db, number)
        digest.begin(db, number)
        series = db.execute("SELECT id FROM series WHERE campaign=? ORDER BY id", (number,)).fetchall()
        db.executemany("INSERT INTO blocks VALUES (?,?,?)", [(number, one, one) for (one,) in series])
        db.execute("UPDATE digests SET series=? WHERE campaign=?", (digest._series(db, number), number))


def contents(path: Path) -> dict[str, list[object]]:
    """Return all rows of all tables, read from the tables and not from their indexes; raises sqlite3.Error."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        return {one: sorted(db.execute(f"SELECT * FROM {one} NOT INDEXED"), key=repr) for one in TABLES}


def _bit(content: bytearray, chance: random.Random) -> None:
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)


def _byte(content: bytearray, chance: random.Random) -> None:
    content[chance.randrange(len(content))] = chance.randrange(256)


def _run(content: bytearray, chance: random.Random) -> None:
    length = chance.randint(2, 64)
    at = chance.randrange(len(content) - length)
    content[at : at + length] = chance.randbytes(length)


def _moved_bytes(content: bytearray, chance: random.Random) -> None:
    length = chance.randint(2, 64)
    at, source = (chance.randrange(len(content) - length) for _ in range(2))
    content[at : at + length] = content[source : source + length]


def _zero_sector(content: bytearray, chance: random.Random) -> None:
    at = _SECTOR * chance.randrange(1, len(content) // _SECTOR)
    content[at : at + _SECTOR] = bytes(_SECTOR)


def _swapped_pages(content: bytearray, chance: random.Random) -> None:
    page = page_size(content)
    one, other = (page * at for at in chance.sample(range(1, len(content) // page), 2))
    content[one : one + page], content[other : other + page] = content[other : other + page], content[one : one + page]


def _cut(content: bytearray, chance: random.Random) -> None:
    del content[chance.randrange(len(content)) :]


_STALE_PAGE = "a page as it was some commits earlier"
_DAMAGES: Mapping[str, Callable[[bytearray, random.Random], None]] = {
    "one bit": _bit,
    "one byte": _byte,
    "2 to 64 random bytes": _run,
    "2 to 64 bytes from elsewhere in the file": _moved_bytes,
    "a sector of zeros": _zero_sector,
    "two pages swapped": _swapped_pages,
    "the end cut off": _cut,
}
DAMAGES = (*_DAMAGES, _STALE_PAGE)
"""What a bad disk, cable or copy does to a file."""


def damaged(content: bytes, earlier: bytes, kind: str, chance: random.Random) -> bytes:
    """Return a journal's content after damage of a kind; `earlier` is the content some commits before."""
    changed = bytearray(content)
    if kind == _STALE_PAGE:  # a write that never reached the disk
        page = page_size(content)
        stale = [at for at in range(0, len(earlier), page) if content[at : at + page] != earlier[at : at + page]]
        at = chance.choice(stale)
        changed[at : at + page] = earlier[at : at + page]
    while changed == content:
        _DAMAGES[kind](changed, chance)
    return bytes(changed)


def page_size(content: bytes | bytearray) -> int:
    """Return the page size of an SQLite file."""
    return int.from_bytes(content[16:18], "big")


def edit_at_random(db: sqlite3.Connection, chance: random.Random) -> str:
    """Change, delete, copy or move rows by SQL, as an editor can; returns what was done, "" for nothing."""
    table = chance.choice(TABLES)
    columns = [name for _, name, *_ in db.execute(f"PRAGMA table_info({table})")]
    keys = [name for _, name, _, _, _, key in db.execute(f"PRAGMA table_info({table})") if key]
    rows = db.execute(f"SELECT * FROM {table}").fetchall()
    if not rows:
        return ""
    row = dict(zip(columns, chance.choice(rows), strict=True))
    where = " AND ".join(f'"{key}" IS ?' for key in keys)
    own = [row[key] for key in keys]
    column = chance.choice(columns)
    other = chance.choice(rows)[columns.index(column)]
    task = chance.choice(("value", "value of another row", "type", "delete", "copy"))
    statement, values = {
        "value": (f'UPDATE {table} SET "{column}"=? WHERE {where}', [_changed(row[column], chance), *own]),
        "value of another row": (f'UPDATE {table} SET "{column}"=? WHERE {where}', [other, *own]),
        "type": (f'UPDATE {table} SET "{column}"=CAST("{column}" AS BLOB) WHERE {where}', own),
        "delete": (f"DELETE FROM {table} WHERE {where}", own),
        "copy": (
            f"INSERT INTO {table} VALUES ({','.join('?' * len(columns))})",
            [_changed(value, chance) if name == keys[-1] else value for name, value in row.items()],
        ),
    }[task]
    try:
        db.execute(statement, values)
    except sqlite3.IntegrityError:  # such a row cannot be
        return ""
    return f"{task}: {table}.{column}"


def _changed(value: object, chance: random.Random) -> object:
    if value is None:
        return chance.choice((0, 1, "x"))
    if isinstance(value, float):
        return value + chance.choice((-1e-9, 0.5))
    if isinstance(value, int):
        return value + chance.choice((-1, 1, 1000))
    at = chance.randrange(len(text := str(value)) + 1)
    return chance.choice((f"{text[:at]}0{text[at:]}", text[:at] + text[at + 1 :], ""))
