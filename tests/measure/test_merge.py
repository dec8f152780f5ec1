"""Merging campaigns from other hosts' journals: every slot once, and nothing but samples."""

import contextlib
import dataclasses
import functools
import itertools
import sqlite3
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from altered_journals import cover
from hypothesis import given, settings, strategies as st

from harness.errors import JournalError
from harness.measure.journal.journal import Journal
from harness.measure.journal.merge import SECOND, held_out, hold_out, merge
from harness.measure.journal.records import PENDING, CampaignKey, Slot
from harness.measure.journal.transfer import MAX_EXTRACT_BYTES, extract
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.batches import Batch
from harness.probe.probe import reference_probe
from harness.probe.probe_plan import ProbePlan
from harness.samples import Sample

JOB, DEVICE = "2026-11-20/board/vision", "board"
PROBES = {name: dataclasses.replace(reference_probe(), id=name) for name in ("p", "q")}
PLAN = ProbePlan(PROBES, (), (Batch(("p", "q")),), "p", (), AuxiliaryKind.AVGPOOL)
PLACES = tuple(Slot(batch, round, at) for batch in range(2) for round in range(2) for at in range(2))
SlotSet = frozenset[Slot]


def write(path: Path, places: Collection[Slot], value: int = 9, job: str = JOB, device: str = DEVICE) -> int:
    """Write a journal with series in these slots; every sample has `value`."""
    with Journal(path) as journal:
        named = {"job": job, "purpose": "profile"} if job else {"purpose": "profile"}
        campaign = journal.begin(CampaignKey(device, PLAN.id, named, {"f": "1"}), PLAN, "device").id
        taken = [(place, "q", [Sample(value, None, 3, 0), Sample(value, 2, 3, 1)]) for place in sorted(places, key=str)]
        journal.add(campaign, 1, taken, {"load": 0.5})
        return campaign


@functools.cache
def whole() -> bytes:
    """Return the extract of a journal with series in all slots."""
    with tempfile.TemporaryDirectory() as folder:
        campaign = write(Path(folder) / "journal.sqlite", PLACES)
        with Journal(Path(folder) / "journal.sqlite") as journal:
            journal.finish_round(campaign, 1, 0, 1)
        return extract(Path(folder) / "journal.sqlite", JOB)


def extract_of(places: Collection[Slot], value: int = 9, **changed: object) -> bytes:
    """Return an extract with series in these slots, `value` in every sample, and a changed campaign."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.deserialize(whole())
        db.execute("UPDATE samples SET wall_ns=?", (value,))
        for column, text in changed.items():
            db.execute(f"UPDATE campaigns SET {column}=?", (text,))
        for place in set(PLACES) - set(places):
            where = "WHERE batch=? AND round=? AND position=?"
            db.execute(f"DELETE FROM samples WHERE series=(SELECT id FROM series {where})", dataclasses.astuple(place))
            db.execute(f"DELETE FROM series {where}", dataclasses.astuple(place))
        cover(db)
        return db.serialize()


def contents(path: Path) -> dict[Slot, list[Any]]:
    """Return the samples of every slot, straight from the file; a slot with two series would show twice as many."""
    found: dict[Slot, list[Any]] = {}
    query = "SELECT batch, round, position, wall_ns FROM series JOIN samples ON series.id=series ORDER BY ordinal"
    with contextlib.closing(sqlite3.connect(path)) as db:
        for batch, round, position, wall_ns in db.execute(query):
            found.setdefault(Slot(batch, round, position), []).append(wall_ns)
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of the journal here."""
    return tmp_path / "ours" / "journal.sqlite"


def test_a_merged_campaign_is_the_one_that_was_extracted(tmp_path: Path, path: Path) -> None:
    """A merged campaign has the same plan, samples and progress as before; only its number differs."""
    theirs = tmp_path / "theirs.sqlite"
    write(theirs, (), job="another")
    campaign = write(theirs, PLACES)
    with Journal(theirs) as journal:
        journal.refuse(campaign, 7, "p", "unknown operator")
        journal.finish_round(campaign, 7, 1, 2)
        journal.spend(campaign, 7, 0.25)
        journal.complete(campaign, 7)
        journal.exclude(campaign, journal.campaign(campaign).token, "too warm")
        with Journal(path) as ours:
            (number,) = (numbers := merge(ours, extract(theirs, JOB), job=JOB, device=DEVICE)).values()
            assert numbers == {campaign: 1}
            for read in (Journal.samples, Journal.probes, Journal.layers, Journal.chains, Journal.spent_s):
                assert read(ours, number) == read(journal, campaign)
            assert dataclasses.replace(ours.campaign(number), id=campaign) == journal.campaign(campaign)
            assert ours.rounds(number, 1) == 2
            assert len(ours.campaigns(DEVICE)) == 1


@given(st.lists(st.tuples(st.frozensets(st.sampled_from(PLACES)), st.integers(1, 3)), min_size=1, max_size=6))
@settings(max_examples=30)
def test_merging_is_a_union_of_slots(parts: list[tuple[SlotSet, int]]) -> None:
    """Parts of a campaign may arrive in any order, any number of times: each slot keeps the first series."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.sqlite"
        expected: dict[Slot, list[int]] = {}
        with Journal(path) as journal:
            numbers = set()
            for places, value in parts:
                numbers.update(merge(journal, extract_of(places, value), job=JOB, device=DEVICE).values())
                expected = {**{place: [value, value] for place in places}, **expected}
            assert len(numbers) == 1
        assert contents(path) == expected


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_marks_of_progress_do_not_depend_on_the_order(path: Path, tmp_path: Path, order: Sequence[int]) -> None:
    """Completion, token and rounds of a merged campaign do not depend on which extract arrives first."""
    extracts = []
    theirs = tmp_path / "theirs.sqlite"
    campaign = write(theirs, ())
    for number in range(3):
        with Journal(theirs) as journal:
            for place in PLACES[2 * number - 2 : 2 * number]:
                journal.add(campaign, 5 + number, [(place, "q", [Sample(9, None, 3, 0)])], {})
            journal.finish_round(campaign, 5 + number, 0, number)
            if number == 1:
                journal.refuse(campaign, 6, "p", "unknown operator")
                journal.complete(campaign, 6, settled=False)
        extracts.append(extract(theirs, JOB))
    with Journal(path) as ours:
        for at in order:
            merge(ours, extracts[at], job=JOB, device=DEVICE)
        assert ours.campaign(1).complete
        assert ours.rounds(1, 0) == 2
        assert ours.probes(1)["p"].refused == "unknown operator"
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT settled, token FROM campaigns").fetchall() == [(0, 7)]


MOMENTS = tuple(f"2026-11-20T20:00:0{second}.000+00:00" for second in range(3))
Standing = dict[str, tuple[int, str | None, SlotSet]]


def standing(path: Path) -> Standing:
    """Return, by the start of each campaign, whether it is complete, why it is excluded, and its slots."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        rows = db.execute("SELECT id, created, complete, excluded FROM campaigns").fetchall()
        return {
            created: (
                complete,
                excluded,
                frozenset(
                    Slot(*row)
                    for row in db.execute("SELECT batch, round, position FROM series WHERE campaign=?", (number,))
                ),
            )
            for number, created, complete, excluded in rows
        }


@given(
    st.lists(
        st.tuples(st.sampled_from(range(3)), st.sampled_from(range(3)), st.frozensets(st.sampled_from(PLACES))),
        min_size=1,
        max_size=5,
    ),
    st.tuples(*[st.sampled_from([None, "too warm"])] * 3),
    st.randoms(use_true_random=False),
)
@settings(max_examples=30)
def test_what_counts_does_not_depend_on_the_order(
    parts: list[tuple[int, int, SlotSet]], fates: tuple[str | None, ...], random: Random
) -> None:
    """Campaigns of several workers in any state may arrive in any order, and twice.

    Each keeps its own series; among the admitted ones only the first counts, and a merge returns its number.
    """
    extracts = []
    for which, stage, places in parts:
        excluded = (None, PENDING, fates[which])[stage]
        extracts.append(extract_of(places, created=MOMENTS[which], complete=int(stage > 0), excluded=excluded))
    found = []
    for _ in range(2):
        random.shuffle(extracts)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "journal.sqlite"
            with Journal(path) as ours:
                for content in extracts:
                    merge(ours, content, job=JOB, device=DEVICE)
                counting = [one for one in ours.campaigns(DEVICE) if one.complete and one.excluded is None]
                named = [merge(ours, content, job=JOB, device=DEVICE) for content in extracts]
                assert counting == [one for one in ours.campaigns(DEVICE) if one.complete and one.excluded is None]
                second = {one.id for one in ours.campaigns(DEVICE) if one.excluded == SECOND}
            found.append(standing(path))
            assert not second & {number for numbers in named for number in numbers.values()}
    assert found[0] == found[1]
    let_in = [MOMENTS[which] for which in range(3) if fates[which] is None and (which, 2) in {one[:2] for one in parts}]
    assert [one.created for one in counting] == sorted(let_in)[:1]
    for which, moment in enumerate(MOMENTS):
        wanted = frozenset[Slot]().union(*(places for at, _, places in parts if at == which))
        assert found[0].get(moment, (0, None, frozenset()))[2] == wanted


def test_a_job_started_anew_is_a_campaign_of_its_own(path: Path) -> None:
    """If a worker excludes a campaign and starts the job anew, both campaigns keep all their series."""
    first = extract_of(PLACES[:4], 9, created=MOMENTS[0], complete=1, excluded="the golden probe changed")
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.deserialize(first)
        with tempfile.TemporaryDirectory() as folder:
            theirs = Path(folder) / "journal.sqlite"
            theirs.write_bytes(db.serialize())
            again = write(theirs, PLACES, 5)
            with Journal(theirs) as journal:
                journal.complete(again, 1)
                assert len(journal.campaigns(DEVICE)) == 2
            content = extract(theirs, JOB)
    with Journal(path) as ours:
        numbers = merge(ours, content, job=JOB, device=DEVICE)
        assert len(set(numbers.values())) == 2
        one, two = (ours.campaign(number) for number in numbers.values())
        assert (one.excluded, two.excluded) == ("the golden probe changed", None)
        assert len(ours.samples(one.id)["q"]) == 2 * 4
        assert {sample.wall_ns for sample in ours.samples(two.id)["q"]} == {5}
        assert len(ours.samples(two.id)["q"]) == 2 * len(PLACES)


def test_a_campaign_is_admitted_once_its_worker_admits_it(path: Path) -> None:
    """If the link was lost before the golden probe, the next attempt admits the campaign here as well."""
    with Journal(path) as ours:
        merge(ours, extract_of(PLACES, complete=1, excluded=PENDING), job=JOB, device=DEVICE)
        assert ours.campaign(1).excluded == PENDING
        merge(ours, extract_of(PLACES, complete=0, excluded=None), job=JOB, device=DEVICE)
        assert ours.campaign(1).excluded == PENDING
        merge(ours, extract_of(PLACES, complete=1, excluded=None), job=JOB, device=DEVICE)
        assert ours.campaign(1).excluded is None
        merge(ours, extract_of(PLACES, complete=1, excluded=PENDING), job=JOB, device=DEVICE)
        assert ours.campaign(1).excluded is None


@pytest.mark.parametrize("sent", [None, PENDING, SECOND, "too warm"])
def test_no_worker_readmits_what_the_controller_excluded(path: Path, sent: str | None) -> None:
    """A campaign that the controller excluded stays excluded for that reason, whatever a worker sends."""
    with Journal(path) as ours:
        merge(ours, extract_of(PLACES, complete=1), job=JOB, device=DEVICE)
        ours.exclude(1, ours.campaign(1).token, "quarantine of the night")
        merge(ours, extract_of(PLACES, complete=1, excluded=sent), job=JOB, device=DEVICE)
        assert ours.campaign(1).excluded == "quarantine of the night"


def test_a_worker_starts_held_out_campaigns_anew(path: Path, tmp_path: Path) -> None:
    """A worker that receives the held-out campaigns measures the job again, and the controller uses the new one."""
    theirs = tmp_path / "theirs.sqlite"
    theirs.write_bytes(extract_of(PLACES, complete=1, created=MOMENTS[0]))
    with Journal(theirs) as journal, Journal(path) as ours:
        (number,) = merge(ours, extract(theirs, JOB), job=JOB, device=DEVICE).values()
        merge(ours, extract_of(PLACES, complete=1, created=MOMENTS[1]), job=JOB, device=DEVICE)  # another worker's
        assert held_out(ours, job=JOB, device=DEVICE) == {}
        ours.exclude(number, ours.campaign(number).token, "quarantine of the night")
        reasons = held_out(ours, job=JOB, device=DEVICE)
        assert reasons == dict.fromkeys(MOMENTS[:2], "quarantine of the night")
        assert held_out(ours, job="another", device=DEVICE) == {}
        hold_out(journal, reasons, job="another", device=DEVICE)
        known, key = journal.campaigns(DEVICE)[0].id, journal.campaigns(DEVICE)[0].key
        assert journal.begin(key, PLAN, "cpu", 1).id == known
        hold_out(journal, reasons, job=JOB, device=DEVICE)
        begun = journal.begin(key, PLAN, "cpu", 1).id
        assert begun != known
        journal.complete(begun, 1)
        again = merge(ours, extract(theirs, JOB), job=JOB, device=DEVICE)
        assert ours.campaign(again[begun]).excluded is None
        assert ours.campaign(again[known]).excluded == "quarantine of the night"


def test_an_extract_holds_nothing_but_the_job(tmp_path: Path) -> None:
    """An extract contains no campaigns of other jobs, and none without a job."""
    theirs = tmp_path / "theirs.sqlite"
    for job in ("", "another", JOB, JOB + "2"):
        write(theirs, PLACES[:1], job=job)
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.deserialize(extract(theirs, JOB))
        assert db.execute("SELECT json_extract(settings, '$.job') FROM campaigns").fetchall() == [(JOB,)]
        assert db.execute("SELECT count(*) FROM series").fetchone() == (1,)
        assert db.execute("SELECT count(*) FROM samples").fetchone() == (2,)
    with Journal(theirs) as journal:
        (known,) = (one.id for one in journal.campaigns(DEVICE) if one.settings.get("job") == JOB)
        journal.exclude(known, journal.campaign(known).token, "too warm")
    again = write(theirs, PLACES[:1], job=JOB)
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.deserialize(extract(theirs, JOB, again))
        assert db.execute("SELECT id FROM campaigns").fetchall() == [(again,)]


def test_an_extract_of_a_journal_that_is_being_written_is_of_one_moment(tmp_path: Path) -> None:
    """An extract contains nothing of a transaction that is not committed."""
    theirs = tmp_path / "theirs.sqlite"
    campaign = write(theirs, PLACES[:2])
    with Journal(theirs) as journal, journal.transaction() as db:
        db.execute("DELETE FROM samples")
        db.execute("UPDATE campaigns SET complete=1 WHERE id=?", (campaign,))
        content = extract(theirs, JOB)
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.deserialize(content)
        assert db.execute("SELECT count(*) FROM samples").fetchone() == (4,)
        assert db.execute("SELECT complete FROM campaigns").fetchone() == (0,)


HOSTILE: dict[str, str] = {
    "another schema": "PRAGMA user_version=99",
    "a trigger": "CREATE TRIGGER t AFTER INSERT ON series BEGIN DELETE FROM samples; END",
    "a view": "CREATE VIEW v AS SELECT * FROM samples",
    "a table more": "CREATE TABLE more (x)",
    "a column more": "ALTER TABLE samples ADD COLUMN more TEXT",
    "a sample of no time": "UPDATE samples SET wall_ns=0",
    "a sample before its beginning": "UPDATE samples SET device_ns=-1",
    "text for a number": "UPDATE samples SET wall_ns='soon'",
    "bytes for text": "UPDATE probes SET label=x'00'",
    "settings that are none": "UPDATE campaigns SET settings='[]'",
    "settings written otherwise": "UPDATE campaigns SET settings=json_insert(settings, '$.a', 1)",
    "another job": "UPDATE campaigns SET settings=json_replace(settings, '$.job', 'x')",
    "another device": "UPDATE campaigns SET device='x'",
    "terms that are none": "UPDATE probes SET terms='{\"a\": 1}'",
    "a state that is none": 'UPDATE series SET state=\'{"a": "b"}\'',
    "a time without end": "UPDATE campaigns SET untimed_s=9e999",
    "samples of no probe": "UPDATE series SET probe='x'",
    "a clock that nobody has": "UPDATE campaigns SET clock='zzz'",
    "a time that is none": "UPDATE campaigns SET created='2026-11-20\x1b20:00:00+00:00'",
    "a series at no time": "UPDATE series SET taken='soon'",
    "a role that no probe has": "UPDATE probes SET role='zzz'",
    "visits that nobody makes": "UPDATE probes SET visits='zzz'",
    "a negative round": "UPDATE rounds SET finished=-1",
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=list(HOSTILE))
@pytest.mark.parametrize("known", [False, True], ids=["new campaign", "known campaign"])
def test_an_invalid_extract_is_refused_as_a_whole(path: Path, change: str, known: bool) -> None:
    """An extract with any invalid content changes nothing in the journal."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.deserialize(whole())
        db.execute(change)
        cover(db)
        content = db.serialize()
    path.parent.mkdir()
    path.write_bytes(extract_of(PLACES[:2]) if known else b"")
    with Journal(path) as ours:
        before = [ours.samples(one.id) for one in ours.campaigns(DEVICE)]
        with pytest.raises(JournalError):
            merge(ours, content, job=JOB, device=DEVICE)
        assert [ours.samples(one.id) for one in ours.campaigns(DEVICE)] == before
        assert len(before) == known


@pytest.mark.parametrize(
    "content",
    [b"", b"SQLite format 3\x00", b"SQLite format 3\x00" + bytes(4096), b"\x80\x04pickle", bytes(100)],
    ids=["empty", "header", "zeros", "pickle", "no header"],
)
def test_bytes_that_are_no_database_are_refused(path: Path, content: bytes) -> None:
    """Bytes that are not a database raise a JournalError and no other error."""
    with Journal(path) as ours, pytest.raises(JournalError):
        merge(ours, content, job=JOB, device=DEVICE)


def test_a_journal_larger_than_the_limit_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal over the limit is refused by its size, before it is read."""
    content = extract_of(PLACES)
    monkeypatch.setattr("harness.measure.journal.transfer.MAX_EXTRACT_BYTES", len(content) - 1)
    assert len(content) < MAX_EXTRACT_BYTES
    with Journal(path) as ours, pytest.raises(JournalError, match="limit"):
        merge(ours, content, job=JOB, device=DEVICE)


DAMAGE = st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=16), st.booleans())


@given(DAMAGE)
def test_a_damaged_extract_is_merged_or_refused(damage: tuple[float, bytes, bool]) -> None:
    """Wherever an extract is damaged, the only error is a JournalError, and our own samples stay."""
    share, new, cut = damage
    at = int(share * len(whole()))
    damaged = whole()[:at] if cut else whole()[:at] + new + whole()[at + len(new) :]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.sqlite"
        path.write_bytes(extract_of(PLACES[:2], 5))
        with Journal(path) as ours:
            with contextlib.suppress(JournalError):
                merge(ours, damaged, job=JOB, device=DEVICE)
            assert ours.samples(1)["q"][:4] == [Sample(5, None, 3, 0), Sample(5, 2, 3, 1)] * 2
