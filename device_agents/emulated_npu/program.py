"""A program: instructions, and what the loader and the debugger need to know of them; its form as bytes.

The container, little-endian: magic (8 bytes), version (u32), length of the metadata (u32), length of the code
(u64), code, metadata (JSON, UTF-8), CRC-32 of all that precedes it (u32).
"""

from __future__ import annotations

import itertools
import json
import struct
import zlib
from dataclasses import asdict, dataclass, fields
from typing import Any

from device_agents.emulated_npu.command import DataType
from device_agents.emulated_npu.errors import InvalidProgram
from device_agents.emulated_npu.isa import INSTRUCTION_BYTES

MAGIC = b"\x89ENPU\r\n\x1a"
VERSION = 1
MAX_METADATA_BYTES = 1 << 26

_HEADER = struct.Struct("<8sIIQ")
_CHECKSUM = struct.Struct("<I")
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True)
class Port:
    """Where the host puts an input or finds an output in DDR: the strides are in bytes, by logical axis."""

    name: str
    address: int
    dtype: DataType
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Footprint:
    """Bytes of each memory that the program touches, fixed at compile time.

    `shared_bytes` is the most that NB, SB and halo buffer hold at any one time, where they are one memory.
    """

    ddr_bytes: int
    llc_bytes: int
    nb_bytes: int
    sb_bytes: int
    halo_bytes: int
    shared_bytes: int = 0


@dataclass(frozen=True)
class Program:
    """`code` is a whole number of instructions; `layer_of[pc]` is the hardware layer of each, -1 for none."""

    machine: str
    code: bytes
    layers: tuple[str, ...]
    layer_of: tuple[int, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    footprint: Footprint

    def to_bytes(self) -> bytes:
        """The program as a container; equal programs give equal bytes."""
        metadata = _metadata_json(self)
        body = _HEADER.pack(MAGIC, VERSION, len(metadata), len(self.code)) + self.code + metadata
        return body + _CHECKSUM.pack(zlib.crc32(body))

    @classmethod
    def from_bytes(cls, data: bytes) -> Program:
        """The program in a container.

        InvalidProgram where it is cut short, damaged, of another version, or its metadata are not what to_bytes
        writes. The instructions themselves are checked by `encoding.decode`.
        """
        code, metadata = _sections(data)
        return _program(code, _parse_json(metadata))


def _sections(data: bytes) -> tuple[bytes, bytes]:
    """Code and metadata, when lengths and checksum agree with the bytes that are there."""
    if len(data) < _HEADER.size + _CHECKSUM.size or data[: len(MAGIC)] != MAGIC:
        raise InvalidProgram("this is no program of the emulated NPU", next_step="compile the network again")
    _, version, metadata_bytes, code_bytes = _HEADER.unpack_from(data)
    if version != VERSION:
        raise InvalidProgram(f"the program has format {version}, this machine reads {VERSION}")
    expected = _HEADER.size + code_bytes + metadata_bytes + _CHECKSUM.size
    if len(data) != expected:
        raise InvalidProgram(f"the program has {len(data)} bytes, its header announces {expected}")
    (checksum,) = _CHECKSUM.unpack_from(data, len(data) - _CHECKSUM.size)
    if zlib.crc32(data[: -_CHECKSUM.size]) != checksum:
        raise InvalidProgram("the checksum of the program is wrong", "at least one bit of it changed", "copy it again")
    if metadata_bytes > MAX_METADATA_BYTES:
        raise InvalidProgram(f"the metadata have {metadata_bytes} bytes, the limit is {MAX_METADATA_BYTES}")
    code_end = _HEADER.size + code_bytes
    return data[_HEADER.size : code_end], data[code_end : code_end + metadata_bytes]


def _metadata_json(program: Program) -> bytes:
    runs = [[layer, len(list(run))] for layer, run in itertools.groupby(program.layer_of)]
    metadata = {
        "machine": program.machine,
        "layers": program.layers,
        "layer_of": runs,
        "inputs": [_port_fields(port) for port in program.inputs],
        "outputs": [_port_fields(port) for port in program.outputs],
        "footprint": asdict(program.footprint),
    }
    return json.dumps(metadata, separators=(",", ":")).encode("ascii")


def _port_fields(port: Port) -> dict[str, object]:
    return {**asdict(port), "dtype": port.dtype.name}


def _parse_json(metadata: bytes) -> object:
    try:
        return json.loads(metadata)
    except (ValueError, RecursionError) as error:
        raise InvalidProgram(f"the metadata of the program are no JSON: {error}") from error


def _program(code: bytes, metadata: object) -> Program:
    parts = _object(metadata, "metadata", ("machine", "layers", "layer_of", "inputs", "outputs", "footprint"))
    layers = tuple(_text(name, "a layer") for name in _list(parts["layers"], "layers"))
    if len(code) % INSTRUCTION_BYTES:
        raise InvalidProgram(f"code of {len(code)} bytes is no whole number of {INSTRUCTION_BYTES}-byte instructions")
    return Program(
        machine=_text(parts["machine"], "machine"),
        code=code,
        layers=layers,
        layer_of=_expand_runs(_list(parts["layer_of"], "layer_of"), len(layers), len(code) // INSTRUCTION_BYTES),
        inputs=tuple(_port(item) for item in _list(parts["inputs"], "inputs")),
        outputs=tuple(_port(item) for item in _list(parts["outputs"], "outputs")),
        footprint=_footprint(parts["footprint"]),
    )


def _expand_runs(runs: list[Any], layers: int, instructions: int) -> tuple[int, ...]:
    """The layer of every instruction; nothing longer than the code is ever built."""
    layer_of: list[int] = []
    for run in runs:
        layer, length = _integers(run, "a run of layer_of", -1, _INT64_MAX, count=2)
        if layer >= layers or not 1 <= length <= instructions - len(layer_of):
            raise InvalidProgram(f"layer_of assigns {length} instructions to layer {layer}: there are not as many")
        layer_of += [layer] * length
    if len(layer_of) != instructions:
        raise InvalidProgram(f"layer_of names {len(layer_of)} of {instructions} instructions")
    return tuple(layer_of)


def _port(item: object) -> Port:
    parts = _object(item, "a port", tuple(field.name for field in fields(Port)))
    name, dtype = _text(parts["name"], "the name of a port"), _text(parts["dtype"], "the type of a port")
    if dtype not in DataType.__members__:
        raise InvalidProgram(f"port {name!r} has the unknown type {dtype!r}")
    (address,) = _integers([parts["address"]], f"the address of port {name!r}", 0, _INT64_MAX)
    shape = _integers(parts["shape"], f"the shape of port {name!r}", 0, _INT64_MAX)
    strides = _integers(parts["strides"], f"the strides of port {name!r}", -_INT64_MAX, _INT64_MAX, count=len(shape))
    return Port(name, address, DataType[dtype], shape, strides)


def _footprint(item: object) -> Footprint:
    names = tuple(field.name for field in fields(Footprint))
    parts = _object(item, "footprint", names)
    return Footprint(*_integers([parts[name] for name in names], "footprint", 0, _INT64_MAX))


def _object(value: object, what: str, keys: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != set(keys):
        raise InvalidProgram(f"{what} of the program must be an object with exactly {', '.join(keys)}")
    return value


def _list(value: object, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidProgram(f"{what} of the program must be a list, not {type(value).__name__}")
    return value


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidProgram(f"{what} of the program must be text, not {type(value).__name__}")
    return value


def _integers(value: object, what: str, low: int, high: int, count: int | None = None) -> tuple[int, ...]:
    """A list of `count` whole numbers (None: of any length), each in low..high."""
    items = _list(value, what)
    if (count is not None and len(items) != count) or not all(
        type(item) is int and low <= item <= high for item in items
    ):
        length = "" if count is None else f"{count} "
        raise InvalidProgram(f"{what} must be {length}whole numbers in {low}..{high}")
    return tuple(items)
