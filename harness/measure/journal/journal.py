"""The journal of samples: SQLite with a write-ahead log and synchronous=FULL, so that committed samples survive."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from harness.errors import DeviceBusy, LeaseLost
from harness.measure.journal import digest
from harness.measure.journal.checked_rows import new_number
from harness.measure.journal.reader import ALTERED, JournalReader
from harness.measure.journal.records import PENDING, Campaign, CampaignKey, Slot, compact_json
from harness.measure.journal.sessions_at_work import is_at_work
from harness.probe.probe_plan import ProbePlan
from harness.samples import Sample

_LISTS = ("stacks", "networks")
"""The fields of a layer that are stored as JSON."""
SAME_KEY = "device=? AND plan=? AND settings=? AND fingerprint=?"


class Journal(JournalReader):
    """All campaigns of a workspace; use as a context manager."""

    @contextlib.contextmanager
    def _fenced(self, campaign: int, token: int) -> Iterator[None]:
        """A transaction under the lease `token`; raises LeaseLost if a later lease has written to the campaign."""
        with self.transaction(), digest.renewed(self._db, campaign):
            held = self._db.execute("UPDATE campaigns SET token=? WHERE id=? AND token<=?", (token, campaign, token))
            if held.rowcount != 1:
                why = "Another controller has taken over the device and continues the campaign"
                step = "Let the other controller finish the campaign, or begin another one with --fresh"
                raise LeaseLost("The samples arrived too late", why=why, next_step=step)
            yield

    def begin(self, key: CampaignKey, plan: ProbePlan, clock: str, token: int = 0, shared: bool = False) -> Campaign:
        """Record a campaign with its probes and layers, or return the existing one if the key names a job.

        Raises LeaseLost if a lease later than `token` has written to the existing one, and DeviceBusy if another
        session on a `shared` device works on it.
        """
        with self.transaction():
            found = None
            if key.settings.get("job"):
                held = self._alike(key)
                found = self._claim(held, token, finished=True) if shared else next(iter(held), None)
            number = found.id if found else self._insert(key, plan, clock, token)
        with self._fenced(number, token):
            return self.campaign(number)

    def _insert(self, key: CampaignKey, plan: ProbePlan, clock: str, token: int) -> int:
        visits = {probe: batch.visits for batch in reversed(plan.batches) for probe in batch.probes}
        created = datetime.now(UTC).isoformat(timespec="milliseconds")
        rules = compact_json([asdict(rule) for rule in plan.rules])
        seed = int(key.settings.get("seed", 0))
        campaign = new_number(self._db)
        self._db.execute(
            "INSERT INTO campaigns (id, device, plan, settings, fingerprint, seed, clock, auxiliary, reference, rules,"
            " created, token) VALUES (?,?,?,?,?,?,?,?,?,?,?,?)",
            (campaign, *key.row, seed, clock, plan.auxiliary, plan.reference, rules, created, token),
        )
        probes = (
            (one.id, one.role, one.label, one.auxiliary, compact_json(asdict(one.terms)), visits.get(one.id, "cold"))
            for one in plan.probes.values()
        )
        layers = (
            {**asdict(one), **{name: compact_json(getattr(one, name)) for name in _LISTS}, "key": one.key.text}.values()
            for one in plan.layers
        )
        chains = ((number, compact_json(asdict(chain))) for number, chain in enumerate(plan.chains))
        columns = "(campaign, probe, role, label, auxiliary, terms, visits)"
        self._insert_rows(f"probes {columns}", campaign, probes)
        self._insert_rows("layers", campaign, layers)
        self._insert_rows("chains", campaign, chains)
        digest.begin(self._db, campaign)
        return campaign

    def _insert_rows(self, table: str, campaign: int, rows: Iterable[Iterable[Any]]) -> None:
        owned = [(campaign, *row) for row in rows]
        if owned:
            marks = ",".join("?" * len(owned[0]))
            self._db.executemany(f"INSERT INTO {table} VALUES ({marks})", owned)  # noqa: S608 - our own names

    def resumable(self, key: CampaignKey, shared_by: int = 0) -> Campaign | None:
        """Return the newest campaign with this key that is not finished, or that waits for its golden probe.

        `shared_by` is the token of a session whose device others also use: campaigns that they work on are passed
        over, and the one returned is this session's until its end.
        """
        with self._choosing(shared_by):
            held = self._campaigns(f"{SAME_KEY} AND (excluded=? OR settled=0 AND excluded IS NULL)", *key.row, PENDING)
            newest_first = sorted(held, key=lambda campaign: -campaign.id)
            return self._claim(newest_first, shared_by) if shared_by else next(iter(newest_first), None)

    def newest(self, key: CampaignKey, shared_by: int = 0, *, finished: bool = False) -> Campaign | None:
        """Return the newest campaign with this key, complete or not, unless it was excluded.

        `shared_by` is as in `resumable`. With `finished`, a complete campaign is returned whoever measured it; the
        caller must not write to it. Raises DeviceBusy if another session works on the job that the key names.
        """
        with self._choosing(shared_by):
            held = self._alike(key)
            return self._claim(held, shared_by, finished=finished) if shared_by else next(iter(held), None)

    def _alike(self, key: CampaignKey) -> tuple[Campaign, ...]:
        """All campaigns with this key that are not excluded, newest first."""
        return self._campaigns(f"{SAME_KEY} AND (excluded=? OR excluded IS NULL)", *key.row, PENDING)[::-1]

    def _choosing(self, shared_by: int) -> contextlib.AbstractContextManager[object]:
        """A transaction if the choice of a campaign is recorded, so that no two sessions choose the same."""
        return self.transaction() if shared_by else contextlib.nullcontext()

    def _claim(self, found: Iterable[Campaign], token: int, *, finished: bool = False) -> Campaign | None:
        """Give the session `token` the first campaign that no other session works on; needs a transaction."""
        for one in found:
            (holder,) = self._db.execute("SELECT token FROM campaigns WHERE id=?", (one.id,)).fetchone()
            if holder == token or not is_at_work(self.path, one.device, holder):
                with digest.renewed(self._db, one.id):
                    self._db.execute("UPDATE campaigns SET token=max(token, ?) WHERE id=?", (token, one.id))
                return one
            if finished and one.is_usable:
                return one
            if one.job:
                what = f"{one.device} is in use: another command measures the job {one.job}"
                raise DeviceBusy(what, next_step="Wait until it ends")
        return None

    def exclude(self, campaign: int, token: int, reason: str | None) -> None:
        """Keep a campaign out of tables and comparisons, or readmit it for None; raises as `add` does.

        Without a lease, `token` is the `Campaign.token` that the decision was based on.
        """
        with self._fenced(campaign, token):
            self._db.execute("UPDATE campaigns SET excluded=? WHERE id=?", (reason, campaign))

    def hold_back(self, campaigns: Iterable[int]) -> None:
        """Keep campaigns that were altered on disk out of tables and comparisons, and forget those that are lost.

        Intact ones stay as they are.
        """
        with self.transaction():
            for campaign in campaigns:
                if self.check(campaign) == "altered":
                    self._db.execute("UPDATE campaigns SET excluded=? WHERE id=?", (ALTERED, campaign))
            for campaign in self.lost():
                digest.forget(self._db, campaign)

    def refuse(self, campaign: int, token: int, probe: str, reason: str) -> None:
        """Record that the device refuses a probe; raises as `add` does."""
        with self._fenced(campaign, token):
            self._db.execute("UPDATE probes SET refused=? WHERE campaign=? AND probe=?", (reason, campaign, probe))

    def count_death(self, campaign: int, token: int, probe: str) -> int:
        """Record that the worker died while loading a probe, and return how often it has; raises as `add` does."""
        with self._fenced(campaign, token):
            row = self._db.execute(
                "UPDATE probes SET deaths=deaths+1 WHERE campaign=? AND probe=? RETURNING deaths", (campaign, probe)
            ).fetchone()
        return int(row[0])

    def add(
        self,
        campaign: int,
        token: int,
        taken: Sequence[tuple[Slot, str, Sequence[Sample]]],
        state: Mapping[str, float],
    ) -> None:
        """Commit series of samples, each with its slot and probe, in one transaction.

        Raises LeaseLost if a lease later than `token` has written to the campaign, and JournalError if a slot
        already has a series.
        """
        now, text = datetime.now(UTC).isoformat(timespec="milliseconds"), compact_json(state)
        with self._fenced(campaign, token):
            (last,) = self._db.execute("SELECT coalesce(max(id), 0) FROM series").fetchone()
            numbered = list(enumerate(taken, last + 1))
            self._db.executemany(
                "INSERT INTO series VALUES (?,?,?,?,?,?,?,?,?)",
                (
                    (number, campaign, probe, slot.batch, slot.round, slot.position, token, now, text)
                    for number, (slot, probe, _) in numbered
                ),
            )
            self._db.executemany(
                "INSERT INTO samples VALUES (?,?,?,?,?,?)",
                (
                    (number, ordinal, one.wall_ns, one.cpu_ns, one.device_ns, one.preemptions)
                    for number, (_, _, samples) in numbered
                    for ordinal, one in enumerate(samples)
                ),
            )

    def finish_round(self, campaign: int, token: int, batch: int, finished: int) -> None:
        """Record how many whole rounds a batch has; raises as `add` does."""
        with self._fenced(campaign, token):
            self._db.execute("INSERT OR REPLACE INTO rounds VALUES (?,?,?)", (campaign, batch, finished))

    def spend(self, campaign: int, token: int, seconds: float) -> None:
        """Add device time of untimed runs, which no sample holds; raises as `add` does."""
        with self._fenced(campaign, token):
            self._db.execute("UPDATE campaigns SET untimed_s=untimed_s+? WHERE id=?", (seconds, campaign))

    def complete(self, campaign: int, token: int, settled: bool = True, excluded: str | None = None) -> None:
        """Mark a campaign as complete; one that the budget cut short is not `settled` and can be continued.

        `excluded` gives the reason if its result must not be used yet. Raises as `add` does.
        """
        with self._fenced(campaign, token):
            self._db.execute(
                "UPDATE campaigns SET complete=1, settled=?, excluded=? WHERE id=?", (settled, excluded, campaign)
            )
