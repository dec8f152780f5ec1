"""Queries of the journal; nothing here writes to it."""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any

from harness.errors import JournalError
from harness.measure.journal import digest
from harness.measure.journal.checked_rows import CAMPAIGNS, CHAINS, LAYERS, PROBES, InvalidRow
from harness.measure.journal.database import DurableFile, damaged
from harness.measure.journal.records import Campaign, ProbeRecord, Slot
from harness.measure.journal.schema import SCHEMA
from harness.probe.chain_plan import ChainProbes
from harness.probe.probe_plan import LayerProbes
from harness.samples import ProbeSample, Sample
from harness.text import is_time

_LAYER = tuple(one.name for one in fields(LayerProbes))
ALTERED = "altered on disk"
"""The reason that excludes a campaign that is not what was measured."""


def altered(path: Path, campaigns: Iterable[int]) -> JournalError:
    """Return the error for campaigns that are not what was committed."""
    what = f"{path} was altered on disk: campaign {', '.join(map(str, campaigns))}"
    step = (
        "Restore the file from a backup, or keep these campaigns out of tables with"
        " `harness journal check --exclude` and measure again"
    )
    return JournalError(what, why="Its samples or its plan are not those that were measured", next_step=step)


class JournalReader(DurableFile):
    """The campaigns of a workspace, with their plans and samples; raises JournalError for a damaged file."""

    SCHEMA = SCHEMA
    TITLE = "The journal"

    def __init__(self, path: Path, *, to_read: bool = False) -> None:
        super().__init__(path, to_read=to_read)
        self._checked: set[int] = set()

    def numbers(self) -> tuple[int, ...]:
        """Return the numbers of all campaigns."""
        with self._reading():
            return tuple(int(number) for (number,) in self._db.execute("SELECT id FROM campaigns ORDER BY id"))

    def of_job(self, job: str) -> tuple[Campaign, ...]:
        """Return all campaigns of a named job, oldest first."""
        return self._campaigns("json_valid(settings) AND json_extract(settings, '$.job')=?", job)

    def check(self, campaign: int) -> digest.Verdict:
        """Compare a campaign with the digest of what was committed; raises JournalError for an unreadable file.

        A plan that cannot be read is altered, too.
        """
        with self._reading(), self._snapshot():
            try:
                for table, column in ((CAMPAIGNS, "id"), *((one, "campaign") for one in (PROBES, LAYERS, CHAINS))):
                    collections.deque(table.rows(self._db, f"{column}=?", campaign), maxlen=0)
            except InvalidRow:
                return "altered"
            return digest.check(self._db, campaign)

    def lost(self) -> tuple[int, ...]:
        """Return the numbers of campaigns that are gone but for their digests."""
        with self._reading():
            return digest.lost(self._db)

    def require_unaltered(self, campaigns: Iterable[int]) -> None:
        """Raise JournalError if campaigns are not what was committed; each is checked once while the file is open."""
        unknown = [one for one in campaigns if one not in self._checked]
        found = [one for one in unknown if self.check(one) == "altered"]
        if found:
            raise altered(self.path, found)
        self._checked.update(unknown)

    def check_all(self) -> dict[int, digest.Verdict]:
        """Check every campaign; one that is gone but for its digest is altered.

        Raises JournalError for an unreadable file, and for one whose records are out of order: another query could
        find other samples.
        """
        with self._reading():
            (found,) = self._db.execute("PRAGMA integrity_check(1)").fetchone()
            if found != "ok":
                raise damaged(self._named, str(found)[:200])
            verdicts = {number: self.check(number) for number in self.numbers()}
            return {**verdicts, **dict.fromkeys(self.lost(), "altered")}

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
        ordered = f"{where} ORDER BY created, id"
        with self._reading():
            try:
                return tuple(map(Campaign.of, CAMPAIGNS.records(self._db, ordered, *values)))
            except InvalidRow:
                found = self._db.execute(f"SELECT id FROM campaigns WHERE {ordered}", values).fetchall()  # noqa: S608
                return tuple(one for (number,) in found if (one := self._unless_held_back(number)))

    def _unless_held_back(self, number: int) -> Campaign | None:
        """Return a campaign, None for an unreadable one that is excluded as altered; raises JournalError for others."""
        try:
            record = next(CAMPAIGNS.records(self._db, "id=?", number), None)
            if record is None:
                raise damaged(self._named, f"campaign {number} is listed and cannot be found")
            return Campaign.of(record)
        except InvalidRow:
            (excluded,) = self._db.execute("SELECT excluded FROM campaigns WHERE id=?", (number,)).fetchone()
            if excluded == ALTERED:
                return None
            raise altered(self.path, [number]) from None

    def times(self, campaign: int) -> list[datetime]:
        """Return the times at which the series of a campaign were taken, in order."""
        with self._reading():
            rows = self._db.execute("SELECT DISTINCT taken FROM series WHERE campaign=? ORDER BY taken", (campaign,))
            try:
                return [datetime.fromisoformat(taken) for (taken,) in rows if is_time(taken)]
            except TypeError:
                raise altered(self.path, [campaign]) from None

    def probes(self, campaign: int) -> dict[str, ProbeRecord]:
        """Return the probes of a campaign by id."""
        with self._reading_plan(campaign):
            records = map(ProbeRecord.of, PROBES.records(self._db, "campaign=?", campaign))
            return {one.id: one for one in records}

    def layers(self, campaign: int) -> tuple[LayerProbes, ...]:
        """Return the layers of a campaign with their probes."""
        with self._reading_plan(campaign):
            records = LAYERS.records(self._db, "campaign=?", campaign)
            return tuple(LayerProbes(**{name: record[name] for name in _LAYER}) for record in records)

    def chains(self, campaign: int) -> tuple[ChainProbes, ...]:
        """Return the chains of a campaign's networks with their windows, as planned."""
        with self._reading_plan(campaign):
            records = CHAINS.records(self._db, "campaign=? ORDER BY ordinal", campaign)
            return tuple(record["chain"] for record in records)

    @contextlib.contextmanager
    def _reading_plan(self, campaign: int) -> Iterator[None]:
        """As `_reading`; a row that nobody wrote makes the campaign altered."""
        with self._reading():
            try:
                yield
            except InvalidRow as error:
                raise altered(self.path, [campaign]) from error

    def slots(self, campaign: int, batch: int, round: int) -> set[Slot]:
        """Return the slots of a round that have a series."""
        with self._reading():
            rows = self._db.execute(
                "SELECT batch, round, position FROM series WHERE campaign=? AND batch=? AND round=?",
                (campaign, batch, round),
            )
            return {Slot(*row) for row in rows}

    def _taken(
        self, columns: str, campaign: int, where: str = "1", *values: int | str
    ) -> Iterator[tuple[list[Any], Sample]]:
        """Yield the samples of a campaign in the order they were taken, each with these columns of its series.

        Raises JournalError for a campaign that was altered on disk.
        """
        self.require_unaltered([campaign])
        query = (
            f"SELECT {columns}, wall_ns, cpu_ns, device_ns, preemptions FROM samples"  # noqa: S608 - our own names
            f" JOIN series ON series.id=samples.series WHERE campaign=? AND {where} ORDER BY series.id, ordinal"
        )
        with self._reading():
            for *row, wall_ns, cpu_ns, device_ns, preemptions in self._db.execute(query, (campaign, *values)):
                yield row, Sample(wall_ns, cpu_ns, device_ns, preemptions)

    def samples(self, campaign: int, batch: int | None = None) -> dict[str, list[Sample]]:
        """Return the samples of a campaign, or of one of its batches, by probe; raises as all queries of samples."""
        found: dict[str, list[Sample]] = {}
        of_batch = () if batch is None else ("batch=?", batch)
        for (probe,), sample in self._taken("probe", campaign, *of_batch):
            found.setdefault(probe, []).append(sample)
        return found

    def probe_samples(self, campaign: int) -> list[ProbeSample]:
        """Return the samples of a campaign with their probes and batches."""
        names: dict[str, str] = {}  # one text for each probe, not for each of its samples
        taken = self._taken("probe, batch", campaign)
        return [ProbeSample(names.setdefault(probe, probe), batch, sample) for (probe, batch), sample in taken]

    def samples_of(self, campaign: int, probe: str) -> list[Sample]:
        """Return the samples of one probe of a campaign."""
        return [sample for _, sample in self._taken("series.id", campaign, "probe=?", probe)]

    def visits_of(self, campaign: int, probe: str) -> list[tuple[str, list[Sample]]]:
        """Return the visits to one probe of a campaign, each with its time (ISO 8601)."""
        visits = itertools.groupby(self._taken("series.id, taken", campaign, "probe=?", probe), key=lambda one: one[0])
        return [(taken, [sample for _, sample in visit]) for (_, taken), visit in visits]

    def states(self, campaign: int) -> list[dict[str, float]]:
        """Return the states of the machine during the series of a campaign in order, each once.

        Raises as `samples` does.
        """
        self.require_unaltered([campaign])
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

    def has_deaths(self, campaign: int) -> bool:
        """Return whether a worker died while loading a probe of the campaign."""
        with self._reading():
            (found,) = self._db.execute(
                "SELECT EXISTS (SELECT 1 FROM probes WHERE campaign=? AND deaths)", (campaign,)
            ).fetchone()
        return bool(found)

    def spent_s(self, campaign: int) -> float:
        """Return the device time of a campaign in seconds, untimed runs included."""
        query = (
            "SELECT untimed_s + (SELECT total(coalesce(nullif(device_ns, 0), wall_ns)) / 1e9"
            " FROM samples JOIN series ON series.id=samples.series WHERE campaign=campaigns.id)"
            " FROM campaigns WHERE id=?"
        )
        with self._reading():
            return float(self._db.execute(query, (campaign,)).fetchone()[0])
