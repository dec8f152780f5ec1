"""The plan of a lab's nights: which sets of layers to measure on which devices, and for how long.

::

    [nightly]
    groups = ["edge"]            # or devices = […], or all = true
    budget = "30m"               # time on the device, per device and night; default: no limit
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
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from pathlib import Path

from harness.network.models import BUILTIN_NAMES, BUILTIN_PREFIX
from harness.nightly.plan_file import DaskSettings, NightSettings, SetSettings, read_plan_file
from harness.settings import invalid_key
from harness.text import did_you_mean

PLAN_NAME = "nightly.toml"


@dataclass(frozen=True)
class LayerSet:
    """Networks, or a space of layers, that are measured together on some devices.

    `settings` are those of the file with absolute paths and with the devices that the set is for. `digest` is a hash of
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

    `scheduler` is the address of a Dask scheduler, None to run jobs in this process. `tls` holds the paths of the CA
    file, the certificate and its key if the scheduler requires TLS.
    """

    path: Path
    sets: tuple[LayerSet, ...]
    settings: NightSettings = field(default_factory=NightSettings)
    scheduler: str | None = None
    tls: tuple[Path, Path, Path] | None = None

    def night(self, now: datetime) -> date:
        """Return the night that a moment of local time belongs to: the date on which the night began."""
        return now.date() if now.time() >= self.settings.day_begins else now.date() - timedelta(days=1)


def load_plan(path: Path) -> NightPlan:
    """Read and check a plan and the files that it names; raise ConfigurationError, which names the key."""
    file = read_plan_file(path)
    night = file.nightly
    if night.all and (night.devices or night.groups):
        raise invalid_key(path, "nightly.all", "is given beside devices or groups", "Give one of them")
    names = [one.name for one in file.set]
    for name in names:
        if names.count(name) > 1:
            raise invalid_key(path, f"set {name!r}: name", "is given twice", "Give every set its own name")
    sets = tuple(_layer_set(path, one, night) for one in file.set)
    if not isinstance(night.engine, DaskSettings):
        return NightPlan(path, sets, night)
    return NightPlan(path, sets, night, night.engine.dask, _tls(path, night.engine))


def _tls(path: Path, engine: DaskSettings) -> tuple[Path, Path, Path] | None:
    given = {"tls_ca_file": engine.tls_ca_file, "tls_cert": engine.tls_cert, "tls_key": engine.tls_key}
    if not any(given.values()):
        return None
    for key, text in given.items():
        if text is None:
            raise invalid_key(
                path, f"nightly.engine.{key}", "is missing beside the others", "TLS needs all three files"
            )
    ca_file, certificate, key_file = (
        Path(_file(path, f"nightly.engine.{key}", text)) for key, text in given.items() if text
    )
    return ca_file, certificate, key_file


def _layer_set(path: Path, one: SetSettings, night: NightSettings) -> LayerSet:
    key = f"set {one.name!r}"
    if bool(one.networks) == (one.space is not None):
        raise invalid_key(path, key, "must have either networks or a space", 'Give networks = ["builtin:resnet50"]')
    if one.space is not None and one.dims:
        raise invalid_key(path, f"{key}: dims", "goes with networks", "Remove it: a space file lists all sizes")
    selection = one if one.devices or one.groups or one.all else night
    if not (selection.devices or selection.groups or selection.all):
        raise invalid_key(path, key, "is for no device", "Give devices, groups or all = true, here or under [nightly]")
    if selection.all and (selection.devices or selection.groups):
        raise invalid_key(path, f"{key}: all", "is given beside devices or groups", "Give one of them")
    networks = tuple(_network(path, f"{key}: networks", text) for text in one.networks)
    space = None if one.space is None else _space(path, f"{key}: space", one.space)
    runs = None if one.runs == "auto" else one.runs
    content = [[_content(text) for text in networks], space and _content(space), dict(one.dims), runs]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
    chosen = {"devices": selection.devices, "groups": selection.groups, "all": selection.all}
    return LayerSet(one.model_copy(update={"networks": networks, "space": space, **chosen}), digest)


def _network(path: Path, key: str, text: str) -> str:
    """Return the name of a built-in network, or the absolute path of a file that exists."""
    if not text.startswith(BUILTIN_PREFIX):
        return _file(path, key, text)
    if text.removeprefix(BUILTIN_PREFIX) not in BUILTIN_NAMES:
        step = did_you_mean(text, (BUILTIN_PREFIX + one for one in BUILTIN_NAMES), "Built-in networks")
        raise invalid_key(path, key, f"names {text[:60]!r}, which is not built in", step)
    return text


def _space(path: Path, key: str, text: str) -> str:
    from harness.space.space import builtin_spaces, load_space

    if text.startswith(BUILTIN_PREFIX) and text not in builtin_spaces():
        step = f"Built-in spaces: {', '.join(builtin_spaces())}"
        raise invalid_key(path, key, f"names {text[:60]!r}, which is not built in", step)
    found = text if text.startswith(BUILTIN_PREFIX) else _file(path, key, text)
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
    """Return what a reference stands for: a built-in name itself, or the hash of a file."""
    if reference.startswith(BUILTIN_PREFIX):
        return reference
    with open(reference, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
