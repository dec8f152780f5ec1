"""What the journal holds: campaigns with their keys, slots of visits, and probes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from harness.device.variant import threads_of
from harness.network.fusion.fusion_rules import FusionRule
from harness.probe.batches import Visits
from harness.probe.overhead_terms import OverheadTerms
from harness.probe.probe import Role

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

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Campaign:
        """Return the campaign of a row that was read from the journal's table."""
        return cls(**{one.name: record[one.name] for one in fields(cls)})

    @property
    def is_usable(self) -> bool:
        """Whether tables and comparisons may use it."""
        return self.complete and self.excluded is None

    @property
    def key(self) -> CampaignKey:
        """Return the subject of the campaign."""
        return CampaignKey(self.device, self.plan, self.settings, self.fingerprint)

    @property
    def purpose(self) -> str:
        """What it was measured for: `profile`, `watch`, `golden` and others."""
        return str(self.settings.get("purpose", ""))

    @property
    def job(self) -> str:
        """The name of its job, empty for a campaign without a name."""
        return str(self.settings.get("job", ""))

    @property
    def threads_meet(self) -> bool:
        """Whether its latencies contain the waits of threads for each other: wall time, of several threads."""
        return self.clock == "wall" and threads_of(self.fingerprint) > 1


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
    visits: Visits
    refused: str | None

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> ProbeRecord:
        """Return the probe of a row that was read from the journal's table."""
        return cls(record["probe"], **{one.name: record[one.name] for one in fields(cls)[1:]})


def compact_json(value: Any) -> str:
    """Return JSON as the journal stores it: sorted keys and no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
