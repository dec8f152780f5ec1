"""The base of every model that checks data from outside: files, device replies, tables."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class StrictModel(BaseModel):
    """Immutable, without unknown keys, and without conversions between types."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")
