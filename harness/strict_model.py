"""The base of every model that checks data from outside: files, device replies, tables."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A finite number of at least 0, where data from outside is checked."""
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Size = Annotated[int, Field(gt=0, lt=2**31)]


class StrictModel(BaseModel):
    """Immutable, without unknown keys, and without conversions between types."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")
