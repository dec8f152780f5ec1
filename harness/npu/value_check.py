"""Compare the values that the emulated NPU computes with ONNX Runtime's, on the same seeded weights and inputs."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from device_agents.arrays import make
from device_agents.emulated_npu.compiler.compiled import CompiledSystem
from device_agents.emulated_npu.inference import compute_values
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.many_cores.system_run import run_system
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import DataType
from harness.errors import HarnessError, InputError
from harness.host_runtime import open_session, session_options
from harness.npu.error_translation import errors_of_compiler
from harness.npu.loading import CompiledModel, NetworkModel
from harness.text import printable

Note = Callable[[str], None]
"""Shows a message beside the result."""

TOLERANCE = 1e-4


@dataclass(frozen=True)
class ValueCheck:
    """A functional run; `max_rel_error` is the largest difference from ONNX Runtime over its largest value."""

    functional_s: float
    max_rel_error: float


def has_values(machine: Machine, note: Note) -> bool:
    """Return whether the machine computes values; only float32 machines do. Notes it for the others."""
    if machine.data_type is not DataType.FLOAT32:
        note(f"{machine.name} computes in {machine.data_type.name.lower()}: it has a time but no values")
    return machine.data_type is DataType.FLOAT32


def check_values(source: CompiledModel, note: Note) -> ValueCheck:
    """Run the compiled network and ONNX Runtime.

    Raises HarnessError, a bug, if only one of them has finite values; InputError if ONNX Runtime cannot run it.
    """
    weights, inputs = _arrays(source.model)
    start = time.perf_counter()
    with errors_of_compiler():
        outputs = compute_values(source.compiled, weights, inputs)
    functional_s = time.perf_counter() - start
    return ValueCheck(functional_s, _difference(source.model, weights, inputs, outputs, note))


def system_error(model: NetworkModel, system: CompiledSystem, note: Note) -> float:
    """Return `max_rel_error`, as in `ValueCheck`, of a network on several core groups; raises as `check_values`."""
    weights, inputs = _arrays(model)
    with errors_of_compiler():
        outputs = run_system(system, weights, inputs).outputs[0]
    return _difference(model, weights, inputs, outputs, note)


def _arrays(model: NetworkModel) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return weights and inputs by name."""
    weights = {spec.name: make(spec.wire()) for spec in model.weights}
    return weights, {spec.name: make(spec.wire()) for spec in model.inputs}


def _difference(
    model: NetworkModel,
    weights: Mapping[str, Array],
    inputs: Mapping[str, Array],
    outputs: Mapping[str, Array],
    note: Note,
) -> float:
    gc.collect()  # frames of the run still hold the machine's memories, and the reference needs as much again
    expected = _onnxruntime(model, weights, inputs)
    error = max((_relative_error(name, outputs[name], values) for name, values in expected.items()), default=0.0)
    if error > TOLERANCE:
        note(f"The values differ from ONNX Runtime's by {error:.2g} of the largest; at most {TOLERANCE:g} is expected")
    return error


def _onnxruntime(model: NetworkModel, weights: Mapping[str, Array], inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return ONNX Runtime's outputs; raises InputError if it cannot run the network, which then is not checked."""
    options = session_options()
    options.add_session_config_entry("session.disable_prepacking", "1")  # it doubles the memory, for one run
    try:
        session = open_session(model.content, options, weights)
        found = session.run(None, dict(inputs))
    except Exception as error:  # the runtime's exceptions share no narrower base
        what = f"The values of {printable(model.name, 80)} cannot be checked"
        why = f"ONNX Runtime cannot run the network: {printable(str(error), 200)}"
        raise InputError(what, why=why, next_step="Pass --no-values to measure its time only") from error
    names = [output.name for output in session.get_outputs()]
    return {name: np.asarray(value) for name, value in zip(names, found, strict=True)}


def _relative_error(name: str, ours: Array, theirs: Array) -> float:
    mine, reference = ours.astype(np.float64), theirs.astype(np.float64)
    finite = np.isfinite(reference)
    # Both must have the same infinities and NaNs.
    if ours.shape != theirs.shape or not np.array_equal(mine[~finite], reference[~finite], equal_nan=True):
        why = f"{(~finite).sum()} of its {reference.size} values are not finite; the emulator has others"
        raise HarnessError(f"Output {name[:80]!r} differs from ONNX Runtime's", why=why)
    if not finite.any():
        return 0.0
    difference, scale = np.abs(mine[finite] - reference[finite]).max(), np.abs(reference[finite]).max()
    if not np.isfinite(difference):
        raise HarnessError(f"Output {name[:80]!r} is not finite where ONNX Runtime's is")
    return float(difference / scale) if scale else float(difference)
