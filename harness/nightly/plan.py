"""The plan of a lab's nights: which sets of layers on which devices, and for how long.

::

    [nightly]
    groups = ["edge"]            # or devices = […], or all = true
    budget = "30m"               # time on a device, per device and night; none: whatever the sets take
    order = "stale"              # this is the default; or "listed"
    max_age = "7d"               # a set left out for longer is told as something that needs a hand
    day_begins = "12:00"         # what runs before that belongs to the evening before

    [[set]]
    name = "vision"
    networks = ["builtin:resnet50", "models/detector.onnx"]   # paths are relative to this file

A plan may say no more than that; every other key has a default.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Literal

from harness.network.models import BUILTIN_NAMES, BUILTIN_PREFIX
from harness.nightly.planfile import DaskForm, NightlyForm, PlanForm, SetForm, read_plan_file
from harness.settings import SLOWDOWN_THRESHOLD, invalid_key

PLAN_FILE = "nightly.toml"


@dataclass(frozen=True)
class LayerSet:
    """Networks, or a space of layers, that are measured together on some devices.

    `digest` tells what is measured, by the content of the files and how often: a set that changes is another one, which
    nobody has measured yet. `weight` multiplies its age where the oldest go first.
    """

    name: str
    digest: str
    networks: tuple[str, ...] = ()
    space: str | None = None
    devices: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    everything: bool = False
    runs: int | None = None
    budget_s: float | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    weight: float = 1.0

    @property
    def label(self) -> str:
        """Name and digest: how a job says which set it is of."""
        return f"{self.name}-{self.digest}"


@dataclass(frozen=True)
class NightPlan:
    """What a lab measures every night.

    `budget_s` is time on the device, per device and night. `keep` earlier nights are compared with, `threshold` is the
    smallest relative change that counts, `retries` how often a job is tried again at the end of the night.
    `scheduler` is the address of a Dask scheduler, None for threads of this process; `tls` the files of the authority,
    of the certificate and of its key where that scheduler asks for them.
    """

    path: Path
    sets: tuple[LayerSet, ...]
    budget_s: float | None = None
    order: Literal["stale", "listed"] = "stale"
    max_age_s: float = 7 * 86400.0
    day_begins: time = time(12)
    keep: int = 14
    threshold: float = SLOWDOWN_THRESHOLD
    scheduler: str | None = None
    tls: tuple[Path, Path, Path] | None = None
    retries: int = 1

    def night(self, now: datetime) -> date:
        """The night that a moment of local time belongs to: the date on which it began."""
        return now.date() if now.time() >= self.day_begins else now.date() - timedelta(days=1)


def load_plan(path: Path) -> NightPlan:
    """Reads and checks a plan with the files that it names; raises ConfigurationError, which names the key."""
    return _plan(path, read_plan_file(path))


def _plan(path: Path, file: PlanForm) -> NightPlan:
    given = file.nightly
    if given.all and (given.devices or given.groups):
        raise invalid_key(path, "nightly.all", "is given beside devices or groups", "Give the one or the other")
    sets: list[LayerSet] = []
    for one in file.set:
        if any(one.name == other.name for other in sets):
            raise invalid_key(path, f"set {one.name!r}: name", "is given twice", "Give every set a name of its own")
        sets.append(_layer_set(path, one, given))
    return NightPlan(
        path=path,
        sets=tuple(sets),
        budget_s=given.budget,
        order=given.order,
        max_age_s=given.max_age,
        day_begins=given.day_begins,
        keep=given.keep,
        threshold=given.threshold,
        scheduler=given.engine.dask if isinstance(given.engine, DaskForm) else None,
        tls=_tls(path, given.engine) if isinstance(given.engine, DaskForm) else None,
        retries=given.retries,
    )


def _tls(path: Path, engine: DaskForm) -> tuple[Path, Path, Path] | None:
    given = {"tls_ca_file": engine.tls_ca_file, "tls_cert": engine.tls_cert, "tls_key": engine.tls_key}
    if not any(given.values()):
        return None
    for key, text in given.items():
        if text is None:
            raise invalid_key(
                path, f"nightly.engine.{key}", "is missing beside the others", "TLS needs all three files"
            )
    authority, certificate, key_file = (
        Path(_file(path, f"nightly.engine.{key}", text)) for key, text in given.items() if text
    )
    return authority, certificate, key_file


def _layer_set(path: Path, one: SetForm, plan: NightlyForm) -> LayerSet:
    key = f"set {one.name!r}"
    if bool(one.networks) == (one.space is not None):
        raise invalid_key(path, key, "must have either networks or a space", 'Give networks = ["builtin:resnet50"]')
    if one.space is not None and one.dims:
        raise invalid_key(path, f"{key}: dims", "goes with networks", "A space says all sizes itself")
    own = one if one.devices or one.groups or one.all else plan
    if not (own.devices or own.groups or own.all):
        step = "Give devices, groups or all = true, here or under [nightly]"
        raise invalid_key(path, key, "is for no device", step)
    if own.all and (own.devices or own.groups):
        raise invalid_key(path, f"{key}: all", "is given beside devices or groups", "Give the one or the other")
    networks = tuple(_reference(path, f"{key}: networks", text) for text in one.networks)
    space = None if one.space is None else _space(path, f"{key}: space", one.space)
    runs = None if one.runs == "auto" else one.runs
    content = [[_content(text) for text in networks], space and _content(space), dict(one.dims), runs]
    return LayerSet(
        name=one.name,
        digest=hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8],
        networks=networks,
        space=space,
        devices=own.devices,
        groups=own.groups,
        everything=own.all,
        runs=runs,
        budget_s=one.budget,
        dims=dict(one.dims),
        weight=one.weight,
    )


def _reference(path: Path, key: str, text: str) -> str:
    """A built-in network, or the absolute path of a file that is there."""
    if not text.startswith(BUILTIN_PREFIX):
        return _file(path, key, text)
    name = text.removeprefix(BUILTIN_PREFIX)
    if name not in BUILTIN_NAMES:
        near = difflib.get_close_matches(name, BUILTIN_NAMES, n=1)
        step = f"Did you mean {BUILTIN_PREFIX}{near[0]}?" if near else f"Built in are: {', '.join(BUILTIN_NAMES)}"
        raise invalid_key(path, key, f"names {text[:60]!r}, which is not built in", step)
    return text


def _space(path: Path, key: str, text: str) -> str:
    from harness.space.space import builtin_spaces, load_space

    if text.startswith(BUILTIN_PREFIX) and text not in builtin_spaces():
        raise invalid_key(path, key, f"names {text[:60]!r}", f"Built in are: {', '.join(builtin_spaces())}")
    found = text if text.startswith(BUILTIN_PREFIX) else _file(path, key, text)
    load_space(found)
    return found


def _file(path: Path, key: str, text: str) -> str:
    """A path relative to the plan, made absolute."""
    try:
        found = (path.parent / Path(text).expanduser()).absolute()
        is_file = found.is_file()
    except (OSError, ValueError, RuntimeError) as error:
        raise invalid_key(path, key, f"is wrong: {error}", "Correct the path") from error
    if not is_file:
        raise invalid_key(path, key, f"names {text[:200]!r}, which is not a file", "Paths are relative to the plan")
    return str(found)


def _content(reference: str) -> str:
    """What a reference stands for: its name where it is built in, else the hash of the file."""
    if reference.startswith(BUILTIN_PREFIX):
        return reference
    with open(reference, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
