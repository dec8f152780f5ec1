"""The description of a machine: units, memories, queues and the host beside it, read from TOML.

The keys of the file are the fields below, its tables the nested dataclasses; a file says all of them and nothing
else. `presets/` holds the machines that come along, each number with its source.

Times are kept in whole picoseconds, so that sums are exact and a faster clock or memory never makes a
command slower by rounding.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import reprlib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, cast, get_args, get_origin, get_type_hints

from device_agents.emulated_npu.emulator_errors import InvalidMachine
from device_agents.emulated_npu.unit_commands import DataType

Dataflow = Literal["dot-product", "weight-stationary", "output-stationary", "input-stationary"]
Packing = Literal["none", "row", "stride"]


@dataclass(frozen=True)
class Mfu:
    """The matrix unit: `rows` reduce, `columns` are output channels; rows x columns multiply-adds a cycle.

    `dataflow`: dot-product has no fill; the stationary ones follow SCALE-Sim's closed forms. `packing` (dot-product
    alone): what fills the rows: input channels (none), a row of the window (row: kernel width x channels), or
    channels x strides (stride, as NVDLA's sheet).
    """

    rows: int
    columns: int
    dataflow: Dataflow
    packing: Packing
    startup_cycles: int


@dataclass(frozen=True)
class Vfu:
    """The vector unit: `lanes` simple operations a cycle.

    A division or transcendental takes `special_cycles` of a lane.
    """

    lanes: int
    special_cycles: int
    startup_cycles: int


@dataclass(frozen=True)
class Memory:
    """A memory off the core: DDR, or the last-level cache (0 bytes: there is none)."""

    bytes: int
    bytes_per_s: float
    latency_ns: float
    burst_bytes: int


@dataclass(frozen=True)
class Interconnect:
    """An interconnect that all who send over it share (0 bytes/s: there is none)."""

    bytes_per_s: float
    latency_ns: float


@dataclass(frozen=True)
class Cores:
    """How many cores there are (S5.1): `chips` chips of `per_chip` cores each, numbered through all chips.

    `link` joins the cores of one chip; `chip_link` is the way out of each chip. Each chip has an LLC and a DDR.
    """

    per_chip: int
    chips: int
    link: Interconnect
    chip_link: Interconnect

    @property
    def count(self) -> int:
        """Cores on all chips."""
        return self.per_chip * self.chips

    def chip_of(self, core: int) -> int:
        """The chip that a core lies on."""
        return core // self.per_chip


@dataclass(frozen=True)
class Noise:
    """What disturbs the host: log-normal jitter, a slow drift, rare spikes and throttling.

    Jitter, drift and spike probability are fractions; from `throttle_after_s` on everything takes
    `throttle_slowdown` times as long (1: no throttling).
    """

    jitter: float
    drift: float
    drift_period_s: float
    spike_probability: float
    spike_s: float
    throttle_after_s: float
    throttle_slowdown: float


@dataclass(frozen=True)
class Host:
    """The processor that drives the NPU: what an inference costs beside the NPU's own work (S1.3)."""

    preprocess_s_per_byte: float
    postprocess_s_per_byte: float
    dma_bytes_per_s: float
    dma_setup_s: float
    driver_s: float
    noise: Noise


@dataclass(frozen=True)
class Machine:
    """A core, how many there are, and the memories of a chip.

    With `shared_buffer` NB and SB are one SRAM of `nb_bytes`, split by the compiler. The halo buffer is carved out of
    NB; `halo_bytes` is the most that may be. Buffers, units and queues are each core's own, `llc` and `ddr` are shared
    by the cores of a chip.
    """

    name: str
    clock_hz: int
    data_type: DataType
    mfu: Mfu
    vfu: Vfu
    nb_bytes: int
    sb_bytes: int
    shared_buffer: bool
    halo_bytes: int
    llc: Memory
    ddr: Memory
    io_queue_depth: int
    cp_queue_depth: int
    issue_cycles: int
    cores: Cores
    host: Host

    @property
    def digest(self) -> str:
        """SHA-256 (hexadecimal) of every field but the name: equal machines have equal digests, however written."""
        canonical = dataclasses.asdict(self)
        del canonical["name"]
        canonical["data_type"] = self.data_type.name.lower()
        return hashlib.sha256(json.dumps(canonical, sort_keys=True).encode()).hexdigest()


_MAX_FILE_BYTES = 65_536
_DATA_TYPES = {kind.name.lower(): kind for kind in (DataType.FLOAT32, DataType.FLOAT16, DataType.INT8)}
_MAX_BYTES = 2**40
_MAX_CYCLES = 1_000_000
_LONGEST_INTEGER_BITS = 64
MAX_CORES = 65_536

# The lowest and highest value of every number. The limits above catch a slip of the unit and keep sums of
# picoseconds and addresses within 64 bits.
_LIMITS: Mapping[str, tuple[float, float]] = {
    "clock_hz": (1_000, 10**12),
    "mfu.rows": (1, 65_536),
    "mfu.columns": (1, 65_536),
    "mfu.startup_cycles": (0, _MAX_CYCLES),
    "vfu.lanes": (1, 2**24),
    "vfu.special_cycles": (1, _MAX_CYCLES),
    "vfu.startup_cycles": (0, _MAX_CYCLES),
    "nb_bytes": (1, _MAX_BYTES),
    "sb_bytes": (1, _MAX_BYTES),
    "halo_bytes": (0, _MAX_BYTES),
    "llc.bytes": (0, _MAX_BYTES),
    "llc.bytes_per_s": (0, 1e18),
    "llc.latency_ns": (0, 1e6),
    "llc.burst_bytes": (0, 65_536),
    "ddr.bytes": (1, _MAX_BYTES),
    "ddr.bytes_per_s": (1, 1e18),
    "ddr.latency_ns": (0, 1e6),
    "ddr.burst_bytes": (1, 65_536),
    "io_queue_depth": (1, 65_536),
    "cp_queue_depth": (1, 65_536),
    "issue_cycles": (0, _MAX_CYCLES),
    "cores.per_chip": (1, 1_024),
    "cores.chips": (1, 1_024),
    "cores.link.bytes_per_s": (0, 1e18),
    "cores.link.latency_ns": (0, 1e6),
    "cores.chip_link.bytes_per_s": (0, 1e18),
    "cores.chip_link.latency_ns": (0, 1e6),
    "host.preprocess_s_per_byte": (0, 1),
    "host.postprocess_s_per_byte": (0, 1),
    "host.dma_bytes_per_s": (1, 1e18),
    "host.dma_setup_s": (0, 3_600),
    "host.driver_s": (0, 3_600),
    "host.noise.jitter": (0, 1),
    "host.noise.drift": (0, 0.99),
    "host.noise.drift_period_s": (1e-3, 1e9),
    "host.noise.spike_probability": (0, 1),
    "host.noise.spike_s": (0, 3_600),
    "host.noise.throttle_after_s": (0, 1e9),
    "host.noise.throttle_slowdown": (1, 1_000),
}

_T = TypeVar("_T")


def parse_machine(text: str, name: str) -> Machine:
    """The machine that a TOML text describes.

    Raises `InvalidMachine` naming the key: text that is not TOML, keys unknown or missing, a value of the wrong
    type or out of its range, or values that contradict each other.
    """
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidMachine(f"Machine {name} is not TOML", str(error), "Correct its syntax") from error
    reader = _MachineReader(name)
    return check_machine(reader.table(Machine, {**content, "name": reader.own_name(content)}, ""))


def read_machine(path: Path) -> Machine:
    """The machine of a file, named as the file without its ending.

    Raises `InvalidMachine`: as `parse_machine`, or the file cannot be read, is no text or is too large.
    """
    try:
        if not path.is_file():
            raise InvalidMachine(f"There is no machine file {path}", "", f"Presets: {', '.join(preset_names())}")
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        if len(content) > _MAX_FILE_BYTES:
            why = f"it is larger than {_MAX_FILE_BYTES} bytes"
            raise InvalidMachine(f"{path} is no description of a machine", why, "Name a TOML file of a machine")
        return parse_machine(content.decode("utf-8"), path.stem)
    except (OSError, ValueError) as error:
        raise InvalidMachine(f"{path} cannot be read as a machine", str(error), "Name a TOML file in UTF-8") from error


def preset_names() -> tuple[str, ...]:
    """The machines that come along, sorted."""
    folder = resources.files(__package__).joinpath("presets")
    return tuple(sorted(item.name[:-5] for item in folder.iterdir() if item.name.endswith(".toml")))


def load_preset(name: str) -> Machine:
    """A machine that comes along; raises `InvalidMachine` if there is none of that name."""
    return parse_machine(preset_text(name), name)


def preset_text(name: str) -> str:
    """The TOML of a machine that comes along, with the source of each number; raises as `load_preset`."""
    if name not in preset_names():
        why = f"{_meant(name, preset_names())}Presets: {', '.join(preset_names())}"
        raise InvalidMachine(f"There is no machine {name!r}", why, "Name a preset or a TOML file")
    return resources.files(__package__).joinpath("presets", f"{name}.toml").read_text(encoding="utf-8")


def find_machine(reference: str) -> Machine:
    """The preset of that name, else the machine of the file there; raises `InvalidMachine` if there is neither."""
    is_file_name = "/" in reference or reference.endswith(".toml")
    if reference not in preset_names() and is_file_name:
        return read_machine(Path(reference))
    return load_preset(reference)


def check_machine(machine: Machine) -> Machine:
    """The machine itself, if no two of its values contradict each other; else raises `InvalidMachine`."""
    for what, why, next_step in _contradictions(machine):
        raise InvalidMachine(f"Machine {machine.name}: {what}", why, next_step)
    return machine


def _contradictions(machine: Machine) -> Iterator[tuple[str, str, str]]:
    mfu, llc, ddr = machine.mfu, machine.llc, machine.ddr
    if mfu.dataflow != "dot-product" and mfu.packing != "none":
        what = f"mfu.packing {mfu.packing} contradicts mfu.dataflow {mfu.dataflow}"
        yield what, "A systolic array takes a matrix product as it is", 'Set mfu.packing = "none"'
    if machine.shared_buffer and machine.sb_bytes != machine.nb_bytes:
        what = f"sb_bytes {machine.sb_bytes} differs from nb_bytes {machine.nb_bytes} in spite of shared_buffer"
        yield what, "They are one memory, divided by the compiler", "Set both to its size, or shared_buffer = false"
    if machine.halo_bytes >= machine.nb_bytes:
        what = f"halo_bytes {machine.halo_bytes} leaves nothing of nb_bytes {machine.nb_bytes}"
        yield what, "The halo buffer is carved out of NB", "Lower halo_bytes"
    if llc.bytes == 0 and (llc.bytes_per_s, llc.latency_ns, llc.burst_bytes) != (0, 0, 0):
        what = "llc.bytes is 0, but llc.bytes_per_s, llc.latency_ns or llc.burst_bytes is not"
        yield what, "0 bytes mean that there is no last-level cache", "Set all four, or all to 0"
    if llc.bytes > 0 and (llc.bytes_per_s < 1 or llc.burst_bytes < 1):
        what = f"llc.bytes is {llc.bytes}, but llc.bytes_per_s or llc.burst_bytes is 0"
        yield what, "A memory without bandwidth never answers", "Set all four, or all to 0"
    yield from _contradictions_of_cores(machine.cores)
    for place, memory in (("llc", llc), ("ddr", ddr)):
        if memory.burst_bytes > memory.bytes:
            what = f"{place}.burst_bytes {memory.burst_bytes} is larger than {place}.bytes {memory.bytes}"
            yield what, "A burst is a part of its memory", f"Lower {place}.burst_bytes"
        for buffer, size in (("nb_bytes", machine.nb_bytes - machine.halo_bytes), ("sb_bytes", machine.sb_bytes)):
            if size < memory.burst_bytes:
                what = f"{buffer} is too small for one burst of {place}.burst_bytes {memory.burst_bytes}"
                yield what, f"{size} bytes of it can take data", f"Enlarge {buffer} or lower {place}.burst_bytes"


def _contradictions_of_cores(cores: Cores) -> Iterator[tuple[str, str, str]]:
    if cores.count > MAX_CORES:
        what = f"cores.per_chip {cores.per_chip} x cores.chips {cores.chips} are more than {MAX_CORES} cores"
        yield what, "An instruction names another core by 16 bits", "Lower one of them"
    # What goes to another chip passes the links of both.
    for key, count, link in (("link", cores.count, cores.link), ("chip_link", cores.chips, cores.chip_link)):
        if count > 1 and link.bytes_per_s < 1:
            what = f"cores.{key}.bytes_per_s is {link.bytes_per_s:g}, but there are {count} to be joined"
            yield (
                what,
                "A link without bandwidth never delivers",
                f"Set it, or {'chips = 1' if key == 'chip_link' else 'per_chip = 1 and chips = 1'}",
            )


def _meant(name: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {near[0]}? " if near else ""


def _shown_key(key: str) -> str:
    return key if key.isidentifier() else _shown(key)


def _shown(value: Any) -> str:
    """The value as text for a message; a number of thousands of digits is not worth printing, nor possible."""
    if isinstance(value, int) and value.bit_length() > _LONGEST_INTEGER_BITS:
        return f"a number of {value.bit_length()} bits"
    return reprlib.repr(value)


@dataclass(frozen=True)
class _MachineReader:
    """Turns tables of TOML into the dataclasses above, field by field; keys are told as dotted paths."""

    machine: str

    def own_name(self, content: Mapping[str, Any]) -> str:
        """The name, which is the file's and not a key in it."""
        if "name" in content:
            self._fail("name is no key of a machine", "A machine is named as its file", "Remove the line")
        return self.machine

    def table(self, kind: type[_T], content: Mapping[str, Any], prefix: str) -> _T:
        """A dataclass from a table that has its fields, all of them and no others."""
        types = get_type_hints(kind)
        known = tuple(types)
        for key in content:
            if key not in types:
                why = f"{_meant(key, known)}Known: {', '.join(item for item in known if item != 'name')}"
                self._fail(f"{prefix}{_shown_key(key)} is no key of a machine", why, "Correct or remove it")
        for key in known:
            if key not in content:
                self._fail(f"{prefix}{key} is missing", "", "Add it; the presets show every key with a source")
        return kind(**{key: self._value(types[key], content[key], prefix + key) for key in known})

    def _value(self, expected: Any, value: Any, key: str) -> Any:
        if dataclasses.is_dataclass(expected):
            if not isinstance(value, dict):
                self._fail(f"{key} is {_shown(value)}", "It is a table", f"Write its keys under [{key}]")
            return self.table(cast(type[Any], expected), value, f"{key}.")
        if get_origin(expected) is Literal:
            return self._choice(get_args(expected), value, key)
        if expected is DataType:
            return _DATA_TYPES[self._choice(tuple(_DATA_TYPES), value, key)]
        if expected in (int, float):
            return self._number(expected, value, key)
        if type(value) is not expected:
            self._fail(f"{key} is {_shown(value)}", f"It is a {expected.__name__}", "Correct the value")
        return value

    def _choice(self, choices: tuple[str, ...], value: Any, key: str) -> str:
        if not isinstance(value, str) or value not in choices:
            why = f"{_meant(value, choices) if isinstance(value, str) else ''}It is one of {', '.join(choices)}"
            self._fail(f"{key} is {_shown(value)}", why, "Choose one of them")
        return str(value)

    def _number(self, expected: type[int] | type[float], value: Any, key: str) -> float:
        allowed = (int,) if expected is int else (int, float)
        if type(value) not in allowed:
            noun = "a whole number" if expected is int else "a number"
            self._fail(f"{key} is {_shown(value)}", f"It is {noun}", "Correct the value")
        low, high = _LIMITS[key]
        if not low <= value <= high:  # which NaN is not
            self._fail(
                f"{key} is {_shown(value)}", f"It lies from {low:g} to {high:g}", "Correct the value or its unit"
            )
        return expected(value)

    def _fail(self, what: str, why: str, next_step: str) -> NoReturn:
        raise InvalidMachine(f"Machine {self.machine}: {what}", why, next_step)
