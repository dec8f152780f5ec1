"""A job as it travels to another host, and its outcome as it comes back: JSON, and files as bytes."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from harness import errors
from harness.errors import ConfigurationError, EngineError, HarnessError, InputError, UnsupportedNetwork, reason_of
from harness.files import read_file, write_whole
from harness.fleet.cluster.access import VERSIONS
from harness.fleet.execution import Patience
from harness.fleet.job import Failure, Job, JobOutcome
from harness.network.models import BUILTIN_PREFIX
from harness.network.read import read_model
from harness.text import printable

MAX_FILES_BYTES = 256 << 20
"""What the files of one job may take together: the scheduler keeps them in memory until the job is done."""
_MAX_OUTCOME = 16 << 20
_MAX_NAME_BYTES = 200
_JOB = TypeAdapter(Job)
_PATIENCE = TypeAdapter(Patience)
_REASONS = TypeAdapter(dict[str, str])
_OUTCOME = TypeAdapter(JobOutcome)


@dataclass(frozen=True)
class Earlier:
    """The newest watch of what a job measures: its job's name, and the extract with that campaign alone."""

    job: str
    extract: bytes


@dataclass(frozen=True)
class Order:
    """A named job as a worker gets it.

    `held_out` are campaigns of the job that must not be gone on with: when they began, with the reason. `earlier` is
    there where the job watches and was watched before.
    """

    job: Job
    patience: Patience
    held_out: Mapping[str, str] = field(default_factory=dict)
    earlier: Earlier | None = None


def read_files(job: Job) -> dict[str, bytes]:
    """The files that a job names, by the name it gives them; raises InputError for one that cannot travel.

    Networks are checked here, so that a broken one is told before any device is asked.
    """
    files = {one: _network(Path(one)) for one in job.models if not one.startswith(BUILTIN_PREFIX)}
    if job.space is not None and not job.space.startswith(BUILTIN_PREFIX):
        files[job.space] = _content(Path(job.space))
    size = sum(map(len, files.values()))
    if size > MAX_FILES_BYTES:
        why = f"They have {size:,} bytes; the limit is {MAX_FILES_BYTES:,}"
        step = "Make several jobs of it, or run it on the device's own host with the engine local"
        raise InputError(f"The files of a job for {job.device} are too large to travel", why=why, next_step=step)
    return files


def pack(order: Order, files: Mapping[str, bytes]) -> dict[str, Any]:
    """A job with its files, as plain data."""
    return {
        "versions": VERSIONS,
        "job": json.dumps(asdict(order.job)),
        "patience": json.dumps(asdict(order.patience)),
        "held_out": json.dumps(dict(order.held_out)),
        "earlier": order.earlier and (order.earlier.job, order.earlier.extract),
        "files": dict(files),
    }


def unpack(payload: Mapping[str, Any], folder: Path) -> Order:
    """The job with its files in `folder`, each under the hash of its content; raises EngineError."""
    try:
        job = _JOB.validate_python(json.loads(payload["job"]))
        patience = _PATIENCE.validate_python(json.loads(payload["patience"]))
        held_out = _REASONS.validate_python(json.loads(payload["held_out"]))
        earlier = payload["earlier"] and Earlier(str(payload["earlier"][0]), bytes(payload["earlier"][1]))
        paths = {
            reference: _store(folder, reference, bytes(content)) for reference, content in payload["files"].items()
        }
    except (ValidationError, ValueError, TypeError, KeyError) as error:
        raise EngineError("What the scheduler handed on is no job", why=printable(str(error), 300)) from error
    except OSError as error:
        what = f"The files of a job cannot be written to {folder}"
        raise ConfigurationError(what, why=str(error), next_step="Free space on the disk") from error
    # Else a path of the controller would be looked for here.
    wanted = (*job.models, *((job.space,) if job.space is not None else ()))
    if any(one not in paths and not one.startswith(BUILTIN_PREFIX) for one in wanted):
        raise EngineError("What the scheduler handed on is no job", why="It names a file that did not come along")
    models = tuple(paths.get(reference, reference) for reference in job.models)
    space = None if job.space is None else paths.get(job.space, job.space)
    return Order(replace(job, models=models, space=space), patience, held_out, earlier)


def write_outcome(outcome: JobOutcome) -> str:
    """An outcome as JSON."""
    return json.dumps(asdict(outcome))


def read_outcome(text: str, job: Job, campaigns: Mapping[int, int]) -> JobOutcome:
    """The outcome of our job with the numbers that its campaigns have here; raises EngineError where it is none."""
    try:
        if len(text) > _MAX_OUTCOME:
            raise ValueError(f"It has {len(text):,} characters")
        outcome = _OUTCOME.validate_python(json.loads(text))
        _check(outcome, job.device)
        result = outcome.result and replace(outcome.result, campaign=campaigns[outcome.result.campaign])
        space = outcome.space and replace(
            outcome.space,
            campaigns=tuple(campaigns[number] for number in outcome.space.campaigns),
            result=replace(outcome.space.result, stopped=printable(outcome.space.result.stopped)),
        )
        watch = None if outcome.watch is None else campaigns[outcome.watch]
        failure = outcome.failure and _clean(outcome.failure)
        if (result is None) == (failure is None):
            raise ValueError("It is neither a result nor a failure")
    except (ValidationError, ValueError, TypeError, KeyError, RecursionError) as error:
        why = f"{type(error).__name__}: {printable(str(error), 300)}"
        raise EngineError(f"The worker's answer to {printable(job.name, 80)!r} is none", why=why) from error
    notes = tuple(printable(note) for note in outcome.notes)
    health = outcome.health and replace(outcome.health, device=job.device, reason=printable(outcome.health.reason))
    fingerprint = {printable(key): printable(value) for key, value in outcome.fingerprint.items()}
    return replace(
        outcome, job=job, result=result, space=space, watch=watch, failure=failure, notes=notes, health=health,
        fingerprint=fingerprint,
    )  # fmt: skip


def _check(outcome: JobOutcome, device: str) -> None:
    """Raises ValueError where numbers are not finite, times are none, or something is of another device."""
    if not _is_finite(asdict(outcome)):
        raise ValueError("It has a number that is not finite")
    since = outcome.health.since if outcome.health else ""
    for text in (outcome.started, outcome.ended, *([since] if since else [])):
        if datetime.fromisoformat(text).tzinfo is None or not (text.isascii() and text.isprintable()):
            raise ValueError(f"{printable(text, 80)} is no time")
    if any(one.device != device for one in (outcome.result, outcome.space) if one is not None):
        raise ValueError("It is of another device")


def _is_finite(value: object) -> bool:
    """Whether all numbers of plain data are."""
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _clean(failure: Failure) -> Failure:
    kind = getattr(errors, failure.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, HarnessError)):
        raise ValueError("Its failure is none of ours")
    return replace(
        failure,
        what=printable(failure.what),
        why=printable(failure.why),
        next_step=printable(failure.next_step),
        trace="\n".join(map(printable, failure.trace.splitlines())),
    )


def _network(path: Path) -> bytes:
    from onnx import TensorProto

    known = read_model(path)
    if any(tensor.data_location == TensorProto.EXTERNAL for tensor in known.model.graph.initializer):
        what = f"{printable(str(path), 200)} cannot travel to another host"
        step = "Save it as one file: onnx.save(onnx.load(PATH), NEW_PATH)"
        raise UnsupportedNetwork(what, why="It keeps its weights in other files", next_step=step)
    return _content(path)


def _content(path: Path) -> bytes:
    try:
        return read_file(path, MAX_FILES_BYTES)
    except OSError as error:
        raise InputError(f"{printable(str(path), 200)} cannot be read", why=reason_of(error)) from error


def _store(folder: Path, reference: str, content: bytes) -> str:
    """Writes a file under the hash of its content and its own last name: results are told by that."""
    name = Path(reference).name
    if not name or name == ".." or "\0" in name or len(name.encode()) > _MAX_NAME_BYTES:
        raise ValueError(f"{reference[:80]!r} is no name of a file")
    home = folder / hashlib.sha256(content).hexdigest()
    home.mkdir(parents=True, exist_ok=True)
    write_whole(home / name, content)
    return str(home / name)
