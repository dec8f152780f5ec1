"""Check every reply of an agent, and turn its error frames into errors of harness."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from device_agents.backends.onnx_bytes import fields
from device_agents.messages import TrueLayer, TrueOverhead, Truth
from device_agents.resource_errors import is_out_of_memory
from harness.errors import BackendError, DeviceBusy, DeviceError, LeaseLost, LinkLost, ProtocolError, WorkerDied
from harness.network.documents import values_in
from harness.samples import Clock, Sample
from harness.strict_model import StrictModel
from harness.text import last_part

RESUME = "Run the same command again; it resumes where it stopped"
_SPARE_BYTES = 1 << 20
_BYTES_PER_BYTE = 8
"""A runtime adds names, types and attributes to the nodes of the model, but no weights."""
_SPARE_PARTS = 10_000
_PARTS_PER_BYTE = 2
_WITHIN: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph"},
    "graph": {1: "node", 5: "other", 11: "other", 12: "other", 13: "other", 14: "other"},
    "node": {5: "attribute"},
    "attribute": {5: "other", 6: "graph", 10: "other", 11: "graph"},
}
"""The fields of an ONNX message that hold messages; `other` ones are not followed but counted by their size."""
_OTHER_BYTES = 4
_DEEPEST = 32


@dataclass(frozen=True)
class Visit:
    """One visit of a probe: `warmup` runs that are discarded, then `runs` that are kept."""

    probe: str
    warmup: int
    runs: int


@dataclass(frozen=True)
class Series:
    """The samples of one visit; `visit` is its index in the request."""

    visit: int
    probe: str
    samples: tuple[Sample, ...]


_Positive = Annotated[int, Field(gt=0, lt=2**63)]
_Count = Annotated[int, Field(ge=0, lt=2**63)]
_Word = Annotated[str, Field(pattern=r"\A[a-z0-9_.-]{1,64}\z")]
_MOST_NS = 86_400 * 10**9
_Time = Annotated[int, Field(gt=0, le=_MOST_NS)]
_CpuTime = Annotated[int, Field(ge=0, le=_MOST_NS)]
_Events = Annotated[int, Field(ge=0, lt=2**31)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_LONGEST_S = 86_400.0
_Seconds = Annotated[float, Field(ge=0, le=_LONGEST_S, allow_inf_nan=False)]
_ROUNDING = 1e-6
_SAMPLE_BYTES, _SERIES_BYTES = 128, 16 * 1024
_SAMPLE_MARKS, _SERIES_MARKS = 6, 80
"""Upper bounds of the JSON of one sample, four integers, and of the state and names in a frame of one visit: in bytes,
and in commas and opening brackets."""


class HelloReply(StrictModel):
    """Answer to hello; `clock` is None for a hello without a backend."""

    major: int
    minor: int
    agent_version: Annotated[str, Field(max_length=40)]
    backend: _Word | None
    fingerprint: Annotated[dict[_Word, Annotated[str, Field(max_length=1000)]], Field(max_length=64)]
    clock: Clock | None
    reveals: Annotated[list[_Word], Field(max_length=16)]


class LeaseReply(StrictModel):
    """Answer to lease."""

    token: _Positive
    ttl_s: _Finite


class StatusReply(StrictModel):
    """Answer to status."""

    state: Annotated[dict[_Word, _Finite], Field(max_length=64)]
    holder: str | None
    busy: bool


class PutReply(StrictModel):
    """Answer to put; `format` is that of the runtime graph in the payload, if any. For the others see `LoadReport`."""

    format: _Word | None = None
    compile_s: _Seconds | None = None
    first_run_s: _Seconds | None = None
    before_bytes: _Count | None = None
    loaded_bytes: _Count | None = None
    peak_bytes: _Count | None = None
    on_cpu: Annotated[list[Annotated[str, Field(max_length=100)]], Field(max_length=200)] = Field(default_factory=list)


class _TrueOverheadReply(StrictModel):
    a_s_per_byte: _Seconds
    b_s_per_byte: _Seconds
    c_s: _Seconds


class _TrueLayerReply(StrictModel):
    name: Annotated[str, Field(max_length=1000)]
    nodes: Annotated[tuple[Annotated[str, Field(max_length=1000)], ...], Field(max_length=10_000)]
    latency_s: _Seconds


class _TruthReply(StrictModel):
    probe: str
    overhead: _TrueOverheadReply | None
    makespan_s: Annotated[float, Field(gt=0, le=_LONGEST_S, allow_inf_nan=False)]
    layers: Annotated[tuple[_TrueLayerReply, ...], Field(min_length=1, max_length=100_000)]


class EmptyReply(StrictModel):
    """Answer without content."""


class EndReply(StrictModel):
    """The end record of a run."""

    count: _Count
    hash: Annotated[str, Field(pattern=r"\A[0-9a-f]{64}\z")]
    cancelled: bool


class ErrorReply(StrictModel):
    """An error frame."""

    code: str
    message: str
    holder: str | None = None
    ending: str | None = None
    tail: str | None = None
    major: int | None = None
    agent_version: str | None = None


class _SeriesReply(StrictModel):
    visit: _Count
    probe: str
    samples: list[tuple[_Time, _CpuTime | None, _Time | None, _Events]]


class _SamplesReply(StrictModel):
    series: Annotated[list[_SeriesReply], Field(min_length=1)]
    state: Annotated[dict[_Word, _Finite], Field(max_length=64)]


_Model = TypeVar("_Model", bound=StrictModel)


def check(model: type[_Model], content: Mapping[str, Any] | bytes, device: str) -> _Model:
    """Return the fields of a frame, or a payload of JSON, as the given reply; raises ProtocolError."""
    try:
        return model.model_validate_json(content) if isinstance(content, bytes) else model.model_validate(dict(content))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        why = f"{last_part('.'.join(map(str, first['loc'])), 80)}: {last_part(first['msg'], 200)}"
        raise ProtocolError(f"{device} sent a malformed reply", why=why) from None


class RunCheck:
    """Checks one run: each requested visit must arrive once, and the end record must confirm all samples.

    Every sample must have a time on the `clock` that the device announced. The payloads of a run together may take no
    more than `room_bytes`, what the requested samples need, and hold no more values than these.
    """

    def __init__(self, device: str, visits: Sequence[Visit], first: int, clock: str) -> None:
        self._device = device
        self._visits = visits
        self._first = first
        self._seen: set[int] = set()
        self._count = 0
        self._digest = hashlib.sha256()
        self._clock = clock
        self.room_bytes = sum(_SERIES_BYTES + 6 * len(v.probe) + _SAMPLE_BYTES * v.runs for v in visits)
        self._marks = sum(_SERIES_MARKS + 3 * len(v.probe) + _SAMPLE_MARKS * v.runs for v in visits)

    def samples(self, payload: bytes) -> tuple[tuple[Series, ...], Mapping[str, float]]:
        """Return the series and the device state of one samples frame; raises ProtocolError."""
        self.room_bytes -= len(payload)
        # Before parsing: what a parser builds can take a hundred times the bytes of the text.
        self._marks -= values_in(payload)
        if self.room_bytes < 0 or self._marks < 0:
            raise self._refused("it sent more bytes or values than the requested samples need")
        reply = check(_SamplesReply, payload, self._device)
        self._digest.update(payload)
        return tuple(self._series(series) for series in reply.series), reply.state

    def end(self, reply: EndReply, cancel_sent: bool) -> None:
        """Compare the end record with the received samples; raises ProtocolError."""
        if reply.count == self._count and reply.hash != self._digest.hexdigest():
            raise self._refused("the end record has another hash than the samples that arrived")
        if reply.count != self._count:
            raise self._refused(f"the end record confirms {reply.count} samples, {self._count} arrived")
        if reply.cancelled and not cancel_sent:
            raise self._refused("it cancelled a run without a request")
        if not reply.cancelled and len(self._seen) != len(self._visits):
            raise self._refused(f"{len(self._visits) - len(self._seen)} visits are missing")

    def _series(self, reply: _SeriesReply) -> Series:
        if reply.visit >= len(self._visits) or reply.visit in self._seen:
            raise self._refused(f"visit {reply.visit} was not requested, or arrived twice")
        visit = self._visits[reply.visit]
        if reply.probe != visit.probe:
            raise self._refused(f"visit {reply.visit} is of another probe: {last_part(reply.probe, 80)}")
        if len(reply.samples) != visit.runs:
            raise self._refused(f"visit {reply.visit} has {len(reply.samples)} samples instead of {visit.runs}")
        at = {"wall": 0, "cpu": 1, "device": 2}[self._clock]
        if not all(sample[at] for sample in reply.samples):
            raise self._refused(f"visit {reply.visit} has a sample without a time on the {self._clock} clock")
        self._seen.add(reply.visit)
        self._count += visit.runs
        samples = tuple(Sample(*sample) for sample in reply.samples)
        return Series(self._first + reply.visit, reply.probe, samples)

    def _refused(self, why: str) -> ProtocolError:
        return ProtocolError(f"{self._device} sent samples that do not match the request", why=why)


def read_truth(payload: bytes, probe: str, device: str) -> Truth:
    """Parse the payload of an oracle's answer; raises ProtocolError."""
    reply = check(_TruthReply, payload, device)
    layers = tuple(TrueLayer(last_part(layer.name, 200), layer.nodes, layer.latency_s) for layer in reply.layers)
    sum_s = sum(layer.latency_s for layer in layers)
    if reply.probe != probe:
        raise ProtocolError(f"The oracle of {device} answered for another probe: {last_part(reply.probe, 80)}")
    if abs(sum_s - reply.makespan_s) > _ROUNDING * reply.makespan_s:
        why = f"They add up to {sum_s:.9g} s; the device reports {reply.makespan_s:.9g} s"
        raise ProtocolError(f"The oracle of {device} reported layers that do not add up to its time", why=why)
    overhead = None if reply.overhead is None else TrueOverhead(**reply.overhead.model_dump())
    return Truth(overhead, reply.makespan_s, layers)


def agent_error(device: str, fields: Mapping[str, Any]) -> DeviceError:
    """Return the error for an error frame."""
    reply = check(ErrorReply, fields, device)
    look = f"`harness devices check {device}`"
    holder = last_part(reply.holder or "an unknown holder", 120)
    version = last_part(reply.agent_version or "unknown", 40)
    kinds: dict[str, tuple[type[DeviceError], str, str]] = {
        "busy": (
            DeviceBusy,
            f"{device} is in use by {holder}",
            f"Wait until it is free, for example with `--wait 10m`; {look} shows its holder",
        ),
        "lease-lost": (LeaseLost, f"The lease of {device} is lost", RESUME),
        "worker-died": (WorkerDied, f"The worker process on {device} failed", RESUME),
        "worker-silent": (WorkerDied, f"The worker process on {device} failed", RESUME),
        "backend": (BackendError, f"The runtime on {device} refused", f"Find what is missing with {look}"),
        "system": (
            DeviceError,
            f"The operating system of {device} refused a request of the agent",
            f"Free disk or memory on the device, or correct permissions; see {look}",
        ),
        "idle": (LinkLost, f"The agent on {device} gave up waiting", RESUME),
        "version": (
            ProtocolError,
            f"Agent version mismatch: the agent on {device} has version {version}",
            f"Install the agent of this version with `harness agent install {device}`",
        ),
    }
    unknown = (ProtocolError, f"The agent on {device} reports {last_part(reply.code, 40)}", "")
    kind, what, next_step = kinds.get(reply.code, unknown)
    printed = f". Output: {last_part(reply.tail)}" if reply.tail else ""
    why = "" if reply.code == "busy" else last_part(reply.message) + printed
    if kind in (WorkerDied, BackendError) and is_out_of_memory(why):
        next_step = f"Free memory on {device} or measure smaller networks, then run the same command again; it resumes"
    return kind(what, why=why, next_step=next_step)


def graph_limit_bytes(model: bytes) -> int:
    """Return the size of the largest graph that a runtime may report for a model without its weights."""
    return _SPARE_BYTES + _BYTES_PER_BYTE * len(model)


def check_graph_size(format_name: str, content: bytes, model: bytes, device: str) -> None:
    """Raise ProtocolError if a reported graph has more parts than the model explains; `content` is not parsed for that.

    A parser needs a hundred times the bytes of an empty part.
    """
    most = _SPARE_PARTS + _PARTS_PER_BYTE * len(model)
    try:
        if format_name == "onnxruntime":
            parts = 0
            for size in _parts(memoryview(content), "model", _DEEPEST):
                parts += size
                if parts > most:
                    break
        else:
            parts = values_in(content)
    except ValueError as error:
        raise ProtocolError(f"{device} reported a malformed graph", why=str(error)) from None
    if parts > most:
        why = f"It has more than {most:,} parts; the model that was sent has {len(model):,} bytes"
        raise ProtocolError(f"{device} reported a graph that is too large", why=why)


def _parts(message: memoryview, kind: str, deepest: int) -> Iterator[int]:
    """Yield the parts of a message, as numbers of parts."""
    if not deepest:
        raise ValueError("graphs are nested too deeply")
    for number, value, _ in fields(message):
        yield 1
        inner = _WITHIN[kind].get(number)
        if inner == "other":
            yield len(value) // _OTHER_BYTES
        elif inner:
            yield from _parts(value, inner, deepest - 1)
