"""A journal that was altered on disk is noticed, whatever was altered; what harness writes itself is intact."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Harness

from harness.errors import JournalError, LeaseLost
from harness.measure.journal import Journal
from harness.measure.journal_records import CampaignKey, Slot
from harness.measure.journal_transfer import extract
from harness.measure.merge import merge
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.batches import Batch
from harness.probe.probe import reference_probe
from harness.probe.probe_plan import ProbePlan
from harness.samples import Sample

TABLES = ("campaigns", "probes", "layers", "chains", "rounds", "series", "samples", "digests")


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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal with one complete campaign, number 1, and its second one."""
    path = tmp_path / ".harness" / "journal.sqlite"
    assert _measure(path) == 1
    _measure(path, "another night", seed=1)
    return path


@contextlib.contextmanager
def _database(path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        yield db


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
        "DELETE FROM campaigns WHERE id=1",
    ],
)
def test_an_altered_campaign_is_noticed(path: Path, statement: str) -> None:
    """One changed, moved, added or missing value in any table makes the campaign altered."""
    with _database(path) as db:
        db.execute("PRAGMA foreign_keys=OFF")
        assert db.execute(statement).rowcount > 0
    assert _checked(path)[1] == "altered"


def test_later_writes_do_not_cover_what_was_altered(path: Path) -> None:
    """A campaign whose samples were altered stays altered when it goes on."""
    with _database(path) as db:
        db.execute("UPDATE samples SET wall_ns=wall_ns+1 WHERE series=1 AND ordinal=0")
    with Journal(path) as journal:
        journal.add(1, 5, [(Slot(0, 50, 0), "p", [Sample(5, 5, None, 0)])], {})
        journal.exclude(1, 5, None)
    assert _checked(path) == {1: "altered", 2: "intact"}


def test_mutated_files_are_refused_or_noticed(path: Path, tmp_path: Path) -> None:
    """Of 400 files with one changed byte, none opens with other contents without being noticed."""
    with _database(path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    good, chance = path.read_bytes(), random.Random(15)
    whole = _contents(path)
    outcomes = {"as before": 0, "refused": 0, "altered": 0}
    for number in range(400):
        bad = bytearray(good)
        bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
        changed = tmp_path / f"{number}.sqlite"
        changed.write_bytes(bad)
        try:
            verdicts = _checked(changed)
            contents = _contents(changed)
        except (JournalError, sqlite3.Error, UnicodeDecodeError):
            outcomes["refused"] += 1
            continue
        if "altered" in verdicts.values():
            outcomes["altered"] += 1
        else:
            assert contents == whole
            outcomes["as before"] += 1
    assert outcomes["altered"] > 10, outcomes


def _contents(path: Path) -> list[object]:
    with _database(path) as db:
        return [db.execute(f"SELECT * FROM {table} NOT INDEXED ORDER BY 1, 2, 3").fetchall() for table in TABLES]


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
    assert "campaign 1  intact" in harness("journal", "check").assert_ok().stdout
    with _database(path) as db:
        db.execute("UPDATE samples SET wall_ns=wall_ns+1 WHERE series=1 AND ordinal=0")
    failed = harness("journal", "check")
    assert failed.code == 3
    assert "altered on disk: campaign 1" in failed.stderr and "campaign 2  intact" in failed.stdout
    assert "move" not in failed.stderr.lower()
    assert "Excluded from tables: campaign 1" in harness("journal", "check", "--exclude").assert_ok().stderr
    with Journal(path) as journal:
        assert [one.excluded for one in journal.campaigns("d")] == ["altered on disk", None]
