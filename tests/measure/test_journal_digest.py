"""A journal that was altered on disk is noticed, whatever was altered; what harness writes itself is intact."""

import contextlib
import dataclasses
import itertools
import json
import random
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from altered_journals import DAMAGES, contents, cover, damaged, edit_at_random, editing
from command_line import Harness

from harness.errors import ExtractRefused, JournalError, LeaseLost
from harness.measure.journal.journal import Journal
from harness.measure.journal.merge import merge
from harness.measure.journal.records import CampaignKey, Slot
from harness.measure.journal.transfer import extract
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.batches import Batch
from harness.probe.chain_plan import ChainProbes
from harness.probe.probe import reference_probe
from harness.probe.probe_plan import ProbePlan
from harness.samples import Sample


def _plan() -> ProbePlan:
    reference = reference_probe()
    probes = {name: dataclasses.replace(reference, id=name) for name in ("p", "q")}
    return ProbePlan(probes, (), (Batch(("p", "q")),), "p", (), AuxiliaryKind.AVGPOOL)


def _measure(path: Path, job: str = "night", seed: int = 0) -> int:
    """A complete campaign of some rounds, with everything that a campaign writes."""
    plan, chance = _plan(), random.Random(seed)
    with Journal(path) as journal:
        campaign = journal.begin(CampaignKey("d", plan.id, {"job": job}, {"f": "1"}), plan, "cpu", 5).id
        for number in range(4):
            taken = [
                (Slot(0, number, at), probe, [Sample(chance.randint(1000, 9000), 7, None, 0) for _ in range(3)])
                for at, probe in enumerate(plan.probes)
            ]
            journal.add(campaign, 5, taken, {"load": 0.25 * number})
            journal.finish_round(campaign, 5, 0, number + 1)
        journal.refuse(campaign, 5, "q", "too large")
        journal.count_death(campaign, 5, "p")
        journal.spend(campaign, 5, 0.5)
        journal.complete(campaign, 5)
    return campaign


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A journal with two complete campaigns, numbers 1 and 2."""
    path = tmp_path_factory.mktemp("measured") / "journal.sqlite"
    assert _measure(path) == 1
    _measure(path, "another night", seed=1)
    return path.read_bytes()


@pytest.fixture
def path(tmp_path: Path, measured: bytes) -> Path:
    """A copy of that journal in a workspace."""
    path = tmp_path / ".harness" / "journal.sqlite"
    path.parent.mkdir()
    path.write_bytes(measured)
    return path


def _checked(path: Path) -> dict[int, str]:
    with Journal(path) as journal:
        return dict(journal.check_all())


def test_what_harness_writes_is_intact(path: Path) -> None:
    """Campaigns are intact after every kind of write, in a journal that two of them share."""
    assert _checked(path) == {1: "intact", 2: "intact"}
    with Journal(path) as journal:
        journal.exclude(1, 5, "hot")
        journal.exclude(1, 6, None)
    assert _checked(path) == {1: "intact", 2: "intact"}


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE samples SET wall_ns=wall_ns+1 WHERE series=1 AND ordinal=0",
        "UPDATE samples SET device_ns=0 WHERE series=1 AND ordinal=0",
        "DELETE FROM samples WHERE series=2 AND ordinal=2",
        "DELETE FROM samples WHERE series=2",
        "UPDATE series SET probe='q' WHERE id=1",
        "UPDATE series SET round=9 WHERE id=1",
        "UPDATE series SET state='{}' WHERE id=3",
        "UPDATE series SET campaign=2, round=77 WHERE id=1",
        "UPDATE samples SET series=(CASE series WHEN 1 THEN 2 ELSE 1 END) + 100 WHERE series IN (1, 2)",
        "UPDATE campaigns SET clock='wall' WHERE id=1",
        "UPDATE campaigns SET fingerprint='{}' WHERE id=1",
        "UPDATE campaigns SET excluded='hot' WHERE id=1",
        "UPDATE campaigns SET complete=0 WHERE id=1",
        "UPDATE probes SET refused=NULL WHERE campaign=1",
        "UPDATE probes SET visits='warm' WHERE campaign=1 AND probe='p'",
        "DELETE FROM probes WHERE campaign=1 AND probe='q'",
        "UPDATE rounds SET finished=3 WHERE campaign=1",
        "INSERT INTO chains VALUES (1, 0, '{}')",
        "UPDATE digests SET series=plan WHERE campaign=1",
        "DELETE FROM digests WHERE campaign=1",
        "UPDATE digests SET plan='', state='', series='' WHERE campaign=1",
        "UPDATE blocks SET first=first+1 WHERE campaign=1 AND first=3",
        "UPDATE blocks SET last=last+2 WHERE campaign=1 AND first=3",
        "DELETE FROM blocks WHERE campaign=1 AND first=7",
        "INSERT INTO series SELECT 100, campaign, probe, batch, 90, 0, token, taken, state FROM series WHERE id=1",
        "UPDATE series SET probe=CAST(probe AS BLOB) WHERE id=1",
        "UPDATE series SET state=CAST(x'ff' AS TEXT) WHERE id=1",
        "UPDATE samples SET preemptions='zero' WHERE series=1",
        "DELETE FROM campaigns WHERE id=1",
    ],
)
def test_an_altered_campaign_is_noticed(path: Path, statement: str) -> None:
    """One changed, moved, added or missing value in any table makes the campaign altered."""
    with editing(path) as db:
        assert db.execute(statement).rowcount > 0
    assert _checked(path)[1] == "altered"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE samples SET wall_ns=wall_ns+1 WHERE series=1 AND ordinal=0",
        "UPDATE probes SET refused=NULL WHERE campaign=1",
        "UPDATE rounds SET finished=3 WHERE campaign=1",
        "INSERT INTO series SELECT 100, campaign, probe, batch, 90, 0, token, taken, state FROM series WHERE id=1",
    ],
)
def test_later_writes_do_not_cover_what_was_altered(path: Path, statement: str) -> None:
    """A campaign whose samples or state were altered stays altered when it goes on, and others are not affected."""
    with editing(path) as db:
        db.execute(statement)
    with Journal(path) as journal:
        journal.add(1, 5, [(Slot(0, 50, 0), "p", [Sample(5, 5, None, 0)])], {})
        journal.finish_round(1, 5, 0, 6)
        journal.exclude(1, 5, None)
    assert _checked(path) == {1: "altered", 2: "intact"}


@pytest.mark.parametrize("read", [Journal.samples, lambda journal, one: journal.samples_of(one, "p")])
def test_samples_that_were_altered_are_not_handed_out(path: Path, read: Callable[[Journal, int], object]) -> None:
    """Whoever reads the samples of an altered campaign gets an error that names it; others can be read."""
    with editing(path) as db:
        db.execute("UPDATE samples SET wall_ns=wall_ns+1 WHERE series=1 AND ordinal=0")
    with Journal(path) as journal:
        assert read(journal, 2)
        with pytest.raises(JournalError, match="altered on disk: campaign 1") as refused:
            read(journal, 1)
        assert "--exclude" in refused.value.next_step


def test_a_campaign_is_intact_while_another_process_writes_it(path: Path) -> None:
    """A check reads one state of the journal, so that it never takes half of a commit for an alteration."""
    ended = threading.Event()

    def write() -> None:
        with Journal(path) as journal:
            for number in itertools.count(100):
                journal.add(1, 5, [(Slot(0, number, at), "p", [Sample(5, 5, None, 0)]) for at in range(20)], {})
                if ended.wait(0.002):
                    return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with Journal(path) as journal:
            assert {journal.check(1) for _ in range(100)} == {"intact"}
    finally:
        ended.set()
        writer.join()


def test_damaged_files_are_refused_or_noticed(path: Path, tmp_path: Path) -> None:
    """Of files with damage of eight kinds, and of edited ones, none has other contents without being noticed."""
    earlier, chance = path.read_bytes(), random.Random(15)
    _measure(path, "a third night", seed=2)
    good, whole = path.read_bytes(), contents(path)
    changed, outcomes = tmp_path / "changed.sqlite", Counter[str]()
    for kind in (*DAMAGES, "edited") * 12:
        for beside in tmp_path.glob("changed.sqlite-*"):
            beside.unlink()
        changed.write_bytes(good if kind == "edited" else damaged(good, earlier, kind, chance))
        with editing(changed) if kind == "edited" else contextlib.nullcontext() as db:
            done = edit_at_random(db, chance) if db else ""
        try:
            found = "altered" if "altered" in _checked(changed).values() else "as before"
        except JournalError:
            found = "refused"
        assert found != "as before" or contents(changed) == whole, (kind, done)
        outcomes[found] += 1
    assert min(outcomes["altered"], outcomes["refused"], outcomes["as before"]) >= 5, outcomes


def test_a_lost_campaign_is_noticed_and_its_number_stays_free(path: Path) -> None:
    """A campaign of which only the digest is left is altered until it is given up; a new one does not get its rest."""
    with editing(path) as db:
        db.execute("DELETE FROM campaigns WHERE id=2")
    assert _checked(path) == {1: "intact", 2: "altered"}
    assert _measure(path, "another night") == 3
    with Journal(path) as journal:
        assert journal.lost() == (2,)
        journal.hold_back([2])
    assert _checked(path) == {1: "intact", 3: "intact"}
    assert _measure(path, "a third night") == 4


def test_an_unreadable_campaign_does_not_close_the_journal(path: Path) -> None:
    """A row that nobody wrote is named as altered; once held back, the other campaigns are read."""
    with editing(path) as db:
        db.execute("UPDATE campaigns SET clock='sundial' WHERE id=1")
    with Journal(path) as journal:
        with pytest.raises(JournalError, match="altered on disk: campaign 1"):
            journal.campaigns("d")
        journal.hold_back([1, 2])
        assert [(one.id, one.excluded) for one in journal.campaigns("d")] == [(2, None)]
        assert journal.check_all() == {1: "altered", 2: "intact"}


def test_merged_campaigns_are_covered(path: Path, tmp_path: Path) -> None:
    """A campaign that arrives from another host is intact here, also when it arrives in two parts."""
    ours = tmp_path / "ours.sqlite"
    content = extract(path, "night")
    with Journal(path) as journal:
        journal.add(1, 5, [(Slot(0, 50, 0), "p", [Sample(5, 5, None, 0)])], {})
    for part in (content, extract(path, "night"), content):
        with Journal(ours) as journal:
            merge(journal, part, job="night", device="d")
        assert _checked(ours) == {1: "intact"}


def test_large_merges_are_several_blocks(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More series than a block holds are covered, too."""
    monkeypatch.setattr("harness.measure.journal.digest.MAX_BLOCK", 3)
    with Journal(tmp_path / "ours.sqlite") as journal:
        merge(journal, extract(path, "night"), job="night", device="d")
    assert _checked(tmp_path / "ours.sqlite") == {1: "intact"}
    with editing(tmp_path / "ours.sqlite") as db:
        assert db.execute("SELECT first, last FROM blocks").fetchall() == [(1, 3), (4, 6), (7, 8)]
        db.execute("UPDATE samples SET wall_ns=wall_ns+1 WHERE series=4 AND ordinal=0")
    assert _checked(tmp_path / "ours.sqlite") == {1: "altered"}


def test_altered_campaigns_are_not_sent(path: Path) -> None:
    """An extract holds no altered campaign: it is an error, or left out if it is excluded."""
    with editing(path) as db:
        db.execute("UPDATE samples SET wall_ns=wall_ns+1 WHERE series=1 AND ordinal=0")
    with pytest.raises(JournalError, match="altered on disk: campaign 1"):
        extract(path, "night")
    assert extract(path, "another night")
    with Journal(path) as journal:
        journal.hold_back([1])
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.deserialize(extract(path, "night"))
        assert db.execute("SELECT count(*) FROM campaigns WHERE id=1").fetchone() == (0,)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE samples SET wall_ns=wall_ns+1 WHERE series=1 AND ordinal=0",
        "DELETE FROM samples WHERE series=2",
        "UPDATE campaigns SET excluded='hot'",
        "DELETE FROM digests",
        "UPDATE blocks SET last=last+1 WHERE first=1",
    ],
)
def test_extracts_that_were_altered_are_refused(path: Path, tmp_path: Path, statement: str) -> None:
    """An extract that is not what its digest covers is refused as a whole."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.deserialize(extract(path, "night"))
        assert db.execute(statement).rowcount > 0
        content = db.serialize()
    with Journal(tmp_path / "ours.sqlite") as journal:
        with pytest.raises(ExtractRefused, match="is not what was measured there"):
            merge(journal, content, job="night", device="d")
        assert journal.numbers() == ()


def _plan_chain(db: sqlite3.Connection, **changed: object) -> None:
    chain = ChainProbes((("0" * 16, "x"),), "n", "p", "", "", "", agrees=True, check="p")
    db.execute("INSERT INTO chains VALUES (1, 0, ?)", (json.dumps({**dataclasses.asdict(chain), **changed}),))


@pytest.mark.parametrize(
    "changed",
    [*({"checked": length} for length in (-1, 0, 1, True, 2, 9, 10**9)), {"wider": [1, 0]}],
)
def test_windows_of_other_lengths_than_plans_have_are_altered(path: Path, changed: dict[str, object]) -> None:
    """A window of chains with a length that no plan has makes a campaign altered, whatever its digest says."""
    with editing(path) as db:
        _plan_chain(db, **changed)
        cover(db)
    with Journal(path) as journal:
        with pytest.raises(JournalError, match="altered on disk: campaign 1"):
            journal.chains(1)
        assert journal.check_all() == {1: "altered", 2: "intact"}


@pytest.mark.parametrize("changed", [{}, {"checked": 3}, {"checked": 8}])
def test_windows_of_plans_are_read(path: Path, changed: dict[str, object]) -> None:
    """A window of chains with any length that a plan may have is read."""
    with editing(path) as db:
        _plan_chain(db, **changed)
        cover(db)
    with Journal(path) as journal:
        assert journal.check(1) == "intact" and len(journal.chains(1)) == 1


def test_exclusion_is_fenced(path: Path) -> None:
    """A controller whose lease is over does not exclude what its successor measures."""
    with Journal(path) as journal:
        journal.add(1, 9, [(Slot(0, 60, 0), "p", [Sample(5, 5, None, 0)])], {})
        with pytest.raises(LeaseLost):
            journal.exclude(1, 5, "hot")
        assert journal.campaign(1).excluded is None
        journal.exclude(1, journal.campaign(1).token, "hot")
        assert journal.campaign(1).excluded == "hot"


def test_command_names_what_was_altered(path: Path) -> None:
    """`journal check` ends with exit 3 and names the campaign; with --exclude it keeps it out of tables."""
    harness = Harness(path.parent.parent, path.parent, path.parent)
    assert "2 campaigns intact, 0 altered" in harness("journal", "check").assert_ok().stdout
    with editing(path) as db:
        db.execute("UPDATE samples SET wall_ns=wall_ns+1 WHERE series=1 AND ordinal=0")
    failed = harness("journal", "check")
    assert failed.code == 3
    assert "altered on disk: campaign 1" in failed.stderr and "1 campaign intact, 1 altered" in failed.stdout
    assert "move" not in failed.stderr.lower()
    assert "altered" in harness("journal", "check", "--json").stdout
    assert "Excluded from tables: campaign 1" in harness("journal", "check", "--exclude").assert_ok().stderr
    with Journal(path) as journal:
        assert [one.excluded for one in journal.campaigns("d")] == ["altered on disk", None]
