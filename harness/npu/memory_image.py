"""Memory images: the constants of a compiled network as its loader places them in DDR, from byte 0.

A program file has no weights. With an image its outputs can be computed, even after it was edited.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from device_agents.emulated_npu.execution.functional import FunctionalMachine, memories_for, run
from device_agents.emulated_npu.numpy_types import NUMPY_TYPES, Array
from harness.errors import UsageError
from harness.files import read_input
from harness.npu.error_translation import errors_of_user
from harness.npu.loading import CompiledModel, LoadedProgram
from harness.npu.own_data import InputSpec, file_weights, read_inputs
from harness.text import printable

_COMPILE = "Write it by `harness npu compile MODEL -o FILE.npu --image FILE.bin`"


def image_of(reference: str, source: CompiledModel) -> bytes:
    """Return the image of a network with the weights of its file; bytes that hold no constant are zero.

    Raises InputError if the machine has no values, and for weights that the file does not have under their names.
    """
    weights = file_weights(reference, source.model)
    with errors_of_user():
        parts = [(address, array.tobytes()) for address, array in source.compiled.image(weights)]
    image = bytearray(max((address + len(part) for address, part in parts), default=0))
    for address, part in parts:
        image[address : address + len(part)] = part
    return bytes(image)


def values_of_program(loaded: LoadedProgram, image: Path, inputs: Sequence[str]) -> dict[str, Array]:
    """Return the outputs of a program file by name, with constants from an image and every input from a file.

    Raises InputError for an image that cannot be read or does not fit, UsageError for an input that is missing.
    """
    program = loaded.program
    specs = [InputSpec(port.name, NUMPY_TYPES[port.dtype].name, port.shape) for port in program.inputs]
    given = read_inputs(specs, inputs)
    missing = next((port for port in program.inputs if port.name not in given), None)
    if missing is not None:
        name = printable(missing.name, 80)
        why = "A program file only records the shapes of its inputs"
        raise UsageError(f"Input {name} has no values", why=why, next_step=f"Give --input {shlex.quote(name)}=FILE.npy")
    constants = np.frombuffer(read_input(image, program.footprint.ddr_bytes, _COMPILE), np.uint8)
    with errors_of_user("Compile the network again, or correct the program"):
        machine = FunctionalMachine(memories_for(loaded.machine, program.footprint))
        return run(program, machine, [(0, constants)] if constants.size else [], given)
