"""The setup of a program computes the kernel DFTs once, and is part of the program file and listing (S4.5)."""

import json
import struct
import zlib
from typing import Any

import pytest
from networks_on_npu import execute
from odd_dft_networks import EDGE, by_dft, convolution

from device_agents.emulated_npu.compiler.compiled import Compiled
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.emulator_errors import InvalidProgram
from device_agents.emulated_npu.isa.assembly import assemble
from device_agents.emulated_npu.isa.program import Program
from harness.npu.listing import as_comments, listing

_HEADER = struct.Struct("<8sIIQ")
NETWORK = convolution((1, 3, 20, 20), (4, 3, 5, 5))


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    """Return a compiled convolution by DFT."""
    return by_dft(NETWORK, 9)


def _with_metadata(data: bytes, change: Any) -> bytes:
    """Return the container with changed metadata and a correct checksum."""
    magic, version, size, code = _HEADER.unpack_from(data)
    metadata = json.loads(data[_HEADER.size + code : _HEADER.size + code + size])
    change(metadata)
    text = json.dumps(metadata, separators=(",", ":")).encode()
    body = _HEADER.pack(magic, version, len(text), code) + data[_HEADER.size : _HEADER.size + code] + text
    return body + struct.pack("<I", zlib.crc32(body))


def test_a_container_keeps_the_setup(compiled: Compiled) -> None:
    """Writing and reading a program with a setup returns the same program and the same bytes."""
    data = compiled.program.to_bytes()
    assert Program.from_bytes(data) == compiled.program
    assert Program.from_bytes(data).to_bytes() == data
    assert compiled.program.setup.code


@pytest.mark.parametrize(
    "change",
    [
        lambda metadata: metadata.pop("setup"),
        lambda metadata: metadata["setup"].pop("layers"),
        lambda metadata: metadata["setup"].update(code_bytes=-16),
        lambda metadata: metadata["setup"].update(code_bytes=1 << 40),
        lambda metadata: metadata["setup"].update(code_bytes=metadata["setup"]["code_bytes"] - 8),
        lambda metadata: metadata["setup"].update(code_bytes=0),
        lambda metadata: metadata["setup"].update(layers=[]),
        lambda metadata: metadata["setup"].update(layer_of=[]),
        lambda metadata: metadata["setup"].update(more=1),
    ],
)
def test_metadata_of_a_setup_are_checked(compiled: Compiled, change: Any) -> None:
    """A container whose metadata do not match its setup is refused."""
    with pytest.raises(InvalidProgram):
        Program.from_bytes(_with_metadata(compiled.program.to_bytes(), change))


def test_the_listing_shows_the_setup(compiled: Compiled) -> None:
    """The listing of the setup assembles to its code; as comments it does not change the program's listing."""
    program = compiled.program
    setup = listing(program.setup)
    assert "# y (kernel DFT)" in setup
    assert assemble(setup) == program.setup.code
    assert assemble(listing(program) + as_comments(setup)) == program.code
    assert as_comments("") == ""


def test_a_program_from_a_file_computes_the_same(compiled: Compiled) -> None:
    """A program that is read back, with its setup, computes the same values."""
    again = Compiled(**{**vars(compiled), "program": Program.from_bytes(compiled.program.to_bytes())})
    assert execute(again, NETWORK)["y"].tobytes() == execute(compiled, NETWORK)["y"].tobytes()


def test_without_a_dft_there_is_no_setup() -> None:
    """Programs of direct convolutions have no setup, and their listing has none."""
    program = compile_model(NETWORK.model, EDGE).program
    assert not program.setup.code
    assert listing(program.setup) == ""
    assert program.layers == ("y",)
