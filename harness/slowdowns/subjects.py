"""What a watch campaign looks at, and what it can say of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["layer", "network", "device"]
WATCH = "watch"
"""The purpose of a watch campaign, in the settings that the journal keeps."""


@dataclass(frozen=True)
class Subject:
    """One of which it is asked whether it became slower; `networks` are those that hold a layer."""

    kind: Kind
    name: str
    op: str = ""
    networks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind} {self.name}{f' ({self.op})' if self.op else ''}"


@dataclass(frozen=True)
class Detectable:
    """The smallest relative change of a subject that would be told with 95 % probability; infinite where none is."""

    subject: Subject
    change: float
