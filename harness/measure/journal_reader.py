"""Queries of the journal; nothing here writes to it."""

from __future__ import annotations

import itertools
import json
from dataclasses import fields

from harness.errors import JournalError
from harness.measure import journal_digest
from harness.measure.database import DurableFile
from harness.measure.journal_records import Campaign, ProbeRecord, Slot
from harness.measure.journal_tables import CAMPAIGNS, CHAINS, LAYERS, PROBES
from harness.measure.schema import SCHEMA
from harness.probe.chain_plan import ChainProbes
from harness.probe.probe_plan import LayerProbes
from harness.samples import Sample

_LAYER = tuple(one.name for one in fields(LayerProbes))


class JournalReader(DurableFile):
    """The campaigns of a workspace, with their plans and samples; raises JournalError for a damaged file."""

    SCHEMA = SCHEMA
    TITLE = "The journal"
    LOSS = " to start a new journal"

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
        with self._reading():
            return tuple(map(Campaign.of, CAMPAIGNS.records(self._db, f"{where} ORDER BY created, id", *values)))

    def probes(self, campaign: int) -> dict[str, ProbeRecord]:
        """Return the probes of a campaign by id."""
        with self._reading():
            records = map(ProbeRecord.of, PROBES.records(self._db, "campaign=?", campaign))
            return {one.id: one for one in records}

    def layers(self, campaign: int) -> tuple[LayerProbes, ...]:
        """Return the layers of a campaign with their probes."""
        with self._reading():
            records = LAYERS.records(self._db, "campaign=?", campaign)
            return tuple(LayerProbes(**{name: record[name] for name in _LAYER}) for record in records)

    def chains(self, campaign: int) -> tuple[ChainProbes, ...]:
        """Return the chains of a campaign's networks with their windows, as planned."""
        with self._reading():
            records = CHAINS.records(self._db, "campaign=? ORDER BY ordinal", campaign)
            return tuple(record["chain"] for record in records)

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

    def states(self, campaign: int) -> list[dict[str, float]]:
        """Return the states of the machine beside the series of a campaign in order, each once."""
        found: list[dict[str, float]] = []
        with self._reading():
            rows = self._db.execute("SELECT state FROM series WHERE campaign=? ORDER BY id", (campaign,))
            for text, _ in itertools.groupby(text for (text,) in rows):
                state = json.loads(text)
                numbers = state.items() if isinstance(state, dict) else ()
                found.append({name: one for name, one in numbers if isinstance(one, (int, float))})
        return found

    def rounds(self, campaign: int, batch: int) -> int:
        """Return the number of whole rounds of a batch."""
        query = "SELECT finished FROM rounds WHERE campaign=? AND batch=?"
        with self._reading():
            row = self._db.execute(query, (campaign, batch)).fetchone()
            return int(row[0]) if row else 0

    def spent_s(self, campaign: int) -> float:
        """Return the device time of a campaign in seconds, untimed runs included."""
        query = (
            "SELECT untimed_s + (SELECT total(coalesce(nullif(device_ns, 0), wall_ns)) / 1e9"
            " FROM samples JOIN series ON series.id=samples.series WHERE campaign=campaigns.id)"
            " FROM campaigns WHERE id=?"
        )
        with self._reading():
            return float(self._db.execute(query, (campaign,)).fetchone()[0])
