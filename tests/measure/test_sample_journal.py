"""The journal: a sample is committed as a whole or not at all, whatever ends the writer."""

import contextlib
import dataclasses
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from altered_journals import cover, editing

from harness.errors import JournalError
from harness.measure.journal.journal import Journal
from harness.measure.journal.records import Campaign, CampaignKey, Slot
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.batches import Batch
from harness.probe.probe import reference_probe
from harness.probe.probe_plan import ProbePlan
from harness.samples import Sample

FRAME, RUNS = 7, 5
EMPTY = ProbePlan({}, (), (Batch(()),), "r", (), AuxiliaryKind.AVGPOOL)
# Frames of seven series with five samples each, and a campaign of twenty probes every third frame; says what returned.
WRITER = f"""
import dataclasses, itertools, sys
from pathlib import Path
from harness.samples import Sample
from harness.measure.journal.journal import Journal
from harness.measure.journal.records import CampaignKey, Slot
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.batches import Batch
from harness.probe.probe_plan import ProbePlan
from harness.probe.probe import reference_probe
reference = reference_probe()
probes = {{f"p{{n}}": dataclasses.replace(reference, id=f"p{{n}}") for n in range(20)}}
plan = ProbePlan(probes, (), (Batch(()),), "r", (), AuxiliaryKind.AVGPOOL)
print("ready", flush=True)
with Journal(Path(sys.argv[1])) as journal:
    for number in itertools.count():
        if number % 3 == 0:
            campaign = journal.begin(CampaignKey("d", plan.id, {{}}, {{}}), plan, "device").id
        series = [(Slot(0, number, at), "p0", [Sample(9, None, 8, 0)] * {RUNS}) for at in range({FRAME})]
        journal.add(campaign, 1, series, {{"load": 0.5}})
        print(campaign, number, flush=True)
"""
# Fills the disk; with "limit" as second argument by a limit on the size of files, which it lifts afterwards.
FILLER = """
import itertools, resource, sys
from pathlib import Path
from harness.samples import Sample
from harness.errors import JournalError
from harness.measure.journal.journal import Journal
from harness.measure.journal.records import CampaignKey, Slot
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.batches import Batch
from harness.probe.probe_plan import ProbePlan
def add(number):
    journal.add(campaign, 1, [(Slot(0, number, at), "p", [Sample(1, 2, 3, 0)] * 50) for at in range(10)], {})
with Journal(Path(sys.argv[1])) as journal:
    plan = ProbePlan({}, (), (Batch(()),), "r", (), AuxiliaryKind.AVGPOOL)
    campaign = journal.begin(CampaignKey("d", plan.id, {}, {}), plan, "device").id
    if sys.argv[2] == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
    try:
        for number in itertools.count():
            add(number)
    except JournalError as error:
        print(number, error.why, sep="|")
    if sys.argv[2] == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        add(number)
    print(len(journal.samples(campaign)["p"]))
"""


def begin(journal: Journal, plan: ProbePlan = EMPTY, **changed: object) -> Campaign:
    """A campaign; keywords replace parts of its key."""
    return journal.begin(dataclasses.replace(key_of(plan), **changed), plan, "cpu")  # type: ignore[arg-type]


def key_of(plan: ProbePlan = EMPTY) -> CampaignKey:
    """The key of a campaign of the plan."""
    return CampaignKey("d", plan.id, {"a": 1}, {"f": "1"})


def series(journal: Journal, campaign: int, *slots: Slot, runs: int = 2) -> None:
    """Adds one frame with a series in each slot."""
    journal.add(campaign, 1, [(slot, "p", [Sample(9, 7, None, 0)] * runs) for slot in slots], {"load": 1.0})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a journal whose folder does not exist yet."""
    return tmp_path / "deep" / "journal.sqlite"


def test_samples_come_back_as_they_were_taken(path: Path) -> None:
    """Every field of every sample survives, by probe, batch and in order, preempted ones included."""
    first, second = [Sample(9, 7, None, 0), Sample(8, None, 2**62, 12)], [Sample(1, None, 1, 0)]
    with Journal(path) as journal:
        campaign = begin(journal).id
        journal.add(campaign, 1, [(Slot(0, 0, 0), "p", first), (Slot(0, 0, 1), "q", second)], {"load": 0.25})
        journal.add(campaign, 1, [(Slot(1, 0, 0), "p", second)], {})
    with Journal(path) as journal:
        assert journal.samples(campaign) == {"p": [*first, *second], "q": second}
        assert journal.samples(campaign, 0) == {"p": first, "q": second}
        assert journal.slots(campaign, 0, 0) == {Slot(0, 0, 0), Slot(0, 0, 1)}


def test_a_campaign_comes_back_with_its_plan(path: Path) -> None:
    """Probes with role and terms, settings, fingerprint and the marks of progress survive."""
    probe = reference_probe()
    plan = ProbePlan({probe.id: probe}, (), (Batch((probe.id,), "warm"),), probe.id, (), AuxiliaryKind.AVGPOOL)
    with Journal(path) as journal:
        campaign = begin(journal, plan, settings={"b": [1, None], "a": 0.5})
        journal.refuse(campaign.id, 1, probe.id, "unknown operator")
        journal.finish_round(campaign.id, 1, 3, 1)
        journal.finish_round(campaign.id, 1, 3, 2)
        journal.spend(campaign.id, 1, 0.25)
        journal.spend(campaign.id, 1, 0.5)
        journal.complete(campaign.id, 1)
    with Journal(path) as journal:
        assert journal.campaigns("d") == (dataclasses.replace(campaign, complete=True),)
        assert campaign.settings == {"b": [1, None], "a": 0.5}
        record = journal.probes(campaign.id)[probe.id]
        assert (record.role, record.terms, record.refused) == ("reference", probe.terms, "unknown operator")
        assert record.visits == "warm"
        assert [journal.rounds(campaign.id, batch) for batch in (2, 3)] == [0, 2]
        assert journal.spent_s(campaign.id) == 0.75


def test_a_journal_without_a_term_is_damaged(path: Path) -> None:
    """A probe whose terms lack one is refused: a missing amount would count as zero."""
    plan = ProbePlan({"p": reference_probe()}, (), (Batch(("p",)),), "p", (), AuxiliaryKind.AVGPOOL)
    with Journal(path) as journal:
        campaign = begin(journal, plan).id
    with editing(path) as db:
        db.execute("UPDATE probes SET terms=json_remove(terms, '$.input_pairs')")
        cover(db)
    with Journal(path) as journal, pytest.raises(JournalError, match="altered"):
        journal.probes(campaign)


def test_a_slot_cannot_be_taken_twice(path: Path) -> None:
    """A series for a taken slot is refused with its whole frame, not as by a full disk; the first one stays."""
    with Journal(path) as journal:
        campaign = begin(journal).id
        series(journal, campaign, Slot(0, 0, 0))
        with pytest.raises(JournalError) as refused:
            series(journal, campaign, Slot(0, 0, 1), Slot(0, 0, 0), runs=3)
        assert "space" not in refused.value.next_step
        assert journal.slots(campaign, 0, 0) == {Slot(0, 0, 0)}
        assert len(journal.samples(campaign)["p"]) == 2
        series(journal, begin(journal).id, Slot(0, 0, 0))


def test_resumable_finds_the_same_job_and_no_other(path: Path) -> None:
    """Only an unfinished campaign of the same device, plan, settings and fingerprint is resumed, the newest of them."""
    other = ProbePlan({}, (), (Batch(("q",)),), "r", (), AuxiliaryKind.AVGPOOL)
    key = dataclasses.replace(key_of(), fingerprint={"f": "1", "g": "2"})
    others = {"device": "e", "plan": other.id, "settings": {"a": 2}, "fingerprint": {"f": "1", "g": "3"}}
    with Journal(path) as journal:
        begin(journal, fingerprint={"g": "2", "f": "1"})
        newest = begin(journal, fingerprint={"f": "1", "g": "2"})
        done = begin(journal, fingerprint={"f": "1", "g": "2"})
        journal.complete(done.id, 1)
        assert journal.resumable(key) == newest
        for name, value in others.items():
            assert journal.resumable(dataclasses.replace(key, **{name: value})) is None  # type: ignore[arg-type]


def test_an_unknown_campaign_is_an_error(path: Path) -> None:
    """Reading a campaign that does not exist raises an error."""
    with Journal(path) as journal, pytest.raises(JournalError, match="42"):
        journal.campaign(42)


def test_two_writers_share_a_journal(path: Path) -> None:
    """Two open journals take turns; neither loses a frame."""
    with Journal(path) as one, Journal(path) as two:
        first, second = begin(one).id, begin(two).id
        for number in range(20):
            series(one, first, Slot(0, number, 0))
            series(two, second, Slot(0, number, 0))
        assert len(one.samples(second)["p"]) == len(two.samples(first)["p"]) == 40


def test_a_writer_killed_while_it_created_the_journal_leaves_it_usable(tmp_path: Path) -> None:
    """What a process had begun to write, also to the file itself, is undone; the journal is then created anew."""
    begun, path = tmp_path / "begun.sqlite", tmp_path / "journal.sqlite"
    with contextlib.closing(sqlite3.connect(begun, isolation_level=None)) as db:
        db.execute("PRAGMA cache_size=1")  # pages reach the file before the commit
        db.execute("BEGIN")
        db.execute("CREATE TABLE series (content)")
        db.executemany("INSERT INTO series VALUES (?)", [(bytes(5000),)] * 50)
        for end in ("", "-journal"):
            shutil.copy(f"{begun}{end}", f"{path}{end}")
    with Journal(path) as journal:
        assert journal.numbers() == () and begin(journal).id == 1


def test_a_killed_writer_leaves_whole_frames_and_all_acknowledged_ones(tmp_path: Path) -> None:
    """After kill -9 at any moment the file is intact, holds whole frames and campaigns, and all acknowledged ones."""
    draw = random.Random(os.urandom(8))
    path, most = tmp_path / "journal.sqlite", 0
    held: dict[int, set[Slot]] = {}
    for attempt in range(60):
        if held and attempt >= 6:  # a slow disk may keep the first ones from writing anything
            break
        command = [sys.executable, "-c", WRITER, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            time.sleep(draw.uniform(0.0, 0.15))
            os.kill(writer.pid, signal.SIGKILL)
            acknowledged = [tuple(map(int, line.split())) for line in writer.stdout.read().splitlines() if " " in line]
        with Journal(path) as journal:
            rounds = range(most := max(most, len(acknowledged) + 2))
            known = [one.id for one in journal.campaigns("d")]
            held = {one: {slot for round in rounds for slot in journal.slots(one, 0, round)} for one in known}
            for campaign, slots in held.items():
                found = {slot.round for slot in slots}
                assert slots == {Slot(0, round, at) for round in found for at in range(FRAME)}
                assert len(journal.samples(campaign).get("p0", ())) == len(slots) * RUNS
                assert len(journal.probes(campaign)) == 20
        # The last line may have been cut short by the kill; all lines before it are whole.
        assert all(Slot(0, number, 0) in held[campaign] for campaign, number in acknowledged[:-1])
    assert held
    database = sqlite3.connect(path)
    assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    database.close()


def test_a_full_disk_loses_nothing_that_was_committed(tmp_path: Path) -> None:
    """If the file cannot grow, adding raises JournalError and keeps earlier samples; with space again, it continues."""
    path = tmp_path / "journal.sqlite"
    command = [sys.executable, "-c", FILLER, str(path), "limit"]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    written, total = ran.stdout.splitlines()
    frames = int(written.partition("|")[0])
    assert frames > 0
    assert int(total) == (frames + 1) * 500
    with Journal(path) as journal:
        assert len(journal.samples(1)["p"]) == (frames + 1) * 500


def test_a_full_file_system_is_reported(tmp_path: Path) -> None:
    """On a full file system the error names the cause, and committed samples are kept."""
    inner = f'mount -t tmpfs -o size=600k tmpfs "{tmp_path}" && exec "$@"'
    wrapped = ["unshare", "-rm", "sh", "-c", inner, "sh"]
    if shutil.which("unshare") is None or subprocess.run([*wrapped, "true"], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a small tmpfs in a namespace of its own")
    command = [*wrapped, sys.executable, "-c", FILLER, str(tmp_path / "journal.sqlite"), "mount"]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    written, total = ran.stdout.splitlines()
    frames, _, why = written.partition("|")
    assert "full" in why
    assert int(total) == int(frames) * 500 > 0


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """A limit of zero bytes per file stops the journal from being created, with a JournalError."""
    program = (
        "import resource, sys; from pathlib import Path; from harness.measure.journal.journal import Journal;"
        "from harness.errors import JournalError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "try:\n    Journal(Path(sys.argv[1]))\nexcept JournalError as error:\n    print('refused')\n"
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    command = [sys.executable, "-c", program, str(tmp_path / "journal.sqlite")]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "refused\n"


def test_a_new_journal_is_created_once_by_all_who_open_it_at_once(tmp_path: Path) -> None:
    """Six threads that open the same new file at the same moment all get a journal."""
    failed: list[BaseException] = []

    def open_it(path: Path, begin: threading.Barrier) -> None:
        begin.wait()
        try:
            with Journal(path):
                pass
        except BaseException as error:
            failed.append(error)

    for number in range(30):
        begin = threading.Barrier(6)
        arguments = (tmp_path / f"{number}.sqlite", begin)
        threads = [threading.Thread(target=open_it, args=arguments) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed
