"""The plan of a lab's nights: which sets of layers to measure on which devices, and for how long.

::

    [nightly]
    groups = ["edge"]            # or devices = […], or all = true
    budget = "30m"               # time on the device, per device and night; default: no limit
    time_limit = "6h"            # wall time that a set may take on a device
    order = "stale"              # the default; or "listed"
    max_age = "7d"               # a set that is older needs attention
    day_begins = "12:00"         # runs before this time belong to the previous evening's night

    [[set]]
    name = "vision"
    networks = ["builtin:resnet50", "models/detector.onnx"]   # paths are relative to this file

Every other key has a default.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from pathlib import Path

from harness.fleet.cluster.access import TlsFiles
from harness.network.model_references import BUILTIN_NAMES, BUILTIN_PREFIX
from harness.nightly.plan_file import DaskSettings, NightSettings, SetSettings, read_plan_file
from harness.settings import BUILTIN_SPACES, invalid_key
from harness.text import did_you_mean

PLAN_NAME = "nightly.toml"
_NETWORKS = tuple(BUILTIN_PREFIX + name for name in BUILTIN_NAMES)


@dataclass(frozen=True)
class LayerSet:
    """Networks, or a space of layers, that are measured together on some devices.

    `settings` are the file's, with absolute paths and the devices of the set. `digest` is a hash of
    what is measured: the content of the files and the number of runs. A set with another digest was never measured.
    """

    settings: SetSettings
    digest: str

    @property
    def name(self) -> str:
        """The name in the file."""
        return self.settings.name

    @property
    def label(self) -> str:
        """Name and digest, as they appear in the names of jobs."""
        return f"{self.name}-{self.digest}"


@dataclass(frozen=True)
class NightPlan:
    """What a lab measures every night.

    `scheduler` is the address of a Dask scheduler, None to run jobs in this process.
    """

    path: Path
    sets: tuple[LayerSet, ...]
    settings: NightSettings = field(default_factory=NightSettings)
    scheduler: str | None = None
    tls: TlsFiles | None = None

    def night(self, now: datetime) -> date:
        """Return the night that a moment of local time belongs to: the date on which the night began."""
        return now.date() if now.time() >= self.settings.day_begins else now.date() - timedelta(days=1)


def load_plan(path: Path) -> NightPlan:
    """Read and check a plan and the files that it names; raise ConfigurationError, which names the key."""
    file = read_plan_file(path)
    night = file.nightly
    sets_given = [(f"set {one.name!r}: all", one) for one in file.set]
    tables: list[tuple[str, NightSettings | SetSettings]] = [("nightly.all", night), *sets_given]
    for key, table in tables:
        if table.all and (table.devices or table.groups):
            raise invalid_key(path, key, "cannot be combined with devices or groups", "Give one of them")
    name, times = Counter(one.name for one in file.set).most_common(1)[0]
    if times > 1:
        raise invalid_key(path, f"set {name!r}: name", "is given twice", "Give every set its own name")
    sets = tuple(_layer_set(path, one, night) for one in file.set)
    if not isinstance(night.engine, DaskSettings):
        return NightPlan(path, sets, night)
    return NightPlan(path, sets, night, night.engine.dask, _tls(path, night.engine))


def _tls(path: Path, engine: DaskSettings) -> TlsFiles | None:
    given = engine.model_dump(exclude={"dask"}, exclude_none=True)
    if not given:
        return None
    files = []
    for name in ("tls_ca_file", "tls_cert", "tls_key"):
        key = f"nightly.engine.{name}"
        if name not in given:
            raise invalid_key(path, key, "is missing", "TLS needs all three files")
        files.append(Path(_file(path, key, given[name])))
    return TlsFiles(*files)


def _layer_set(path: Path, settings: SetSettings, night: NightSettings) -> LayerSet:
    key = f"set {settings.name!r}"
    if bool(settings.networks) == (settings.space is not None):
        raise invalid_key(path, key, "must have either networks or a space", 'Give networks = ["builtin:resnet50"]')
    if settings.space is not None and settings.dims:
        raise invalid_key(
            path, f"{key}: dims", "is valid only with networks", "Remove it: a space file lists all sizes"
        )
    selection = settings if settings.devices or settings.groups or settings.all else night
    if not (selection.devices or selection.groups or selection.all):
        raise invalid_key(path, key, "has no device", "Give devices, groups or all = true, here or under [nightly]")
    networks = tuple(_reference(path, f"{key}: networks", text, _NETWORKS) for text in settings.networks)
    space = None if settings.space is None else _space(path, f"{key}: space", settings.space)
    runs = None if settings.runs == "auto" else settings.runs
    content = [[_content(text) for text in networks], space and _content(space), dict(settings.dims), runs]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
    chosen = {"devices": selection.devices, "groups": selection.groups, "all": selection.all}
    return LayerSet(settings.model_copy(update={"networks": networks, "space": space, **chosen}), digest)


def _reference(path: Path, key: str, text: str, builtin: Sequence[str]) -> str:
    """Return the name of a built-in network or space, or the absolute path of a file that exists."""
    if not text.startswith(BUILTIN_PREFIX):
        return _file(path, key, text)
    if text not in builtin:
        step = did_you_mean(text, builtin, "Built-in networks")
        raise invalid_key(path, key, f"names {text[:60]!r}, which is not built in", step)
    return text


def _space(path: Path, key: str, text: str) -> str:
    from harness.space.space import load_space

    found = _reference(path, key, text, BUILTIN_SPACES)
    load_space(found)
    return found


def _file(path: Path, key: str, text: str) -> str:
    """Return the absolute path of a file that is named relative to the plan."""
    try:
        found = (path.parent / Path(text).expanduser()).absolute()
        is_file = found.is_file()
    except (OSError, ValueError, RuntimeError) as error:
        raise invalid_key(path, key, f"is wrong: {error}", "Correct the path") from error
    if not is_file:
        raise invalid_key(path, key, f"names {text[:200]!r}, which is not a file", "Paths are relative to the plan")
    return str(found)


def _content(reference: str) -> str:
    """Return the identity of a reference: a built-in name itself, or the hash of a file."""
    if reference.startswith(BUILTIN_PREFIX):
        return reference
    with open(reference, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
