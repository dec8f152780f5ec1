"""A program survives its file; an incomplete or damaged file is an InvalidProgram."""

import dataclasses
import json
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given, strategies as st
from instruction_strategies import programs

from device_agents.emulated_npu.emulator_errors import InvalidProgram
from device_agents.emulated_npu.isa.encoding import encode
from device_agents.emulated_npu.isa.instructions import INSTRUCTION_BYTES, Opcode, control
from device_agents.emulated_npu.isa.program import MAX_LAYERS, MAX_PORTS, VERSION, Footprint, Port, Program
from device_agents.emulated_npu.unit_commands import DataType

SIZES = st.integers(0, 2**62)


@st.composite
def ports(draw: st.DrawFn) -> tuple[Port, int]:
    """Draw a port and the smallest DDR that holds it, with strides of both signs."""
    axes = draw(st.lists(st.tuples(st.integers(1, 2**31 - 1), st.integers(-(2**24), 2**24)), max_size=6))
    shape, strides = tuple(size for size, _ in axes), tuple(stride for _, stride in axes)
    reaches = [(size - 1) * stride for size, stride in axes]
    address = draw(st.integers(0, 2**60)) - sum(min(0, reach) for reach in reaches)
    dtype = draw(st.sampled_from(DataType))
    end = address + sum(max(0, reach) for reach in reaches) + dtype.bytes
    return Port(draw(st.text(max_size=8)), address, dtype, shape, strides), end


@st.composite
def whole_programs(draw: st.DrawFn) -> Program:
    """Draw a program with metadata of every kind."""
    code = encode(draw(programs()))
    layers = draw(st.lists(st.text(max_size=6), max_size=4))
    count = len(code) // INSTRUCTION_BYTES
    layer_of = draw(st.lists(st.integers(-1, len(layers) - 1), min_size=count, max_size=count))
    inputs, outputs = draw(st.lists(ports(), max_size=2)), draw(st.lists(ports(), max_size=2))
    ddr_bytes = max([draw(st.integers(0, 2**20)), *(end for _, end in inputs + outputs)])
    footprint = Footprint(ddr_bytes, *draw(st.tuples(*[SIZES] * 5)))
    found, made = tuple(port for port, _ in inputs), tuple(port for port, _ in outputs)
    return Program(draw(st.text(max_size=8)), code, tuple(layers), tuple(layer_of), found, made, footprint)


SMALL = Program(
    machine="edge",
    code=encode([control(Opcode.SET, 1, 5), control(Opcode.FENCE), control(Opcode.HALT)]),
    layers=("conv1", "conv2"),
    layer_of=(0, 1, -1),
    inputs=(Port("x", 64, DataType.FLOAT32, (1, 3), (12, 4)),),
    outputs=(Port("y", 128, DataType.INT8, (2,), (1,)),),
    footprint=Footprint(256, 0, 64, 32, 0),
)


def _metadata(data: bytes) -> dict[str, Any]:
    _, _, length, code_bytes = struct.unpack_from("<8sIIQ", data)
    return dict(json.loads(data[24 + code_bytes : 24 + code_bytes + length]))


def _container(code: bytes, metadata: bytes, version: int = VERSION) -> bytes:
    magic = SMALL.to_bytes()[:8]
    body = struct.pack("<8sIIQ", magic, version, len(metadata), len(code)) + code + metadata
    return body + struct.pack("<I", zlib.crc32(body))


@given(whole_programs())
def test_a_program_survives_its_container(program: Program) -> None:
    """Instructions, layers, ports and footprint are restored unchanged."""
    assert Program.from_bytes(program.to_bytes()) == program


@given(st.integers(0, 8 * len(SMALL.to_bytes()) - 1))
def test_any_flipped_bit_is_found(bit: int) -> None:
    """A corrupted bit anywhere in the file is reported."""
    data = bytearray(SMALL.to_bytes())
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(InvalidProgram):
        Program.from_bytes(bytes(data))


@given(st.integers(0, len(SMALL.to_bytes()) - 1))
def test_a_file_cut_short_is_found(length: int) -> None:
    """A truncated file is an InvalidProgram."""
    with pytest.raises(InvalidProgram):
        Program.from_bytes(SMALL.to_bytes()[:length])


@given(st.binary(max_size=200))
def test_other_bytes_are_no_program(data: bytes) -> None:
    """Arbitrary bytes raise InvalidProgram and nothing else."""
    with pytest.raises(InvalidProgram):
        Program.from_bytes(data)


@given(st.binary(max_size=60))
def test_arbitrary_metadata_are_no_program(metadata: bytes) -> None:
    """Metadata that `to_bytes` does not write raise InvalidProgram, even with a correct checksum."""
    with pytest.raises(InvalidProgram):
        Program.from_bytes(_container(SMALL.code, metadata))


PORT = {"name": "x", "address": 64, "dtype": "FLOAT32", "shape": [1, 3], "strides": [12, 4]}
FOOTPRINT = {"ddr_bytes": 256, "llc_bytes": 0, "nb_bytes": 64, "sb_bytes": 32, "halo_bytes": 0, "shared_bytes": 0}


@pytest.mark.parametrize(
    "change",
    [
        {"machine": 5},
        {"unknown": 1},
        {"layers": "conv"},
        {"layers": ["conv1", 2]},
        {"layer_of": [[0, 1], [1, 1]]},
        {"layer_of": [[0, 1], [1, 3]]},
        {"layer_of": [[0, 2**62]]},
        {"layer_of": [[0, 3], [0, 0]]},
        {"layer_of": [[2, 3]]},
        {"layer_of": [[-2, 3]]},
        {"layer_of": [[0, 1.0], [0, 2]]},
        {"layer_of": [[False, 3]]},
        {"layer_of": [[0, 3, 1]]},
        {"inputs": [{**PORT, "dtype": "FLOAT"}]},
        {"inputs": [{**PORT, "address": -1}]},
        {"inputs": [{**PORT, "address": 2**63}]},
        {"inputs": [{**PORT, "strides": [12]}]},
        {"inputs": [{**PORT, "shape": [1, "3"]}]},
        {"inputs": [{key: value for key, value in PORT.items() if key != "name"}]},
        {"inputs": PORT},
        {"footprint": {**FOOTPRINT, "nb_bytes": -1}},
        {"footprint": {**FOOTPRINT, "nb_bytes": None}},
        {"footprint": []},
    ],
    ids=str,
)
def test_metadata_are_validated(change: dict[str, Any]) -> None:
    """Type and range of every field are checked; the unchanged metadata pass."""
    metadata = _metadata(SMALL.to_bytes())
    assert Program.from_bytes(_container(SMALL.code, json.dumps(metadata).encode())) == SMALL
    with pytest.raises(InvalidProgram):
        Program.from_bytes(_container(SMALL.code, json.dumps({**metadata, **change}).encode()))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"shape": [1] * 7, "strides": [4] * 7}, "7 axes"),
        ({"shape": [1, 0]}, "shape"),
        ({"shape": [1, 2**31]}, "shape"),
        ({"strides": [12, 2**63]}, "strides"),
        ({"address": 245}, "bytes 245 to 256 of 256"),
        ({"strides": [12, -36]}, "bytes -8 to"),
        ({"shape": [2**31 - 1] * 6, "strides": [2**62] * 6}, "DDR"),
    ],
    ids=str,
)
def test_ports_lie_in_the_memory_of_the_program(change: dict[str, Any], complaint: str) -> None:
    """A port with an element outside DDR, or more axes or elements than a view has, is refused by name."""
    metadata = _metadata(SMALL.to_bytes())
    for direction in ("inputs", "outputs"):
        for address in (244, 64):
            port = {**PORT, "address": address}
            Program.from_bytes(_container(SMALL.code, json.dumps({**metadata, direction: [port]}).encode()))
        with pytest.raises(InvalidProgram, match=f"port 'x'.*{complaint}|{complaint}.*port 'x'") as caught:
            Program.from_bytes(
                _container(SMALL.code, json.dumps({**metadata, direction: [{**PORT, **change}]}).encode())
            )
        assert caught.value.next_step


@pytest.mark.parametrize(("field", "item", "most"), [("layers", "conv", MAX_LAYERS), ("inputs", PORT, MAX_PORTS)])
def test_names_are_limited(field: str, item: object, most: int) -> None:
    """The largest allowed number of layers and ports passes, one more is refused."""
    metadata = {**_metadata(SMALL.to_bytes()), "layer_of": [[0, 3]]}
    assert Program.from_bytes(_container(SMALL.code, json.dumps({**metadata, field: [item] * most}).encode()))
    with pytest.raises(InvalidProgram, match=f"{most + 1} {field}, the limit is {most}"):
        Program.from_bytes(_container(SMALL.code, json.dumps({**metadata, field: [item] * (most + 1)}).encode()))


def test_deeply_nested_metadata_are_rejected() -> None:
    """Metadata nested too deeply for the parser are an InvalidProgram."""
    with pytest.raises(InvalidProgram):
        Program.from_bytes(_container(SMALL.code, b"[" * 200_000))


def test_another_version_is_named() -> None:
    """A file of another format is refused with both version numbers."""
    with pytest.raises(InvalidProgram, match="format 1, this version reads 4") as caught:
        Program.from_bytes(_container(SMALL.code, json.dumps(_metadata(SMALL.to_bytes())).encode(), version=1))
    assert "Compile" in caught.value.next_step


def test_lengths_are_not_trusted() -> None:
    """A header with lengths beyond the file is rejected before anything is read."""
    for code_bytes in (len(SMALL.code) + 16, 2**64 - 1):
        data = bytearray(SMALL.to_bytes())
        data[16:24] = struct.pack("<Q", code_bytes)
        with pytest.raises(InvalidProgram, match="announces"):
            Program.from_bytes(bytes(data))


def test_half_an_instruction_is_rejected() -> None:
    """Code that is not a whole number of instructions is rejected."""
    with pytest.raises(InvalidProgram, match="whole number"):
        Program.from_bytes(_container(SMALL.code + b"\x01", json.dumps(_metadata(SMALL.to_bytes())).encode()))


def test_layers_of_instructions_are_run_length_encoded() -> None:
    """The layers of a long program take a few bytes per change of layer."""
    code = SMALL.code[-16:] * 30_000
    long = dataclasses.replace(SMALL, code=code, layer_of=(0,) * 10_000 + (1,) * 20_000)
    assert Program.from_bytes(long.to_bytes()) == long
    assert len(long.to_bytes()) < len(code) + 1000
