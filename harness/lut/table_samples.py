"""The samples of a table's overhead in the journal of a workspace: null probes and reference probe."""

import warnings
from dataclasses import dataclass
from datetime import datetime

from harness.errors import DamagedFileWarning, JournalError
from harness.latency.overhead import COLUMNS, PLAIN_COLUMNS, Overhead, row_of
from harness.latency.overhead_fit import levelled_nulls
from harness.lut.table import Lut
from harness.lut.table_choice import is_published
from harness.measure.journal.reader import JournalReader
from harness.measure.journal.records import Campaign
from harness.measure.summary import summarise
from harness.workspace import Workspace


@dataclass(frozen=True)
class NullProbe:
    """A null probe: its sizes, its measured total, and the total by the fit.

    `further_s` is the part of the fit that is neither a, b nor c.
    """

    label: str
    input_bytes: float
    output_bytes: float
    total_s: float
    fitted_s: float
    further_s: float


@dataclass(frozen=True)
class ReferenceVisit:
    """A visit to the reference probe, the seconds since the first one, and its latency."""

    elapsed_s: float
    latency_s: float


@dataclass(frozen=True)
class TableSamples:
    """The null probes of a table's newest campaign, and its visits to the reference probe in order."""

    campaign: int
    nulls: tuple[NullProbe, ...]
    visits: tuple[ReferenceVisit, ...]


def table_samples(workspace: Workspace, table: Lut) -> TableSamples | None:
    """Return the samples of the overhead of a table; None if the workspace does not have them.

    Those of a journal that cannot be read, or was altered, are left out with a DamagedFileWarning.
    """
    newest = max((entry.campaign for entry in table.entries), default=0)
    if not newest or table.is_imported or is_published(table) or not workspace.journal.exists():
        return None
    try:
        with JournalReader(workspace.journal, to_read=True) as journal:
            if newest not in journal.numbers():
                return None
            campaign = journal.campaign(newest)
            if (campaign.device, campaign.fingerprint) != (table.device, table.fingerprint):
                return None  # the table is from another journal
            return TableSamples(newest, _nulls(journal, campaign, table.overhead), _visits(journal, campaign))
    except JournalError as error:
        warnings.warn(f"The samples of the table are left out. {error}", DamagedFileWarning, stacklevel=2)
        return None


def _nulls(journal: JournalReader, campaign: Campaign, overhead: Overhead) -> tuple[NullProbe, ...]:
    probes, samples = journal.probes(campaign.id), journal.samples(campaign.id)
    nulls = {name: runs for name, runs in samples.items() if runs and probes[name].role == "calibration"}
    terms = {name: probes[name].terms for name in nulls}
    levelled, _ = levelled_nulls(nulls, terms, campaign.clock)
    found = []
    for name, (amounts, measured) in zip(nulls, levelled, strict=True):
        row = row_of(amounts)
        plain = [amount * (column in PLAIN_COLUMNS) for column, amount in zip(COLUMNS, row, strict=True)]
        fitted_s, plain_s = overhead.of(row)[0], overhead.of(plain)[0]
        sizes = float(amounts.input_bytes), float(amounts.output_bytes)
        found.append(NullProbe(probes[name].label, *sizes, measured.latency_s, fitted_s, fitted_s - plain_s))
    return tuple(found)


def _visits(journal: JournalReader, campaign: Campaign) -> tuple[ReferenceVisit, ...]:
    visits = journal.visits_of(campaign.id, campaign.reference)
    times = [datetime.fromisoformat(taken).timestamp() for taken, _ in visits]
    return tuple(
        ReferenceVisit(at - times[0], summarise(samples, campaign.clock).latency_s)
        for at, (_, samples) in zip(times, visits, strict=True)
    )
