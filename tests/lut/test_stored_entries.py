"""Entries of large tables, parsed where they are looked up, are those of the whole parser."""

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from nullbench import Bench

from harness import cache
from harness.errors import LutCorrupt
from harness.lut import entry_rows
from harness.lut.entry_rows import StoredEntries, entries_of, read_entries, write_entries
from harness.lut.table import Entry, Lut
from harness.lut.table_files import publish, read_lut
from harness.measure.policy import RepeatPolicy

CONTEXTS = ("chip", "map", "outside", "chip,map", "chip@0123abcd", "map@00000000")
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), min_size=1, max_size=20)
TIME = st.floats(1e-9, 1e3).map(lambda value: float(f"{value:.6e}"))
PLACES = st.lists(st.tuples(TEXT, st.sampled_from(CONTEXTS)), min_size=1, max_size=12, unique=True)


@pytest.fixture(autouse=True)
def index_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Note every table, in a cache of this test's own."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "index"))
    monkeypatch.setattr(entry_rows, "LEAST_BYTES", 0)


def _entry(signature: str, context: str, time_s: float, flags: str) -> Entry:
    key = hashlib.sha256(signature.encode()).hexdigest()[:16]
    known = (time_s, time_s / 8, 3, time_s > 1, "cold", flags, "0123abcd", 1, "p", "b", signature, -time_s, time_s)
    entry = Entry(key, context, "Conv", *known)
    rounded = {name: float(f"{getattr(entry, name):.6e}") for name in ("stderr_s",)}
    return dataclasses.replace(entry, **rounded)


def _read(content: bytes) -> Sequence[Entry]:
    return entries_of(content, hashlib.sha256(content).hexdigest())


@given(PLACES, st.data())
def test_stored_entries_are_those_that_were_parsed(places: list[tuple[str, str]], data: st.DataObject) -> None:
    """Whatever the texts and times of a table, the second reading finds every entry as the first did."""
    entries = [_entry(*place, data.draw(TIME), data.draw(TEXT)) for place in places]
    content = write_entries(entries)
    parsed, stored = read_entries(content), [_read(content), _read(content)][1]
    assert isinstance(stored, StoredEntries)
    assert tuple(stored) == parsed == stored[:]
    assert [stored[at] for at in range(-1, len(parsed))] == [parsed[at] for at in range(-1, len(parsed))]
    for entry in parsed:
        assert entry in [stored[row] for row in stored.rows[entry.key]]
    assert {key: sorted(stored.rows[key]) for key in stored.rows} == {
        entry.key: [at for at, one in enumerate(parsed) if one.key == entry.key] for entry in parsed
    }
    assert "0" * 16 not in stored.rows


def test_a_table_of_stored_entries_answers_like_a_parsed_one(tmp_path: Path) -> None:
    """Lookups, variances and displacement of a table do not depend on whether an index was there."""
    bench = Bench(tmp_path / "bench")
    bench.profile(policy=RepeatPolicy(runs=5))
    plain = bench.build()
    stored = read_lut(plain.path)
    parsed = dataclasses.replace(stored, entries=tuple(stored.entries))
    assert isinstance(stored.entries, StoredEntries)
    assert stored.by_place == parsed.by_place
    for entry in parsed.entries:
        assert stored.at(*entry.place) == entry
        assert stored.index_of(entry) == parsed.index_of(entry)
        assert stored.find(entry.key, ()) == parsed.find(entry.key, ())
        assert stored.is_displaced(entry.key) == parsed.is_displaced(entry.key)
    counts = dict.fromkeys(range(len(parsed.entries)), 2.0)
    assert stored.variance(counts) == parsed.variance(counts)
    assert stored.displacement == parsed.displacement
    assert stored.find("0" * 16, ("chip",)) is None


def test_an_edited_file_is_refused_with_an_index_as_without(tmp_path: Path) -> None:
    """The hash of a table's entries is compared at each reading."""
    bench = Bench(tmp_path / "bench")
    bench.profile(policy=RepeatPolicy(runs=5))
    table: Lut = bench.build()
    assert isinstance(read_lut(table.path).entries, StoredEntries)
    path = table.path / "entries.csv"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"Conv", b"Cony", 1))
    with pytest.raises(LutCorrupt, match=r"entries\.csv does not have the hash"):
        read_lut(table.path)


def test_a_note_of_other_content_is_ignored(tmp_path: Path) -> None:
    """Whatever the cache holds under the right key, the entries are those of the file."""
    entries = [_entry(name, "chip", 1.0, "") for name in ("one", "another")]
    content = write_entries(entries)
    _read(content)
    (note,) = (tmp_path / "index" / "results").iterdir()
    held = cache.get(note.name)
    assert held is not None
    for other in (b"", b"x", held[:-1], bytes(16 + 20 * 2), held[::-1]):
        cache.put(note.name, other)
        assert [entry.signature for entry in _read(content)] == ["one", "another"]
        assert isinstance(_read(content), StoredEntries)  # noted anew


def test_more_entries_than_correlations_allow_are_summed(tmp_path: Path) -> None:
    """A table of 12,000 entries without correlations is published, read, and adds independent errors."""
    bench = Bench(tmp_path / "bench")
    bench.profile(policy=RepeatPolicy(runs=5))
    table = bench.build()
    first = next(entry for entry in table.entries if "@" not in entry.context)
    entries = []
    for number in range(12_000):
        signature = f"{first.signature}{number}"
        key = hashlib.sha256(signature.encode()).hexdigest()[:16]
        entries.append(dataclasses.replace(first, signature=signature, key=key, remainder_stderr_s=1e-6))
    large = publish(dataclasses.replace(table, entries=entries, chains=(), correlations=b""), tmp_path / "lut")
    again = read_lut(large.path)
    assert len(again.entries) == 12_000
    assert again.variance({0: 3.0, 11_999: 4.0}) == pytest.approx(25e-12)
