"""What the emulated NPU computes, beside ONNX Runtime on the same seeded weights and inputs."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.cli.npu_errors import errors_of_compiler
from harness.cli.npu_source import CompiledModel, NetworkModel
from harness.cli.output import note
from harness.errors import HarnessError

if TYPE_CHECKING:
    import numpy as np

    from device_agents.emulated_npu.many_cores.system import CompiledSystem

    Array = np.ndarray[Any, Any]

TOLERANCE = 1e-4


@dataclass(frozen=True)
class Checked:
    """A functional run. `max_rel_error`: the largest difference from ONNX Runtime over the largest of its values.

    It is None where ONNX Runtime cannot run the network.
    """

    functional_s: float
    max_rel_error: float | None


def can_compare(source: CompiledModel) -> bool:
    """Whether the machine computes values; says so where it has timing alone, as with another type than float32."""
    from device_agents.emulated_npu.unit_commands import DataType

    machine = source.compiled.machine
    if machine.data_type is not DataType.FLOAT32:
        note(f"{machine.name} computes in {machine.data_type.name.lower()}: it has a time but no values")
    return machine.data_type is DataType.FLOAT32


def check_values(source: CompiledModel) -> Checked:
    """Runs the compiled network and ONNX Runtime; raises HarnessError, a bug, where one alone has no number."""
    from device_agents.emulated_npu.inference import compute_values

    weights, inputs = _arrays(source.model)
    start = time.perf_counter()
    with errors_of_compiler():
        outputs = compute_values(source.compiled, weights, inputs).outputs
    functional_s = time.perf_counter() - start
    return Checked(functional_s, _difference(source.model, weights, inputs, outputs))


def system_error(model: NetworkModel, system: CompiledSystem) -> float | None:
    """As `max_rel_error` of `check_values`, for a network on several core groups."""
    from device_agents.emulated_npu.many_cores.system_run import run_system

    weights, inputs = _arrays(model)
    outputs = run_system(system, weights, inputs).outputs
    return _difference(model, weights, inputs, outputs)


def _arrays(model: NetworkModel) -> tuple[dict[str, Array], dict[str, Array]]:
    """Weights and inputs by name."""
    from device_agents.arrays import make

    weights = {spec.name: make(spec.wire()) for spec in model.weights}
    return weights, {spec.name: make(spec.wire()) for spec in model.inputs}


def _difference(
    model: NetworkModel, weights: Mapping[str, Array], inputs: Mapping[str, Array], outputs: Mapping[str, Array]
) -> float | None:
    """The largest difference from ONNX Runtime over the largest of its values; None where it has none."""
    gc.collect()  # frames of the run still hold the machine's memories, and the reference needs as much again
    expected = _onnxruntime(model, weights, inputs)
    if expected is None:
        note("ONNX Runtime cannot run this network, so there is nothing to compare its values with")
        return None
    error = max((_relative_error(name, outputs[name], values) for name, values in expected.items()), default=0.0)
    if error > TOLERANCE:
        note(f"The values differ from ONNX Runtime's by {error:.2g} of the largest; at most {TOLERANCE:g} is expected")
    return error


def _onnxruntime(
    model: NetworkModel, weights: Mapping[str, Array], inputs: Mapping[str, Array]
) -> dict[str, Array] | None:
    import os

    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # the wheels report to their vendor unless told before import
    import numpy
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_prepacking", "1")  # once more as much memory, for one run
    if weights:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in weights.values()]
        options.add_external_initializers(list(weights), values)
    try:
        session = onnxruntime.InferenceSession(model.content, options, providers=["CPUExecutionProvider"])
        found = session.run(None, dict(inputs))
    except Exception:  # the runtime's exceptions share no narrower base; without it there is no comparison
        return None
    names = [output.name for output in session.get_outputs()]
    return {name: numpy.asarray(value) for name, value in zip(names, found, strict=True)}


def _relative_error(name: str, ours: Array, theirs: Array) -> float:
    import numpy

    mine, reference = ours.astype(numpy.float64), theirs.astype(numpy.float64)
    finite = numpy.isfinite(reference)
    # Where the network itself leaves the numbers, both must do so alike.
    if ours.shape != theirs.shape or not numpy.array_equal(mine[~finite], reference[~finite], equal_nan=True):
        why = f"{(~finite).sum()} of {reference.size} values are no finite numbers there, not the same ones here"
        raise HarnessError(f"Output {name[:80]!r} differs from ONNX Runtime's", why=why)
    if not finite.any():
        return 0.0
    difference, scale = numpy.abs(mine[finite] - reference[finite]).max(), numpy.abs(reference[finite]).max()
    if not numpy.isfinite(difference):
        raise HarnessError(f"Output {name[:80]!r} is not finite where ONNX Runtime's is")
    return float(difference / scale) if scale else float(difference)
