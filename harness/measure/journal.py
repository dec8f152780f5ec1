"""The journal of samples: SQLite with a write-ahead log and synchronous=FULL, so that committed samples survive."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, get_args

from pydantic import TypeAdapter

from harness.errors import DeviceBusy, JournalError, LeaseLost
from harness.measure import journal_digest
from harness.measure.database import DurableFile
from harness.measure.schema import SCHEMA
from harness.measure.sessions_at_work import is_at_work
from harness.network.fusion_rules import FusionRule
from harness.network.key import LayerKey
from harness.probe.chain_plan import ChainProbes
from harness.probe.overhead_terms import OverheadTerms
from harness.probe.probe import Role
from harness.probe.probe_plan import LayerProbes, ProbePlan
from harness.samples import Clock, Sample

PENDING = "the golden probe was not measured after it; run the same command again"
"""The reason that excludes a campaign until the golden probe after it has been measured."""


@dataclass(frozen=True)
class CampaignKey:
    """The subject of a campaign; campaigns with equal keys measure the same and can continue each other."""

    device: str
    plan: str
    settings: Mapping[str, Any]
    fingerprint: Mapping[str, str]

    @property
    def row(self) -> tuple[str, str, str, str]:
        """The key as the journal stores it."""
        return self.device, self.plan, compact_json(self.settings), compact_json(self.fingerprint)


@dataclass(frozen=True)
class Campaign:
    """One profiling job in the journal; if `excluded` gives a reason, no table uses it."""

    id: int
    device: str
    plan: str
    seed: int
    settings: Mapping[str, Any]
    fingerprint: Mapping[str, str]
    clock: str
    auxiliary: str
    reference: str
    rules: tuple[FusionRule, ...]
    created: str
    complete: bool
    excluded: str | None = None
    token: int = field(default=0, compare=False)

    @property
    def is_usable(self) -> bool:
        """Whether tables and comparisons may use it."""
        return self.complete and self.excluded is None

    @property
    def key(self) -> CampaignKey:
        """Return the subject of the campaign."""
        return CampaignKey(self.device, self.plan, self.settings, self.fingerprint)

    @property
    def job(self) -> str:
        """The name of its job, empty for a campaign without a name."""
        return str(self.settings.get("job", ""))


@dataclass(frozen=True)
class Slot:
    """The position of a visit in its campaign: batch, round, and position in the round's order."""

    batch: int
    round: int
    position: int


@dataclass(frozen=True)
class ProbeRecord:
    """A probe in the journal: everything but its model."""

    id: str
    role: Role
    label: str
    auxiliary: str | None
    terms: OverheadTerms
    visits: str
    refused: str | None


_CAMPAIGN = tuple(field.name for field in fields(Campaign))
_LAYER = tuple(field.name for field in fields(LayerProbes))
_LISTS = ("stacks", "networks")
"""The fields of a layer that are stored as JSON."""
_CHAIN = TypeAdapter(ChainProbes)
SAME_KEY = "device=? AND plan=? AND settings=? AND fingerprint=?"


class Journal(DurableFile):
    """All campaigns of a workspace; use as a context manager."""

    SCHEMA = SCHEMA
    TITLE = "The journal"
    LOSS = " to start a new journal"

    @contextlib.contextmanager
    def _fenced(self, campaign: int, token: int) -> Iterator[None]:
        """A transaction under the lease `token`; raises LeaseLost if a later lease has written to the campaign."""
        with self.transaction():
            renewed = self._db.execute("UPDATE campaigns SET token=? WHERE id=? AND token<=?", (token, campaign, token))
            if renewed.rowcount != 1:
                why = "Another controller has taken over the device and continues the campaign"
                raise LeaseLost(
                    "The samples arrived too late", why=why, next_step="Let the other controller finish the campaign"
                )
            yield
            journal_digest.renew(self._db, campaign)

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
        cursor = self._db.execute(
            "INSERT INTO campaigns (device, plan, settings, fingerprint, seed, clock, auxiliary, reference, rules,"
            " created, token) VALUES (?,?,?,?,?,?,?,?,?,?,?)",
            (*key.row, seed, clock, plan.auxiliary, plan.reference, rules, created, token),
        )
        campaign = int(cursor.lastrowid or 0)
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
        journal_digest.cover(self._db, campaign)
        return campaign

    def _insert_rows(self, table: str, campaign: int, rows: Iterable[Iterable[Any]]) -> None:
        owned = [(campaign, *row) for row in rows]
        if owned:
            marks = ",".join("?" * len(owned[0]))
            self._db.executemany(f"INSERT INTO {table} VALUES ({marks})", owned)  # noqa: S608 - our own names

    def resumable(self, key: CampaignKey, shared_by: int = 0) -> Campaign | None:
        """Return the newest campaign with this key that is not finished, or that waits for its golden probe.

        `shared_by` is the token of a session whose device others use, too: campaigns that they work on are passed
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
                self._db.execute("UPDATE campaigns SET token=max(token, ?) WHERE id=?", (token, one.id))
                journal_digest.renew(self._db, one.id)
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

    def numbers(self) -> tuple[int, ...]:
        """Return the numbers of all campaigns."""
        with self._reading():
            return tuple(int(number) for (number,) in self._db.execute("SELECT id FROM campaigns ORDER BY id"))

    def check(self, campaign: int) -> journal_digest.Verdict:
        """Compare a campaign with the digest of what was committed; raises JournalError for an unreadable file."""
        with self._reading():
            return journal_digest.check(self._db, campaign)

    def check_all(self) -> dict[int, journal_digest.Verdict]:
        """Check every campaign; one that is gone but for its digest is altered.

        Raises JournalError for an unreadable file, and for one whose records are out of order: another query could
        find other samples.
        """
        with self._reading():
            (found,) = self._db.execute("PRAGMA integrity_check(1)").fetchone()
            if found != "ok":
                step = "Restore the file from a backup"
                raise JournalError(f"{self.TITLE} {self.path} is damaged", why=str(found)[:200], next_step=step)
            verdicts = {number: journal_digest.check(self._db, number) for number in self.numbers()}
            return {**verdicts, **dict.fromkeys(journal_digest.lost(self._db), "altered")}

    def campaign(self, number: int) -> Campaign:
        """Return the campaign with that number; raises JournalError if there is none."""
        found = self._campaigns("id=?", number)
        if not found:
            raise JournalError(f"The journal {self.path} has no campaign {number}")
        return found[0]

    def campaigns(self, device: str) -> tuple[Campaign, ...]:
        """Return all campaigns of a device, oldest first."""
        return self._campaigns("device=?", device)

    def _campaigns(self, where: str, *values: int | str) -> tuple[Campaign, ...]:
        query = f"SELECT {', '.join(_CAMPAIGN)} FROM campaigns WHERE {where} ORDER BY created, id"  # noqa: S608
        with self._reading():
            return tuple(map(_campaign, self._db.execute(query, values)))

    def probes(self, campaign: int) -> dict[str, ProbeRecord]:
        """Return the probes of a campaign by id."""
        with self._reading():
            rows = self._db.execute(
                "SELECT probe, role, label, auxiliary, terms, visits, refused FROM probes WHERE campaign=?", (campaign,)
            )
            return {
                probe: ProbeRecord(probe, role, label, auxiliary, OverheadTerms(**json.loads(terms)), visits, refused)
                for probe, role, label, auxiliary, terms, visits, refused in rows
            }

    def layers(self, campaign: int) -> tuple[LayerProbes, ...]:
        """Return the layers of a campaign with their probes."""
        columns = ", ".join(f'"{name}"' for name in _LAYER)
        query = f"SELECT {columns} FROM layers WHERE campaign=?"  # noqa: S608 - our own names
        with self._reading():
            return tuple(map(_layer, self._db.execute(query, (campaign,))))

    def chains(self, campaign: int) -> tuple[ChainProbes, ...]:
        """Return the chains of a campaign's networks with their windows, as planned."""
        with self._reading():
            rows = self._db.execute("SELECT chain FROM chains WHERE campaign=? ORDER BY ordinal", (campaign,))
            return tuple(_CHAIN.validate_json(text) for (text,) in rows)

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
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        with self._fenced(campaign, token):
            for slot, probe, samples in taken:
                cursor = self._db.execute(
                    "INSERT INTO series (campaign, probe, batch, round, position, token, taken, state)"
                    " VALUES (?,?,?,?,?,?,?,?)",
                    (campaign, probe, slot.batch, slot.round, slot.position, token, now, compact_json(state)),
                )
                self._db.executemany(
                    "INSERT INTO samples VALUES (?,?,?,?,?,?)",
                    [
                        (cursor.lastrowid, ordinal, one.wall_ns, one.cpu_ns, one.device_ns, one.preemptions)
                        for ordinal, one in enumerate(samples)
                    ],
                )

    def slots(self, campaign: int, batch: int, round: int) -> set[Slot]:
        """Return the slots of a round that have a series."""
        with self._reading():
            rows = self._db.execute(
                "SELECT batch, round, position FROM series WHERE campaign=? AND batch=? AND round=?",
                (campaign, batch, round),
            )
            return {Slot(*row) for row in rows}

    def samples(self, campaign: int, batch: int | None = None) -> dict[str, list[Sample]]:
        """Return the samples of a campaign, or of one of its batches, by probe in the order they were taken."""
        query = (
            "SELECT probe, wall_ns, cpu_ns, device_ns, preemptions FROM samples JOIN series ON series.id=samples.series"
            " WHERE campaign=? AND (?2 IS NULL OR batch=?2) ORDER BY series.id, ordinal"
        )
        found: dict[str, list[Sample]] = {}
        with self._reading():
            for probe, *values in self._db.execute(query, (campaign, batch)):
                found.setdefault(probe, []).append(Sample(*values))
        return found

    def samples_of(self, campaign: int, probe: str) -> list[Sample]:
        """Return the samples of one probe of a campaign in the order they were taken."""
        query = (
            "SELECT wall_ns, cpu_ns, device_ns, preemptions FROM samples JOIN series ON series.id=samples.series"
            " WHERE campaign=? AND probe=? ORDER BY series.id, ordinal"
        )
        with self._reading():
            return [Sample(*row) for row in self._db.execute(query, (campaign, probe))]

    def finish_round(self, campaign: int, token: int, batch: int, finished: int) -> None:
        """Record how many whole rounds a batch has; raises as `add` does."""
        with self._fenced(campaign, token):
            self._db.execute("INSERT OR REPLACE INTO rounds VALUES (?,?,?)", (campaign, batch, finished))

    def rounds(self, campaign: int, batch: int) -> int:
        """Return the number of whole rounds of a batch."""
        query = "SELECT finished FROM rounds WHERE campaign=? AND batch=?"
        with self._reading():
            row = self._db.execute(query, (campaign, batch)).fetchone()
            return int(row[0]) if row else 0

    def spend(self, campaign: int, token: int, seconds: float) -> None:
        """Add device time of untimed runs, which no sample holds; raises as `add` does."""
        with self._fenced(campaign, token):
            self._db.execute("UPDATE campaigns SET untimed_s=untimed_s+? WHERE id=?", (seconds, campaign))

    def spent_s(self, campaign: int) -> float:
        """Return the device time of a campaign in seconds, untimed runs included."""
        query = (
            "SELECT untimed_s + (SELECT total(coalesce(nullif(device_ns, 0), wall_ns)) / 1e9"
            " FROM samples JOIN series ON series.id=samples.series WHERE campaign=campaigns.id)"
            " FROM campaigns WHERE id=?"
        )
        with self._reading():
            return float(self._db.execute(query, (campaign,)).fetchone()[0])

    def complete(self, campaign: int, token: int, settled: bool = True, excluded: str | None = None) -> None:
        """Mark a campaign as complete; one that the budget cut short is not `settled` and can be continued.

        `excluded` gives the reason if its result must not be used yet. Raises as `add` does.
        """
        with self._fenced(campaign, token):
            self._db.execute(
                "UPDATE campaigns SET complete=1, settled=?, excluded=? WHERE id=?", (settled, excluded, campaign)
            )


def _layer(row: Sequence[Any]) -> LayerProbes:
    values = dict(zip(_LAYER, row, strict=True))
    lists = {name: tuple(json.loads(values[name])) for name in _LISTS}
    return LayerProbes(**{**values, **lists, "key": LayerKey(values["key"])})


def _campaign(row: Sequence[Any]) -> Campaign:
    values = dict(zip(_CAMPAIGN, row, strict=True))
    read = {name: json.loads(values[name]) for name in ("settings", "fingerprint", "rules")}
    if not all(isinstance(read[name], dict) for name in ("settings", "fingerprint")):
        raise ValueError(f"Campaign {values['id']} has settings or facts of the device that are no objects")
    if not all(isinstance(fact, str) for fact in read["fingerprint"].values()) or values["clock"] not in get_args(
        Clock
    ):
        raise ValueError(f"Campaign {values['id']} has facts of the device or a clock that no device reports")
    read["rules"] = tuple(FusionRule(**rule) for rule in read["rules"])
    return Campaign(**{**values, **read, "complete": bool(values["complete"])})


def compact_json(value: Any) -> str:
    """Return JSON as the journal stores it: sorted keys and no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
