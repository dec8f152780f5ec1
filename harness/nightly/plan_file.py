"""The keys of nightly.toml, with their defaults and limits."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import time
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from harness.errors import ConfigurationError
from harness.fleet.cluster.access import dask_address
from harness.settings import SLOWDOWN_THRESHOLD, check_settings, read_toml
from harness.strict_model import StrictModel
from harness.text import duration_s, safe_name

_EXAMPLES = {
    "nightly": 'Add a table [nightly] with devices = ["npu01"]; see docs/nightly.md',
    "set": 'Add a table [[set]] with name = "vision" and networks = ["builtin:squeezenet"]; see docs/nightly.md',
}
_HOW_TO_WRITE = (
    'Write one: [nightly] with devices = ["npu01"], then [[set]] with name = "vision" and '
    'networks = ["builtin:squeezenet"]; see docs/nightly.md'
)
_SHARE = re.compile(r"([0-9]{1,2}(?:\.[0-9]{1,4})?)\s*%\Z")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+\Z")
_CLOCK = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])\Z")


def time_of_day(text: object) -> time:
    """Return the time of `02:30`; raise ValueError for other text."""
    found = _CLOCK.match(text) if isinstance(text, str) else None
    if not found:
        raise ValueError('is not a time of day; write "02:30"')
    return time(int(found[1]), int(found[2]))


def _share(text: object) -> float:
    found = _SHARE.match(text.strip()) if isinstance(text, str) else None
    if not found or not float(found[1]):
        raise ValueError('is not a share above zero; write "1%" or "0.5%"')
    return float(found[1]) / 100


def _duration_s(text: object) -> float:
    return duration_s(text if isinstance(text, str) else "")


_Name = Annotated[str, AfterValidator(safe_name)]
_Names = Annotated[tuple[_Name, ...], Field(strict=False, max_length=1000)]
_Duration = Annotated[float, BeforeValidator(_duration_s)]
_Text = Annotated[str, Field(min_length=1, max_length=4096)]


def dims_key(dims: Mapping[str, int]) -> str:
    """Return values of dimensions and inputs as a plan has them."""
    values = (f"{name if _BARE_KEY.match(name) else json.dumps(name)} = {value}" for name, value in dims.items())
    return f"dims = {{{', '.join(values)}}} in the set"


class DaskSettings(StrictModel):
    """`engine = {dask = "tcp://…"}`, with three PEM files if the scheduler requires TLS."""

    dask: Annotated[str, AfterValidator(dask_address)]
    tls_ca_file: _Text | None = None
    tls_cert: _Text | None = None
    tls_key: _Text | None = None


class NightSettings(StrictModel):
    """The table [nightly].

    `budget_s` is time on the device, per device and night, and `time_limit_s` the wall time that a set may take on a
    device. `keep` is the number of earlier nights to compare with, `order` says what runs first, `threshold` is the
    smallest relative change that counts, and `retries` how often a failed job runs again at the end of the night.
    """

    devices: _Names = ()
    groups: _Names = ()
    all: bool = False
    budget_s: Annotated[_Duration | None, Field(alias="budget")] = None
    time_limit_s: Annotated[_Duration, Field(alias="time_limit")] = 6 * 3600.0
    order: Literal["stale", "listed"] = "stale"
    max_age_s: Annotated[_Duration, Field(alias="max_age")] = 7 * 86400.0
    day_begins: Annotated[time, BeforeValidator(time_of_day)] = time(12)
    keep: Annotated[int, Field(ge=1, le=365)] = 14
    threshold: Annotated[float, BeforeValidator(_share)] = SLOWDOWN_THRESHOLD
    engine: Literal["local"] | DaskSettings = "local"
    retries: Annotated[int, Field(ge=0, le=10)] = 1


class SetSettings(StrictModel):
    """A table [[set]].

    `weight` multiplies the set's age when the stalest sets run first. `time_limit_s` replaces that of all sets.
    """

    name: _Name
    networks: Annotated[tuple[_Text, ...], Field(strict=False, max_length=1000)] = ()
    space: _Text | None = None
    devices: _Names = ()
    groups: _Names = ()
    all: bool = False
    runs: Annotated[int, Field(ge=1, le=100_000)] | Literal["auto"] = "auto"
    budget_s: Annotated[_Duration | None, Field(alias="budget")] = None
    time_limit_s: Annotated[_Duration | None, Field(alias="time_limit")] = None
    dims: Mapping[str, Annotated[int, Field(ge=0, lt=1 << 31)]] = Field(default_factory=dict)
    weight: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] = 1.0


class PlanFile(StrictModel):
    """The whole file."""

    nightly: NightSettings
    set: Annotated[tuple[SetSettings, ...], Field(strict=False, min_length=1, max_length=1000)]


def read_plan_file(path: Path) -> PlanFile:
    """Read a plan and check its keys; raise ConfigurationError, which names the key."""
    if not path.exists():
        raise ConfigurationError(f"There is no plan {path}", next_step=_HOW_TO_WRITE)
    content = read_toml(path)
    return check_settings(PlanFile.model_validate, content, path, known=_known_keys, examples=_EXAMPLES)


def _known_keys(keys: tuple[str | int, ...]) -> tuple[str, ...]:
    tables: Mapping[tuple[str | int, ...], type[StrictModel]] = {
        (): PlanFile,
        ("nightly",): NightSettings,
        ("nightly", "engine"): DaskSettings,
    }
    return tuple(field.alias or name for name, field in tables.get(keys, SetSettings).model_fields.items())
