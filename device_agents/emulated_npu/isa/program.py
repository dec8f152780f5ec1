"""A program: instructions, and the metadata that the loader and the debugger need; its file format.

The file, little-endian: magic (8 bytes), version (u32), length of the metadata (u32), length of the code (u64), code,
metadata (JSON, UTF-8), CRC-32 of everything before it (u32).
"""

from __future__ import annotations

import itertools
import json
import struct
import zlib
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from device_agents.emulated_npu.emulator_errors import InvalidProgram
from device_agents.emulated_npu.isa.instructions import INSTRUCTION_BYTES
from device_agents.emulated_npu.unit_commands import MAX_RANK, DataType, Descriptor, Operand, Space

MAGIC = b"\x89ENPU\r\n\x1a"
VERSION = 4
MAX_METADATA_BYTES = 1 << 26
MAX_LAYERS = 10_000
MAX_PORTS = 1_000
"""Ports in each direction."""

_HEADER = struct.Struct("<8sIIQ")
_CHECKSUM = struct.Struct("<I")
_INT32_MAX, _INT64_MAX = 2**31 - 1, 2**63 - 1
_SHOWN_NAME = 80
_AGAIN = "Compile the network again"


@dataclass(frozen=True)
class Port:
    """The place of an input or output of the network in DDR; strides are in bytes, by logical axis."""

    name: str
    address: int
    dtype: DataType
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def operand(self) -> Operand:
        """The port as an operand."""
        return Operand(Descriptor(Space.DDR, self.dtype, self.shape, self.strides), self.address)


@dataclass(frozen=True)
class Footprint:
    """Bytes of each memory that the program uses, fixed at compile time.

    `shared_bytes` is the maximum that NB, SB and halo buffer hold at any one time, if they are one memory.
    """

    ddr_bytes: int
    llc_bytes: int
    nb_bytes: int
    sb_bytes: int
    halo_bytes: int
    shared_bytes: int = 0


@dataclass(frozen=True)
class Setup:
    """Code that runs once, after the constants are loaded and before the first run.

    `layers` and `layer_of` are as in `Program`. Its results stay in DDR or LLC, where no run writes.
    """

    code: bytes = b""
    layers: tuple[str, ...] = ()
    layer_of: tuple[int, ...] = ()


NO_SETUP = Setup()


@dataclass(frozen=True)
class Preload:
    """Code that runs once before a stream of inputs, and the bytes [start, stop) of SB that it writes and that stay."""

    code: bytes
    start: int
    stop: int


@dataclass(frozen=True)
class Program:
    """A program: `code` holds whole instructions, `layer_of[pc]` the hardware layer of each, -1 for none."""

    machine: str
    code: bytes
    layers: tuple[str, ...]
    layer_of: tuple[int, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    footprint: Footprint
    setup: Setup = NO_SETUP

    def setup_alone(self) -> Program | None:
        """Return the setup as a program without inputs and outputs, for timing; None if there is no setup."""
        setup = self.setup
        if not setup.code:
            return None
        own = {field.name: getattr(setup, field.name) for field in fields(Setup)}
        return replace(self, **own, inputs=(), outputs=(), setup=NO_SETUP)

    def to_bytes(self) -> bytes:
        """Return the content of a program file; equal programs give equal bytes."""
        metadata = _metadata_json(self)
        code = self.code + self.setup.code
        body = _HEADER.pack(MAGIC, VERSION, len(metadata), len(code)) + code + metadata
        return body + _CHECKSUM.pack(zlib.crc32(body))

    @classmethod
    def from_bytes(cls, data: bytes) -> Program:
        """Return the program in a program file.

        Raises InvalidProgram if the file is truncated, damaged or of another version, or if its metadata differ from
        the format of `to_bytes`. `encoding.decode` checks the instructions.
        """
        code, metadata = _sections(data)
        try:
            parsed = json.loads(metadata)
        except (ValueError, RecursionError) as error:
            raise _invalid(f"the metadata of the program are not JSON: {error}") from error
        return _program(code, parsed)


def _sections(data: bytes) -> tuple[bytes, bytes]:
    """Return code and metadata; raise InvalidProgram if lengths or checksum are wrong."""
    if len(data) < _HEADER.size + _CHECKSUM.size or data[: len(MAGIC)] != MAGIC:
        raise InvalidProgram("this is not a program of the emulated NPU", next_step=_AGAIN)
    _, version, metadata_bytes, code_bytes = _HEADER.unpack_from(data)
    if version != VERSION:
        why = "it was compiled by another version of this software"
        raise InvalidProgram(f"the program has format {version}, this version reads {VERSION}", why, _AGAIN)
    expected = _HEADER.size + code_bytes + metadata_bytes + _CHECKSUM.size
    if len(data) != expected:
        what = f"the program has {len(data)} bytes, its header announces {expected}"
        raise InvalidProgram(what, "the file was truncated or extended", "Copy it again")
    (checksum,) = _CHECKSUM.unpack_from(data, len(data) - _CHECKSUM.size)
    if zlib.crc32(data[: -_CHECKSUM.size]) != checksum:
        raise InvalidProgram("the checksum of the program is wrong", "at least one bit of it changed", "Copy it again")
    if metadata_bytes > MAX_METADATA_BYTES:
        raise _invalid(f"the metadata have {metadata_bytes} bytes, the limit is {MAX_METADATA_BYTES}")
    code_end = _HEADER.size + code_bytes
    return data[_HEADER.size : code_end], data[code_end : code_end + metadata_bytes]


def _metadata_json(program: Program) -> bytes:
    setup = program.setup
    metadata = {
        "machine": program.machine,
        "layers": program.layers,
        "layer_of": _runs(program.layer_of),
        "inputs": [{**asdict(port), "dtype": port.dtype.name} for port in program.inputs],
        "outputs": [{**asdict(port), "dtype": port.dtype.name} for port in program.outputs],
        "footprint": asdict(program.footprint),
        "setup": {"code_bytes": len(setup.code), "layers": setup.layers, "layer_of": _runs(setup.layer_of)},
    }
    return json.dumps(metadata, separators=(",", ":")).encode("ascii")


def _runs(layer_of: tuple[int, ...]) -> list[list[int]]:
    return [[layer, len(list(run))] for layer, run in itertools.groupby(layer_of)]


def _program(code: bytes, metadata: object) -> Program:
    keys = ("machine", "layers", "layer_of", "inputs", "outputs", "footprint", "setup")
    parts = _object(metadata, "metadata", keys)
    sizes = _object(parts["footprint"], "footprint", tuple(field.name for field in fields(Footprint)))
    _integers(list(sizes.values()), "footprint", 0, _INT64_MAX)
    footprint = Footprint(**sizes)
    setup = _object(parts["setup"], "setup", ("code_bytes", "layers", "layer_of"))
    (setup_bytes,) = _integers([setup["code_bytes"]], "the code bytes of the setup", 0, len(code))
    body = len(code) - setup_bytes
    layers, layer_of = _layers(parts, code[:body])
    return Program(
        machine=_text(parts["machine"], "machine"),
        code=code[:body],
        layers=layers,
        layer_of=layer_of,
        inputs=_ports(parts["inputs"], "inputs", footprint.ddr_bytes),
        outputs=_ports(parts["outputs"], "outputs", footprint.ddr_bytes),
        footprint=footprint,
        setup=Setup(code[body:], *_layers(setup, code[body:])),
    )


def _layers(parts: dict[str, Any], code: bytes) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the layer names of some code, and the layer of each of its instructions."""
    if len(code) % INSTRUCTION_BYTES:
        raise _invalid(f"code of {len(code)} bytes is not a whole number of {INSTRUCTION_BYTES}-byte instructions")
    layers = tuple(_text(name, "a layer") for name in _list(parts["layers"], "layers", MAX_LAYERS))
    runs = _list(parts["layer_of"], "layer_of", len(code))
    return layers, _expand_runs(runs, len(layers), len(code) // INSTRUCTION_BYTES)


def _expand_runs(runs: list[Any], layers: int, instructions: int) -> tuple[int, ...]:
    """Return the layer of every instruction; never allocates more than the code has instructions."""
    layer_of: list[int] = []
    for run in runs:
        layer, length = _integers(run, "a run of layer_of", -1, _INT64_MAX, count=2)
        if layer >= layers or not 1 <= length <= instructions - len(layer_of):
            raise _invalid(f"layer_of assigns {length} instructions to layer {layer}: there are not that many")
        layer_of += [layer] * length
    if len(layer_of) != instructions:
        raise _invalid(f"layer_of names {len(layer_of)} of {instructions} instructions")
    return tuple(layer_of)


def _ports(items: object, what: str, ddr_bytes: int) -> tuple[Port, ...]:
    return tuple(_port(item, ddr_bytes) for item in _list(items, what, MAX_PORTS))


def _port(item: object, ddr_bytes: int) -> Port:
    """Return the port; raise InvalidProgram if an element lies outside the DDR of the program."""
    parts = _object(item, "a port", tuple(field.name for field in fields(Port)))
    name, dtype = _text(parts["name"], "the name of a port"), _text(parts["dtype"], "the type of a port")
    port = f"port {_short(name)}"
    if dtype not in DataType.__members__:
        raise _invalid(f"{port} has the unknown type {_short(dtype)}")
    (address,) = _integers([parts["address"]], f"the address of {port}", 0, _INT64_MAX)
    shape = _integers(parts["shape"], f"the shape of {port}", 1, _INT32_MAX)
    if len(shape) > MAX_RANK:
        raise _invalid(f"{port} has {len(shape)} axes, at most {MAX_RANK} are possible")
    strides = _integers(parts["strides"], f"the strides of {port}", -_INT64_MAX, _INT64_MAX, count=len(shape))
    found = Port(name, address, DataType[dtype], shape, strides)
    first, end = found.operand.span
    if first < 0 or end > ddr_bytes:
        raise _invalid(f"{port} lies at bytes {first} to {end - 1} of {ddr_bytes} bytes of DDR")
    return found


def _object(value: object, what: str, keys: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != set(keys):
        raise _invalid(f"{what} of the program must be an object with exactly {', '.join(keys)}")
    return value


def _list(value: object, what: str, most: int) -> list[Any]:
    if not isinstance(value, list):
        raise _invalid(f"{what} of the program must be a list, not {type(value).__name__}")
    if len(value) > most:
        raise _invalid(f"the program has {len(value)} {what}, the limit is {most}")
    return value


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise _invalid(f"{what} of the program must be text, not {type(value).__name__}")
    return value


def _integers(value: object, what: str, low: int, high: int, count: int | None = None) -> tuple[int, ...]:
    """Return a list of `count` whole numbers (None: of any length), each in low..high, as a tuple."""
    if not isinstance(value, list):
        raise _invalid(f"{what} must be a list, not {type(value).__name__}")
    if (count is not None and len(value) != count) or not all(
        type(item) is int and low <= item <= high for item in value
    ):
        length = "" if count is None else f"{count} "
        raise _invalid(f"{what} must be {length}whole numbers in {low}..{high}")
    return tuple(value)


def _short(name: str) -> str:
    return repr(name if len(name) <= _SHOWN_NAME else f"{name[: _SHOWN_NAME - 1]}…")


def _invalid(what: str) -> InvalidProgram:
    """Return the error for metadata that no compiler of this version writes."""
    return InvalidProgram(what, "the file is damaged or not from this compiler", _AGAIN)
