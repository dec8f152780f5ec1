"""A network's own data on the emulated NPU: the weights of its file, inputs and outputs as .npy files.

Without own data, large weights and all inputs are generated from a seed, as on a device.
"""

import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import numpy_helper
from onnx.external_data_helper import load_external_data_for_model

from device_agents.arrays import make
from device_agents.emulated_npu.numpy_types import Array
from harness.errors import CHECK_FILE, InputError, UsageError, reason_of
from harness.files import open_plain
from harness.network.assemble import ArraySpec
from harness.network.model_references import model_path
from harness.network.network import PACKED, Constant
from harness.network.reading.prepare import prepare
from harness.network.reading.read import read_model
from harness.npu.network_model import NetworkModel
from harness.npu.npu_options import named_files
from harness.text import printable

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class InputSpec:
    """An input by its name, its type as numpy names it, and its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class NetworkData:
    """The values of a network's weights, by their names in the compiled model, and of its inputs, by name.

    `constants` are the outputs of the file that do not depend on the inputs, by name.
    """

    weights: Mapping[str, Array]
    inputs: Mapping[str, Array]
    constants: Mapping[str, Array]

    def output_values(self, model: NetworkModel, computed: Mapping[str, Array]) -> dict[str, Array]:
        """Return all outputs by their names in the file, and what the part that was left out would read, by its own."""
        known = {**self.inputs, **computed}
        named = {name: known[tensor] for name, tensor in model.file_outputs.items() if tensor in known}
        others = {name: values for name, values in computed.items() if name not in model.file_outputs.values()}
        return {**others, **self.constants, **named}


def read_own_data(reference: str, model: NetworkModel, inputs: Sequence[str]) -> NetworkData:
    """Read the weights of a network's file and the inputs NAME=FILE.npy; other inputs are generated from the seed.

    Raises UsageError for an input that the network does not have. Raises InputError for a file that cannot be read or
    has another shape or type than the input, and for weights that the file does not have under their names.
    """
    specs = [InputSpec(spec.name, spec.dtype, spec.shape) for spec in model.inputs]
    given = read_inputs(specs, inputs)
    made = {spec.name: make(spec.wire()) for spec in model.inputs if spec.name not in given}
    constants = _file_constants(reference, model)
    fixed = {name: constants[tensor].value for name, tensor in model.file_outputs.items() if tensor in constants}
    known = {name: value for name, value in fixed.items() if value is not None}
    return NetworkData(_weights(constants, model), {**made, **given}, known)


def read_inputs(specs: Sequence[InputSpec], inputs: Sequence[str]) -> dict[str, Array]:
    """Return the values of the inputs that are given as NAME=FILE.npy; raises as `read_own_data`."""
    files, known = dict(named_files("--input", inputs, "x=x.npy")), {spec.name: spec for spec in specs}
    unknown = next((name for name in files if name not in known), None)
    if unknown is not None:
        names = ", ".join(f"{printable(spec.name, 80)} {spec.dtype}{list(spec.shape)}" for spec in specs)
        raise UsageError(f"The network has no input {printable(unknown, 80)}", why=f"Its inputs are {names}")
    return {name: _read_array(file, known[name]) for name, file in files.items()}


def write_outputs(folder: Path, outputs: Mapping[str, Array]) -> None:
    """Write each output to NAME.npy in a folder, which is made; raises InputError if it cannot be written.

    A name in which characters are replaced ends in `_2`, `_3` and so on if another output has it.
    """
    files = {name: values for name, values in outputs.items() if not _UNSAFE.search(name)}
    last: Counter[str] = Counter()
    for name in filter(_UNSAFE.search, outputs):
        file = plain = _UNSAFE.sub("_", name)
        while file in files:
            last[plain] += 1
            file = f"{plain}_{last[plain] + 1}"
        files[file] = outputs[name]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, values in files.items():
            np.save(folder / f"{file}.npy", values)
    except OSError as error:
        raise InputError(
            f"Outputs cannot be written to {folder}", why=reason_of(error), next_step=CHECK_FILE
        ) from error


def _read_array(file: Path, spec: InputSpec) -> Array:
    try:
        with open_plain(file) as opened:
            values = np.load(opened)  # which loads no pickles
    except OSError as error:
        raise InputError(f"{file} cannot be read", why=reason_of(error), next_step=CHECK_FILE) from error
    except (ValueError, EOFError) as error:
        step = "Save the array with numpy.save"
        raise InputError(
            f"{file} is not a .npy file of numbers", why="It has another format", next_step=step
        ) from error
    if not isinstance(values, np.ndarray) or values.shape != spec.shape or values.dtype != np.dtype(spec.dtype):
        found = f"{values.dtype}{list(values.shape)}" if isinstance(values, np.ndarray) else "several arrays"
        why = f"The file has {found}, the input is {spec.dtype}{list(spec.shape)}"
        raise InputError(
            f"{file} does not fit input {printable(spec.name, 80)}", why=why, next_step="Save it as the input is"
        )
    return values


def file_weights(reference: str, model: NetworkModel) -> dict[str, Array]:
    """Return the weights of a network as its file has them, by their names in the compiled model.

    Raises InputError for a file that cannot be read, and for a weight whose values do not follow from the file.
    """
    return _weights(_file_constants(reference, model), model) if model.weights else {}


def _file_constants(reference: str, model: NetworkModel) -> Mapping[str, Constant]:
    """Return the constants of a network's file with their values; raises InputError for a file that cannot be read."""
    with model_path(reference) as path:
        file = read_model(path)
        try:
            load_external_data_for_model(file.model, str(path.parent))
        except (OSError, ValueError) as error:
            raise InputError(
                f"The weights of {path} cannot be read", why=reason_of(error), next_step=CHECK_FILE
            ) from error
    return prepare(file, model.dims, most_folded=sys.maxsize).constants


def _weights(constants: Mapping[str, Constant], model: NetworkModel) -> dict[str, Array]:
    weights = {}
    for spec in model.weights:
        held = constants.get(model.constants[spec.name])
        if held is None or held.value is None:
            why = "It is stored as a sparse tensor, or ONNX Runtime cannot compute it from what the file stores"
            raise InputError(f"The constant {printable(model.constants[spec.name], 80)} has no values", why=why)
        weights[spec.name] = _as_sent(held.value, spec)
    return weights


def _as_sent(values: Array, spec: ArraySpec) -> Array:
    """Return a weight of a file as a device takes it: two elements of four bits share a byte."""
    if spec.dtype in PACKED:
        return np.frombuffer(numpy_helper.from_array(values).raw_data, "V1")
    return values.reshape(spec.shape).astype(spec.dtype, copy=False)
