"""Values for unknown neighbourhoods come from known ones of the same class, with their spread as the error."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from made_tables import entry, table

from harness.errors import LutCorrupt
from harness.lut.chain_rows import VIEW, ChainRow, read_rows, write_rows
from harness.lut.neighbourhoods import LEAST_PART, Neighbourhoods
from harness.lut.table import Entry
from harness.lut.table_files import publish, read_lut

NETWORK = "0123456789abcdef"
SECONDS = st.floats(1e-6, 1e-3)


def known(places: Sequence[tuple[str, float, int, int]]) -> tuple[list[Entry], list[ChainRow]]:
    """Return entries and rows of layers, each given by its signature, seconds, and bytes read and written."""
    entries, rows = [], []
    for number, (signature, seconds, read, written) in enumerate(places):
        one = entry(signature, context=f"chip@{number:08x}", latency_s=seconds, remainder_s=seconds)
        entries.append(one)
        rows.append(ChainRow(NETWORK, number, one.key, one.context, read, written, written, 100, number > 0))
    return entries, rows


def key(signature: str) -> str:
    """Return the key of a layer with this signature."""
    return entry(signature).key


@given(st.lists(SECONDS, min_size=1, max_size=6), SECONDS)
def test_the_value_is_the_mean_of_its_class(seconds: list[float], other: float) -> None:
    """A layer that exchanges as much as known ones takes their mean; other classes and layers do not matter."""
    places = [("a", one, 0, 400) for one in seconds]
    entries, rows = known([*places, ("a", other, 400, 0), ("b", other, 0, 400)])
    found = Neighbourhoods(entries, rows).find(key("a"), 0, 400)
    assert found is not None
    assert found.latency_s == pytest.approx(np.mean(seconds))
    assert found.neighbourhood == "front"
    assert found.weights == {at: pytest.approx(1 / len(seconds)) for at in range(len(seconds))}


@given(st.floats(0.01, 0.5), st.integers(2, 8))
def test_neighbourhoods_that_differ_more_have_larger_errors(spread: float, count: int) -> None:
    """The error of a value grows with the spread of its class, and is never below that of the mean."""
    errors = []
    for part in (0.0, spread, 2 * spread):
        seconds = 1e-4 * (1 + part * np.linspace(-1, 1, count))
        entries, rows = known([("a", float(one), 0, 0) for one in seconds])
        found = Neighbourhoods(entries, rows).find(key("a"), 0, 0)
        assert found is not None
        assert found.spread_s >= seconds.std(ddof=1) / count**0.5
        errors.append(found.spread_s)
    assert errors == sorted(errors)


def test_another_class_adds_the_time_of_its_traffic() -> None:
    """Where no known neighbourhood exchanges as much, the nearest is moved by rates fitted to other layers."""
    read_rate, write_rate = 1e-10, 2e-10
    places = [
        (name, 5e-4 + read * read_rate + written * write_rate, read, written)
        for name in "bcdefg"
        for read, written in ((0, 0), (100_000, 0), (0, 300_000))
    ]
    entries, rows = known([*places, ("a", 1e-3, 0, 0)])
    neighbourhoods = Neighbourhoods(entries, rows)
    moved, same = neighbourhoods.find(key("a"), 1_000_000, 500_000), neighbourhoods.find(key("a"), 0, 0)
    assert moved is not None
    assert same is not None
    assert moved.latency_s == pytest.approx(1e-3 + 1e-4 + 1e-4, rel=1e-6)
    assert moved.neighbourhood == "none"
    fewer = Neighbourhoods(*known([*places, ("a", 1e-5, 10**9, 0)])).find(key("a"), 0, 0)
    assert fewer is not None
    assert fewer.latency_s == pytest.approx(LEAST_PART * 1e-5)


def test_classes_that_rates_do_not_explain_have_larger_errors() -> None:
    """A value from another class has the error of such values, beside that of its own class."""
    draw = np.random.default_rng(1)
    places = [
        (name, 1e-4 * float(draw.uniform(0.5, 2)), read, written)
        for name in "bcdefghij"
        for read, written in ((0, 0), (100_000, 0))
    ]
    entries, rows = known([*places, ("a", 1e-4, 0, 0)])
    neighbourhoods = Neighbourhoods(entries, rows)
    other, same = neighbourhoods.find(key("a"), 100_000, 0), neighbourhoods.find(key("a"), 0, 0)
    assert other is not None
    assert same is not None
    assert other.spread_s > same.spread_s
    assert neighbourhoods.find(key("z"), 0, 0) is None


ROWS = st.builds(
    ChainRow,
    st.sampled_from([NETWORK, NETWORK[::-1]]),
    st.integers(VIEW, 9),
    st.just(key("a")),
    st.just("chip@00000000"),
    *[st.integers(0, 2**40)] * 4,
    st.booleans(),
)


@given(st.lists(ROWS, max_size=5))
def test_rows_are_read_as_they_were_written(rows: list[ChainRow]) -> None:
    """The file of chains keeps every row and its order; without rows there is no file."""
    content = write_rows(rows)
    assert (read_rows(content, {one.place for one in rows}.__contains__) if rows else content) == (
        tuple(rows) if rows else b""
    )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b'"network"', b'"net"', "columns"),
        (b'"chip@00000000"', b'"chip@00000001"', "not in the table"),
        (b",400,", b",-400,", "greater than or equal"),
        (b",400,", b',400,"1",', "line 2"),
        (b'"', b"\xff", "not a CSV file"),
    ],
)
def test_damaged_rows_are_refused(old: bytes, new: bytes, words: str) -> None:
    """A file of chains with other columns, layers that the table lacks, or impossible sizes is refused."""
    entries, rows = known([("a", 1e-4, 400, 0)])
    with pytest.raises(ValueError, match=words):
        read_rows(write_rows(rows).replace(old, new, 1), {one.place for one in entries}.__contains__)


def test_a_table_keeps_its_chains(tmp_path: Path) -> None:
    """Chains are part of a published table, and a change of their file is noticed."""
    entries, rows = known([("a", 1e-4, 400, 0), ("b", 2e-4, 0, 800)])
    made = publish(table(entries, chains=tuple(rows)), tmp_path)
    held = read_lut(made.path)
    assert held.chains == tuple(rows)
    assert held.neighbourhoods is not None
    assert publish(dataclasses.replace(held, chains=()), tmp_path).neighbourhoods is None
    (made.path / "chains.csv").write_bytes(write_rows(rows[:1]))
    with pytest.raises(LutCorrupt, match=r"chains\.csv"):
        read_lut(made.path)


def test_a_probe_stands_for_neighbours_on_chip() -> None:
    """The single layer of a key that is known without neighbours on chip stands for a layer between such, as scaled."""
    entries, rows = known([(name, 8e-5, 0, 0) for name in "bcdef"] + [("a", 9e-4, 10**7, 0)])
    probes = [entry(name, latency_s=1e-4, remainder_s=1e-4) for name in "abcdef"]
    neighbourhoods = Neighbourhoods([*entries, *probes], rows)
    inside, nearly, apart = (neighbourhoods.find(key("a"), read, 0) for read in (0, 1000, 10**7))
    assert inside is not None
    assert nearly is not None
    assert apart is not None
    assert inside.latency_s == nearly.latency_s == pytest.approx(8e-5)
    assert inside.weights == {len(entries): 1.0}
    assert apart.latency_s == pytest.approx(9e-4)
    between = neighbourhoods.find(key("b"), 0, 0)
    assert between is not None
    assert between.latency_s == pytest.approx(8e-5)
    assert between.weights == {0: 1.0}
