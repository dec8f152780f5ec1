"""The subjects of a watch campaign: layers, networks and the device as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["layer", "network", "device"]
WATCH = "watch"
"""The purpose of a watch campaign, in the settings that the journal keeps."""


@dataclass(frozen=True)
class Subject:
    """A layer, a network or a device that may become slower; `networks` are those that hold a layer."""

    kind: Kind
    name: str
    op: str = ""
    networks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind} {self.name}{f' ({self.op})' if self.op else ''}"


@dataclass(frozen=True)
class Detectable:
    """The smallest relative change of a subject that is found with 95 % probability; infinite if none is."""

    subject: Subject
    change: float
