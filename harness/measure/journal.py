"""The journal of samples: SQLite, write-ahead log, synchronous FULL. A sample is committed or never happened."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.errors import JournalError, LeaseLost
from harness.measure.database import open_durable, opening_step, transaction
from harness.measure.schema import SCHEMA_VERSION, bring_up_to_date, version_at
from harness.network.fusion_rules import FusionRule
from harness.network.key import LayerKey
from harness.probe.chain_plan import ChainProbes
from harness.probe.overhead_terms import OverheadTerms
from harness.probe.probe import Role
from harness.probe.probe_plan import LayerProbes, ProbePlan
from harness.samples import Sample

PENDING = "the golden probe was not measured after it; run the same command again"
"""Why a campaign is kept out until its device has shown that it is as it was."""


@dataclass(frozen=True)
class Campaign:
    """One profiling job as the journal keeps it; one that is `excluded`, for that reason, enters no table."""

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


@dataclass(frozen=True)
class Place:
    """Where in a campaign a visit belongs: batch, round and position in the round's order."""

    batch: int
    round: int
    position: int


@dataclass(frozen=True)
class ProbeRecord:
    """A probe as the journal keeps it: everything but its model."""

    id: str
    role: Role
    label: str
    auxiliary: str | None
    terms: OverheadTerms
    visits: str
    refused: str | None


class Journal:
    """All campaigns of a workspace; use as a context manager."""

    def __init__(self, path: Path) -> None:
        """Opens or creates the journal; raises JournalError where the file is not one of ours."""
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            found = version_at(path)
            self._db = open_durable(path)
            try:
                if found != SCHEMA_VERSION:
                    bring_up_to_date(self._db)
            except BaseException:
                self._db.close()
                raise
        except (sqlite3.Error, OSError) as error:
            step = opening_step(error, "Move the file away to start a new journal")
            raise JournalError(f"The journal {path} cannot be opened", why=str(error), next_step=step) from error

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Turns what a damaged file makes of a query, or of a value, into a JournalError."""
        try:
            yield
        except (sqlite3.Error, ValueError, TypeError, KeyError) as error:
            step = "Move the file away to start a new journal"
            raise JournalError(f"The journal {self.path} is damaged", why=str(error), next_step=step) from error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All that is written inside is committed at its end, or nothing; raises JournalError."""
        try:
            with transaction(self._db):
                yield self._db
        except sqlite3.IntegrityError as error:
            raise JournalError(f"The journal {self.path} already holds this", why=str(error)) from error
        except sqlite3.Error as error:
            step = "Free space on the disk, then run the same command again: it resumes"
            raise JournalError(f"The journal {self.path} cannot be written", why=str(error), next_step=step) from error

    @contextlib.contextmanager
    def _fenced(self, campaign: int, token: int) -> Iterator[None]:
        """A transaction of whoever holds the newest lease; raises LeaseLost where a later one has written."""
        with self.transaction():
            renewed = self._db.execute("UPDATE campaigns SET token=? WHERE id=? AND token<=?", (token, campaign, token))
            if renewed.rowcount != 1:
                why = "Another controller has taken the device over, and goes on with the campaign"
                raise LeaseLost("These samples come too late", why=why, next_step="Leave it to the other controller")
            yield

    def begin(
        self, device: str, plan: ProbePlan, seed: int, settings: Mapping[str, Any], fingerprint: Mapping[str, str],
        clock: str, token: int = 0,
    ) -> Campaign:  # fmt: skip
        """Records a campaign with its probes and layers; of a named job there is one, which another may have begun.

        Raises LeaseLost where that was under a later lease than `token`.
        """
        visits = {probe: batch.visits for batch in reversed(plan.batches) for probe in batch.probes}
        with self.transaction():
            known = self._newest(device, plan.id, settings, fingerprint) if settings.get("job") else None
            if known is not None:
                begun = known
            else:
                begun = self._insert(device, plan, seed, settings, fingerprint, clock, visits)
        with self._fenced(begun, token):
            return self.campaign(begun)

    def _insert(
        self, device: str, plan: ProbePlan, seed: int, settings: Mapping[str, Any], fingerprint: Mapping[str, str],
        clock: str, visits: Mapping[str, str],
    ) -> int:  # fmt: skip
        cursor = self._db.execute(
            "INSERT INTO campaigns (device, plan, seed, settings, fingerprint, clock, auxiliary, reference, rules,"
            " created) VALUES (?,?,?,?,?,?,?,?,?,?)",
            (device, plan.id, seed, _json(settings), _json(fingerprint), clock, plan.auxiliary, plan.reference,
             _json([asdict(rule) for rule in plan.rules]), datetime.now(UTC).isoformat(timespec="milliseconds")),
        )  # fmt: skip
        campaign = int(cursor.lastrowid or 0)
        self._db.executemany(
            "INSERT INTO probes (campaign, probe, role, label, auxiliary, terms, visits) VALUES (?,?,?,?,?,?,?)",
            [
                (
                    campaign,
                    probe.id,
                    probe.role,
                    probe.label,
                    probe.auxiliary,
                    _json(asdict(probe.terms)),
                    visits.get(probe.id, "cold"),
                )
                for probe in plan.probes.values()
            ],
        )
        self._db.executemany(
            "INSERT INTO layers VALUES (?,?,?,?,?,?,?,?,?,?,?)",
            [
                (
                    campaign,
                    layer.key.text,
                    *list(asdict(layer).values())[1:-2],
                    _json(layer.stacks),
                    _json(layer.networks),
                )
                for layer in plan.layers
            ],
        )
        self._db.executemany(
            "INSERT INTO chains VALUES (?,?,?)",
            [(campaign, number, _json(asdict(chain))) for number, chain in enumerate(plan.chains)],
        )
        return campaign

    def resumable(
        self, device: str, plan: str, settings: Mapping[str, Any], fingerprint: Mapping[str, str]
    ) -> Campaign | None:
        """The newest campaign of the same device, plan, settings and fingerprint that may go on."""
        with self._reading():
            row = self._db.execute(
                "SELECT id FROM campaigns WHERE device=? AND plan=? AND settings=? AND fingerprint=?"
                " AND (excluded=? OR settled=0 AND excluded IS NULL) ORDER BY id DESC LIMIT 1",
                (device, plan, _json(settings), _json(fingerprint), PENDING),
            ).fetchone()
        return self.campaign(row[0]) if row else None

    def newest(
        self, device: str, plan: str, settings: Mapping[str, Any], fingerprint: Mapping[str, str]
    ) -> Campaign | None:
        """The newest campaign of the same device, plan, settings and fingerprint, complete or not."""
        with self._reading():
            found = self._newest(device, plan, settings, fingerprint)
        return None if found is None else self.campaign(found)

    def _newest(
        self, device: str, plan: str, settings: Mapping[str, Any], fingerprint: Mapping[str, str]
    ) -> int | None:
        row = self._db.execute(
            "SELECT id FROM campaigns WHERE device=? AND plan=? AND settings=? AND fingerprint=?"
            " AND (excluded IS NULL OR excluded=?) ORDER BY created DESC, id DESC LIMIT 1",
            (device, plan, _json(settings), _json(fingerprint), PENDING),
        ).fetchone()
        return int(row[0]) if row else None

    def exclude(self, campaign: int, reason: str | None) -> None:
        """Keeps a campaign out of tables and comparisons, or lets it in again; its samples stay. Needs no lease."""
        with self.transaction():
            self._db.execute("UPDATE campaigns SET excluded=? WHERE id=?", (reason, campaign))

    def campaign(self, number: int) -> Campaign:
        """The campaign of that number."""
        found = self._campaigns(number, None)
        if not found:
            raise JournalError(f"The journal {self.path} has no campaign {number}")
        return found[0]

    def campaigns(self, device: str) -> tuple[Campaign, ...]:
        """All campaigns of a device, oldest first."""
        return self._campaigns(None, device)

    def _campaigns(self, number: int | None, device: str | None) -> tuple[Campaign, ...]:
        with self._reading():
            rows = self._db.execute(
                "SELECT id, device, plan, seed, settings, fingerprint, clock, auxiliary, reference, rules, created,"
                " complete, excluded FROM campaigns"
                " WHERE (?1 IS NULL OR id=?1) AND (?2 IS NULL OR device=?2) ORDER BY created, id", (number, device),
            )  # fmt: skip
            return tuple(_campaign(*row) for row in rows)

    def probes(self, campaign: int) -> dict[str, ProbeRecord]:
        """The probes of a campaign by id."""
        with self._reading():
            rows = self._db.execute(
                "SELECT probe, role, label, auxiliary, terms, visits, refused FROM probes WHERE campaign=?", (campaign,)
            )
            return {
                probe: ProbeRecord(probe, role, label, auxiliary, OverheadTerms(**json.loads(terms)), visits, refused)
                for probe, role, label, auxiliary, terms, visits, refused in rows
            }

    def layers(self, campaign: int) -> tuple[LayerProbes, ...]:
        """The layers of a campaign with their probes."""
        with self._reading():
            rows = self._db.execute(
                'SELECT key, context, op, name, layer, auxiliary, in_context, "null", stacks, networks FROM layers'
                " WHERE campaign=?",
                (campaign,),
            )
            return tuple(_layer(*row) for row in rows)

    def chains(self, campaign: int) -> tuple[ChainProbes, ...]:
        """The chains of a campaign's networks with their windows, as planned."""
        with self._reading():
            rows = self._db.execute("SELECT chain FROM chains WHERE campaign=? ORDER BY ordinal", (campaign,))
            return tuple(_chain(json.loads(text)) for (text,) in rows)

    def refuse(self, campaign: int, token: int, probe: str, reason: str) -> None:
        """Records that the device does not accept a probe; raises as `add` does."""
        with self._fenced(campaign, token):
            self._db.execute("UPDATE probes SET refused=? WHERE campaign=? AND probe=?", (reason, campaign, probe))

    def count_death(self, campaign: int, token: int, probe: str) -> int:
        """Records that the worker died while it loaded a probe; returns how often it has. Raises as `add` does."""
        with self._fenced(campaign, token):
            row = self._db.execute(
                "UPDATE probes SET deaths=deaths+1 WHERE campaign=? AND probe=? RETURNING deaths", (campaign, probe)
            ).fetchone()
        return int(row[0])

    def add(
        self,
        campaign: int,
        token: int,
        taken: Sequence[tuple[Place, str, Sequence[Sample]]],
        state: Mapping[str, float],
    ) -> None:
        """Commits series in one transaction.

        Raises LeaseLost where a later lease than `token` has written to the campaign, and JournalError for a
        place that already has a series.
        """
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        with self._fenced(campaign, token):
            for place, probe, samples in taken:
                cursor = self._db.execute(
                    "INSERT INTO series (campaign, probe, batch, round, position, token, taken, state)"
                    " VALUES (?,?,?,?,?,?,?,?)",
                    (campaign, probe, place.batch, place.round, place.position, token, now, _json(state)),
                )
                self._db.executemany(
                    "INSERT INTO samples VALUES (?,?,?,?,?,?)",
                    [
                        (cursor.lastrowid, ordinal, one.wall_ns, one.cpu_ns, one.device_ns, one.preemptions)
                        for ordinal, one in enumerate(samples)
                    ],
                )

    def places(self, campaign: int, batch: int, round: int) -> set[Place]:
        """Places of a round that have a series."""
        with self._reading():
            rows = self._db.execute(
                "SELECT batch, round, position FROM series WHERE campaign=? AND batch=? AND round=?",
                (campaign, batch, round),
            )
            return {Place(*row) for row in rows}

    def samples(self, campaign: int, batch: int | None = None) -> dict[str, list[Sample]]:
        """All samples of a campaign, or of one batch of it, by probe, in the order they were taken."""
        with self._reading():
            rows = self._db.execute(
                "SELECT probe, wall_ns, cpu_ns, device_ns, preemptions"
                " FROM samples JOIN series ON series.id=samples.series"
                " WHERE campaign=? AND (?2 IS NULL OR batch=?2) ORDER BY series.id, ordinal", (campaign, batch),
            )  # fmt: skip
            found: dict[str, list[Sample]] = {}
            for probe, *values in rows:
                found.setdefault(probe, []).append(Sample(*values))
            return found

    def finish_round(self, campaign: int, token: int, batch: int, finished: int) -> None:
        """Records that a batch has so many whole rounds; raises as `add` does."""
        with self._fenced(campaign, token):
            self._db.execute("INSERT OR REPLACE INTO rounds VALUES (?,?,?)", (campaign, batch, finished))

    def rounds(self, campaign: int, batch: int) -> int:
        """Whole rounds of a batch."""
        with self._reading():
            row = self._db.execute(
                "SELECT finished FROM rounds WHERE campaign=? AND batch=?", (campaign, batch)
            ).fetchone()
            return int(row[0]) if row else 0

    def spend(self, campaign: int, token: int, seconds: float) -> None:
        """Adds time on the device that no sample tells, that of untimed runs; raises as `add` does."""
        with self._fenced(campaign, token):
            self._db.execute("UPDATE campaigns SET untimed_s=untimed_s+? WHERE id=?", (seconds, campaign))

    def spent_s(self, campaign: int) -> float:
        """Time on the device of all samples of a campaign and of its untimed runs."""
        with self._reading():
            row = self._db.execute(
                "SELECT untimed_s + (SELECT coalesce(sum(coalesce(nullif(device_ns, 0), wall_ns)), 0) / 1e9"
                " FROM samples JOIN series ON series.id=samples.series WHERE campaign=campaigns.id)"
                " FROM campaigns WHERE id=?", (campaign,),
            ).fetchone()  # fmt: skip
            return float(row[0])

    def complete(self, campaign: int, token: int, settled: bool = True, excluded: str | None = None) -> None:
        """Marks a campaign as complete; one that the budget cut short is not `settled` and may go on.

        Where its result still waits for something, `excluded` says for what. Raises as `add` does.
        """
        with self._fenced(campaign, token):
            self._db.execute(
                "UPDATE campaigns SET complete=1, settled=?, excluded=? WHERE id=?", (settled, excluded, campaign)
            )


def _layer(
    key: str, context: str, op: str, name: str, layer: str, auxiliary: str, in_context: str, null: str, stacks: str,
    networks: str,
) -> LayerProbes:  # fmt: skip
    return LayerProbes(LayerKey(key), context, op, name, layer, auxiliary, in_context, null, tuple(json.loads(stacks)),
                       tuple(json.loads(networks)))  # fmt: skip


def _campaign(
    number: int, device: str, plan: str, seed: int, settings: str, fingerprint: str, clock: str, auxiliary: str,
    reference: str, rules: str, created: str, complete: int, excluded: str | None,
) -> Campaign:  # fmt: skip
    return Campaign(
        number, device, plan, seed, json.loads(settings), json.loads(fingerprint), clock, auxiliary, reference,
        tuple(FusionRule(**rule) for rule in json.loads(rules)), created, bool(complete), excluded,
    )  # fmt: skip


def _chain(values: dict[str, Any]) -> ChainProbes:
    places, views = (tuple((key, label) for key, label in values.pop(name)) for name in ("places", "views"))
    borders = tuple(tuple(sizes) for sizes in values.pop("borders", ()))
    weights = tuple(values.pop("weight_bytes", ()))
    return ChainProbes(places=places, views=views, borders=borders, weight_bytes=weights, **values)


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
