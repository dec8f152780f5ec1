"""A named request packed for a worker on another host, and its outcome on the way back: JSON, and files as bytes."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from harness.errors import (
    ConfigurationError,
    EngineError,
    InputError,
    NetworkError,
    NetworksRefused,
    UnsupportedNetwork,
)
from harness.files import read_input, write_whole
from harness.fleet.cluster.access import VERSIONS
from harness.fleet.execution import WaitPolicy
from harness.fleet.profile_outcome import ProfileOutcome
from harness.measure.request import ProfileRequest
from harness.network.model_references import BUILTIN_PREFIX, ModelContent, ModelReference, shown
from harness.network.network_list import RefusedNetwork, check_refused
from harness.network.reading.limited_reading import has_external_data
from harness.text import is_time, printable

MAX_FILES_BYTES = 256 << 20
"""The most bytes of one request's files: the scheduler keeps them in memory until the request is done."""
_MAX_OUTCOME = 16 << 20
_MAX_NAME_BYTES = 200
_OUTCOME = TypeAdapter(ProfileOutcome)


@dataclass(frozen=True)
class WorkerJob:
    """A named request as a worker receives it.

    `held_out` lists campaigns that must not be continued: when they began, and why. `earlier` is the newest watch of
    the request's subject, if there is one: the name of its job, and the extract with only that campaign.
    """

    request: ProfileRequest
    wait: WaitPolicy
    held_out: Mapping[str, str] = field(default_factory=dict)
    earlier: tuple[str, bytes] | None = None


_JOB = TypeAdapter(WorkerJob)


@dataclass(frozen=True)
class DetachedRequest:
    """A request with references in place of networks in memory, and the files that it refers to by reference.

    `names` are the references as messages show them, by the places that workers keep the files at. `refused` are
    networks of the request that cannot be sent.
    """

    request: ProfileRequest
    files: Mapping[str, bytes]
    names: Mapping[str, str] = field(default_factory=dict)
    refused: tuple[RefusedNetwork, ...] = ()


def detach_models(request: ProfileRequest) -> DetachedRequest:
    """Return a request as it can be sent; networks are checked here, before any device is contacted.

    Raises InputError for files that cannot be sent, and a NetworkError if none of the networks can be used.
    """
    references: list[str] = []
    refused: list[RefusedNetwork] = []
    files: dict[str, bytes] = {}
    names: dict[str, str] = {}
    for model in request.models:
        try:
            reference, content = _detached(model)
        except NetworkError as error:
            refused.append(RefusedNetwork.of(shown(model), error))
            continue
        references.append(reference)
        if content is not None:
            files[reference] = content
            names[_place(reference, content)] = shown(model)
    check_refused(refused, len(references), strict=request.strict)
    if request.space is not None and not request.space.reference.startswith(BUILTIN_PREFIX):
        files[request.space.reference] = read_input(Path(request.space.reference), MAX_FILES_BYTES)
    size = sum(map(len, files.values()))
    if size > MAX_FILES_BYTES:
        why = f"They have {size:,} bytes; the limit is {MAX_FILES_BYTES:,}"
        step = "Split the request, or run it on the device's own host with the engine local"
        raise InputError(f"The files of a request for {request.device} are too large to send", why=why, next_step=step)
    return DetachedRequest(replace(request, models=tuple(references)), files, names, tuple(refused))


def _detached(model: ModelReference) -> tuple[str, bytes | None]:
    """The reference of a network in a request that is sent, and its file; None for a built-in network."""
    if isinstance(model, ModelContent):
        return f"memory/{hashlib.sha256(model.content).hexdigest()}/{model.name}.onnx", model.content
    return model, None if model.startswith(BUILTIN_PREFIX) else _network(Path(model))


def with_refusals(outcome: ProfileOutcome, sent: DetachedRequest) -> ProfileOutcome:
    """Return a worker's outcome with the networks that were not sent, and with our names of the files."""

    def named(text: str) -> str:
        for place, name in sent.names.items():
            text = re.sub(rf"(?m)^.*?{re.escape(place)}", name.replace("\\", r"\\"), text)
        return text

    result, failure = outcome.result, outcome.failure
    if result is not None:
        theirs = (
            replace(one, file=named(one.file), what=named(one.what), why=named(one.why))
            for one in result.refused_networks
        )
        result = replace(result, refused_networks=(*sent.refused, *theirs))
    if failure is not None and issubclass(failure.error_class, NetworkError):
        failure = replace(failure, what=named(failure.what), why=named(failure.why))
        if sent.refused:
            own = failure.why if failure.kind == NetworksRefused.__name__ else str(failure.error())
            why = "\n".join((*map(str, sent.refused), own))
            failure = replace(failure, kind=NetworksRefused.__name__, what="All networks are refused", why=why)
    return replace(outcome, result=result, failure=failure)


def pack(job: WorkerJob, files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return a job with its files as plain data."""
    return {"versions": VERSIONS, "job": asdict(job), "files": dict(files)}


def unpack(payload: Mapping[str, Any], folder: Path) -> WorkerJob:
    """Return the job, with its files in `folder`, each under the hash of its content; raises EngineError."""
    try:
        job = _JOB.validate_python(payload["job"])
        paths = {
            reference: _store(folder, reference, bytes(content)) for reference, content in payload["files"].items()
        }
        return replace(job, request=_with_paths(job.request, paths))
    except (ValidationError, ValueError, TypeError, KeyError) as error:
        raise EngineError("The scheduler sent an invalid job", why=printable(str(error), 300)) from error
    except OSError as error:
        what = f"The files of a job cannot be written to {folder}"
        raise ConfigurationError(what, why=str(error), next_step="Free space on the disk") from error


def _with_paths(request: ProfileRequest, paths: Mapping[str, str]) -> ProfileRequest:
    """The request with local paths; raises ValueError for a file that was not sent, and must not be read here."""

    def local(reference: object) -> str:
        if isinstance(reference, str) and (reference in paths or reference.startswith(BUILTIN_PREFIX)):
            return paths.get(reference, reference)
        raise ValueError("It names a file that was not sent")

    space = request.space and replace(request.space, reference=local(request.space.reference))
    return replace(request, models=tuple(map(local, request.models)), space=space)


def write_outcome(outcome: ProfileOutcome) -> str:
    """Return an outcome as JSON."""
    return json.dumps(asdict(outcome))


def read_outcome(text: str, request: ProfileRequest, campaigns: Mapping[int, int]) -> ProfileOutcome:
    """Read the outcome of a request, with the numbers of its campaigns translated; raises EngineError."""
    try:
        if len(text) > _MAX_OUTCOME:
            raise ValueError(f"It has {len(text):,} characters")
        given = json.loads(text)
        outcome = _OUTCOME.validate_json(json.dumps(_clean(given)), strict=True)
        _check(outcome, request.device)
        result = outcome.result and replace(outcome.result, campaign=campaigns[outcome.result.campaign])
        space = outcome.space and replace(
            outcome.space, campaigns=tuple(campaigns[number] for number in outcome.space.campaigns)
        )
        watch = None if outcome.watch is None else campaigns[outcome.watch]
        failure = outcome.failure
        if failure is not None:  # the only texts of several lines
            failure = replace(failure, trace=_lines(given["failure"]["trace"]))
            if failure.kind == NetworksRefused.__name__:
                failure = replace(failure, why=_lines(given["failure"]["why"]))
    except (ValidationError, ValueError, TypeError, KeyError, RecursionError) as error:
        why = f"{type(error).__name__}: {printable(str(error), 300)}"
        raise EngineError(f"The worker's answer to {printable(request.name, 80)!r} is invalid", why=why) from error
    health = outcome.health and replace(outcome.health, device=request.device)
    return replace(outcome, request=request, result=result, space=space, watch=watch, failure=failure, health=health)


def _lines(text: str) -> str:
    return "\n".join(map(printable, text.splitlines()))


def _clean(value: Any) -> Any:
    """Return plain data with printable text; raises ValueError for a number that is not finite."""
    if isinstance(value, dict):
        return {printable(key): _clean(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return list(map(_clean, value))
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("It has a number that is not finite")
    return printable(value) if isinstance(value, str) else value


def _check(outcome: ProfileOutcome, device: str) -> None:
    """Raise ValueError for invalid times, results of another device, and anything but one result or one failure."""
    since = outcome.health.since if outcome.health else ""
    for text in (outcome.started, outcome.ended, *([since] if since else [])):
        if not is_time(text):
            raise ValueError(f"{printable(text, 80)} is not a time")
    if any(one.device != device for one in (outcome.result, outcome.space) if one is not None):
        raise ValueError("It belongs to another device")
    if (outcome.result is None) == (outcome.failure is None):
        raise ValueError("It is neither a result nor a failure")
    refused = outcome.result.refused_networks if outcome.result else ()
    kinds = [one.error_class for one in (*refused, outcome.failure) if one is not None]
    if not all(issubclass(kind, NetworkError) for kind in kinds[: len(refused)]):
        raise ValueError("A network is refused for another reason than its file")


def _network(path: Path) -> bytes:
    if has_external_data(path):
        what = f"{printable(str(path), 200)} cannot be sent to another host"
        step = "Save it as one file: onnx.save(onnx.load(PATH), NEW_PATH)"
        raise UnsupportedNetwork(what, why="It keeps its weights in other files", next_step=step)
    return read_input(path, MAX_FILES_BYTES)


def _store(folder: Path, reference: str, content: bytes) -> str:
    """Write a file into a folder named by its hash, under its own name, which results carry."""
    name = Path(reference).name
    if not name or name == ".." or "\0" in name or len(name.encode()) > _MAX_NAME_BYTES:
        raise ValueError(f"{reference[:80]!r} is not a file name")
    path = folder / _place(reference, content)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)
    return str(path)


def _place(reference: str, content: bytes) -> str:
    """Where a worker keeps a file, below the folder of its jobs."""
    return f"{hashlib.sha256(content).hexdigest()}/{Path(reference).name}"
