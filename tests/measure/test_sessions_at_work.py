"""Sessions on shared devices: each keeps its campaigns to itself as long as its process lives."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from nullbench import Bench

from harness.errors import DeviceBusy
from harness.measure.journal.journal import Journal
from harness.measure.journal.records import Campaign, CampaignKey
from harness.measure.journal.sessions_at_work import at_work, is_at_work
from harness.probe.probe_plan import ProbePlan

MARK = """
import sys
from pathlib import Path
from harness.measure.journal.sessions_at_work import at_work
with at_work(Path(sys.argv[1]), "d", 7):
    print("here", flush=True)
    sys.stdin.read()
"""
EMPTY = ProbePlan({}, (), (), "reference", (), "avgpool")


def _begin(journal: Journal, token: int, **settings: object) -> Campaign:
    return journal.begin(CampaignKey("d", EMPTY.id, settings, {}), EMPTY, "device", token, shared=True)


def test_a_session_is_at_work_until_its_process_ends(tmp_path: Path) -> None:
    """Another process sees a session until it ends or is killed, and then nothing of it is left."""
    journal = tmp_path / "journal.sqlite"
    for number in (0, signal.SIGKILL):
        process = subprocess.Popen(
            [sys.executable, "-c", MARK, str(journal)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None and process.stdout.readline() == "here\n"
        assert is_at_work(journal, "d", 7) and not is_at_work(journal, "d", 8) and not is_at_work(journal, "e", 7)
        if number:
            process.kill()
        process.communicate()
        assert not is_at_work(journal, "d", 7)
        assert not list((tmp_path / "sessions").iterdir())


def test_a_campaign_belongs_to_one_session_at_a_time(bench: Bench) -> None:
    """An unfinished campaign goes to the first session that asks after its own has ended, and to no second one."""
    path = bench.workspace.journal
    with Journal(path) as journal:
        with at_work(path, "d", 1):
            campaign = _begin(journal, 1)
            for find in (journal.resumable, journal.newest):
                assert find(campaign.key, 1) == campaign
                assert find(campaign.key, 2) is None
        with at_work(path, "d", 2), at_work(path, "d", 3):
            assert journal.resumable(campaign.key, 2) == campaign
            assert journal.resumable(campaign.key, 3) is None and journal.newest(campaign.key, 3) is None
            journal.complete(campaign.id, 2)
            assert journal.newest(campaign.key, 3) is None
            assert journal.newest(campaign.key, 3, finished=True) == journal.campaign(campaign.id)


def test_a_named_job_that_another_session_measures_is_busy(bench: Bench) -> None:
    """A job is one campaign: a second session waits for it rather than measuring it again."""
    path = bench.workspace.journal
    with Journal(path) as journal:
        with at_work(path, "d", 1):
            campaign = _begin(journal, 1, job="night/d/set")
            for ask in (lambda: journal.newest(campaign.key, 2), lambda: _begin(journal, 2, job="night/d/set")):
                with pytest.raises(DeviceBusy, match="night/d/set"):
                    ask()
        assert _begin(journal, 2, job="night/d/set") == campaign
