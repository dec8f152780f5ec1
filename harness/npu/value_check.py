"""Compare the values that the emulated NPU computes with ONNX Runtime's, on the same seeded weights and inputs."""

import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx

from device_agents.arrays import make
from device_agents.emulated_npu.compiler.compiled import CompiledSystem
from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph
from device_agents.emulated_npu.compiler.stages import compile_beginning
from device_agents.emulated_npu.inference import compute_values
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.many_cores.system_runs import run_system
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import DataType
from harness.errors import HarnessError, InputError
from harness.host_runtime import open_session, refusals, session_options
from harness.npu.activation_tables import in_standard_operators
from harness.npu.error_translation import errors_of_compiler
from harness.npu.loading import CompiledModel, Note
from harness.npu.network_model import NetworkModel
from harness.npu.own_data import NetworkData
from harness.text import printable

TOLERANCE = 1e-4
"""The largest difference that is expected, over the largest value."""
HALF_TOLERANCE = 0.01
"""TOLERANCE for values of float16, which have 11 bits."""
QUANTISED_TOLERANCE = 0.05
"""TOLERANCE for quantised networks: a step of 8 bits is 0.4 %, and one rounding can move later values by several."""
_SATURATING = ("Softmax", "LogSoftmax", "Sigmoid", "HardSigmoid", "Tanh", "Clip", "ArgMax")
_PASSING = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity")
_FEWEST_VALUES = 8
_END, _LEAST_BETWEEN = 1e-6, 0.02
"""The part of the range at either end that counts as the end, and the share of values that must lie between."""


@dataclass(frozen=True)
class ValueCheck:
    """A functional run; `max_rel_error` is the largest difference from ONNX Runtime over its largest value.

    `compared` are the compared tensors: the outputs and, if an output is saturated, as after a softmax with one
    dominant class, the inputs of the saturating operators.
    """

    functional_s: float
    max_rel_error: float
    compared: tuple[str, ...] = ()
    outputs: Mapping[str, Array] = field(default_factory=dict, repr=False)


def has_values(machine: Machine, note: Note) -> bool:
    """Return whether a network for which the machine was chosen has values there, and note if it has none.

    `machine` is that of the compiled network. Its data type is narrower than float32 if the network is of float32 and
    the machine is not.
    """
    if machine.data_type is not DataType.FLOAT32:
        own = machine.data_type.name.lower()
        note(f"{machine.name} computes in {own}: float32 networks can be timed but not evaluated; use {own} networks")
    return machine.data_type is DataType.FLOAT32


def check_values(source: CompiledModel, note: Note, data: NetworkData | None = None) -> ValueCheck:
    """Run the compiled network and ONNX Runtime on its own data, or on seeded weights and inputs.

    Raises HarnessError, a bug, if only one of them has finite values; InputError if ONNX Runtime cannot run it.
    """
    weights, inputs = _arrays(source.model) if data is None else (data.weights, data.inputs)
    start = time.perf_counter()
    with errors_of_compiler():
        outputs = compute_values(source.compiled, weights, inputs)
    functional_s = time.perf_counter() - start
    expected = _onnxruntime(source.model, weights, inputs)
    error = _largest_error(outputs, expected)
    compared = tuple(expected)
    saturated = [name for name, values in expected.items() if _is_saturated(values)]
    in_front = _in_front(source.model, saturated) if saturated else ()
    if in_front:
        beginning = _ending_at(source.model, in_front)
        with errors_of_compiler():
            found = compute_values(compile_beginning(beginning.content, source.compiled), weights, inputs)
        error = max(error, _largest_error(found, _onnxruntime(beginning, weights, inputs)))
        compared = (*compared, *in_front)
    _note_error(error, source.compiled.graph, note)
    return ValueCheck(functional_s, error, compared, outputs)


def system_error(model: NetworkModel, system: CompiledSystem, note: Note) -> float:
    """Return `max_rel_error`, as in `ValueCheck`, of a network on several core groups; raises as `check_values`."""
    weights, inputs = _arrays(model)
    with errors_of_compiler():
        outputs = run_system(system, weights, inputs)
    error = _largest_error(outputs, _onnxruntime(model, weights, inputs))
    _note_error(error, system.graph, note)
    return error


def _arrays(model: NetworkModel) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
    """Return weights and inputs by name."""
    weights = {spec.name: make(spec.wire()) for spec in model.weights}
    return weights, {spec.name: make(spec.wire()) for spec in model.inputs}


def _largest_error(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> float:
    return max((_relative_error(name, ours[name], values) for name, values in theirs.items()), default=0.0)


def _note_error(error: float, graph: Graph, note: Note) -> None:
    is_quantised = any(layer.settings.quantises for layer in graph.layers)
    half = any(value.dtype is DataType.FLOAT16 for value in graph.values.values())
    most = QUANTISED_TOLERANCE if is_quantised else HALF_TOLERANCE if half else TOLERANCE
    if error > most:
        note(f"The values differ from ONNX Runtime's by {error:.2g} of the largest; at most {most:g} is expected")


def _is_saturated(values: Array) -> bool:
    """Return whether almost all values are at the ends of their range."""
    finite = values[np.isfinite(values)].astype(np.float64)
    if finite.size < _FEWEST_VALUES:
        return False
    low, high = float(finite.min()), float(finite.max())
    margin = _END * (high - low)
    return bool(((finite > low + margin) & (finite < high - margin)).mean() < _LEAST_BETWEEN)


def _in_front(model: NetworkModel, outputs: Sequence[str]) -> tuple[str, ...]:
    """Return the tensors that are read by the saturating operators before some outputs."""
    graph = onnx.load_model_from_string(model.content).graph
    writers = {name: node for node in graph.node for name in node.output}
    found: dict[str, None] = {}
    for name in outputs:
        tensor = name
        while (node := writers.get(tensor)) is not None and node.op_type in (*_SATURATING, *_PASSING):
            tensor = node.input[0]
        if tensor != name and tensor in writers:
            found[tensor] = None
    return tuple(found)


def _ending_at(model: NetworkModel, tensors: Sequence[str]) -> NetworkModel:
    """Return a network with these tensors as its outputs."""
    proto = onnx.load_model_from_string(model.content)
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in tensors)
    standard = onnx.ModelProto()
    standard.CopyFrom(proto)
    in_standard_operators(standard)
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.shape_inference.infer_shapes(standard).graph.output)
    return replace(model, content=proto.SerializeToString(deterministic=True))


def _onnxruntime(model: NetworkModel, weights: Mapping[str, Array], inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return ONNX Runtime's outputs; raises InputError if it cannot run the network, which then is not checked."""
    gc.collect()  # frames of the run still hold the machine's memories
    fed = {name: array for name, array in weights.items() if array.dtype.kind == "f"}
    try:
        session = _session(_with_inputs(model.content, fed), {name: weights[name] for name in weights.keys() - fed})
        found = session.run(None, {**inputs, **fed})
    except Exception as error:  # the runtime's exceptions share no narrower base
        what = f"The values of {printable(model.name, 80)} cannot be checked"
        why = f"ONNX Runtime cannot run the network: {printable(str(error), 200)}"
        raise InputError(what, why=why, next_step="Pass --no-values to measure its time only") from error
    names = [output.name for output in session.get_outputs()]
    return {name: np.asarray(value) for name, value in zip(names, found, strict=True)}


def _with_inputs(content: bytes, weights: Mapping[str, Array]) -> bytes:
    """Return a network in ONNX's own operators with some weights as inputs.

    The runtime reads inputs where they are, but copies initializers. Integers stay initializers: they are small.
    """
    proto = onnx.load_model_from_string(content)
    in_standard_operators(proto)
    kept, listed = [], {value.name for value in proto.graph.input}  # as replaceable weights are
    for tensor in proto.graph.initializer:
        if tensor.name in listed & weights.keys():
            continue
        if tensor.name in weights:
            value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            proto.graph.input.append(value)
        else:
            kept.append(tensor)
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    fed: bytes = proto.SerializeToString()
    return fed


def _session(content: bytes, weights: Mapping[str, Array]) -> Any:
    """Return a session that runs the network without fusions, which skip roundings, round elsewhere, or fail.

    Products of integers are exact; by default, those of uint8 and int8 saturate on processors without VNNI.
    """

    def opened(precision: str) -> Any:
        options = session_options(level="DISABLE_ALL")
        options.add_session_config_entry("session.disable_prepacking", "1")  # it doubles the memory, for one run
        options.add_session_config_entry("session.x64quantprecision", precision)
        return open_session(content, options, weights)

    try:
        return opened("1")
    except refusals():  # of products of int8 and int8, which are exact
        return opened("0")


def _relative_error(name: str, ours: Array, theirs: Array) -> float:
    mine, reference = ours.astype(np.float64), theirs.astype(np.float64)
    if ours.shape != theirs.shape:
        why = f"Its shape is {list(ours.shape)} by ONNX's shape inference, and {list(theirs.shape)} there"
        step = "Export with explicit pads if a pooling has auto_pad and dilations, which ONNX Runtime reads otherwise"
        raise HarnessError(f"Output {name[:80]!r} differs from ONNX Runtime's", why=why, next_step=step)
    finite = np.isfinite(reference)
    # Both must have the same infinities and NaNs.
    if not np.array_equal(mine[~finite], reference[~finite], equal_nan=True):
        why = f"{(~finite).sum()} of its {reference.size} values are not finite; the emulator's differ"
        raise HarnessError(f"Output {name[:80]!r} differs from ONNX Runtime's", why=why)
    if not finite.any():
        return 0.0
    difference, scale = np.abs(mine[finite] - reference[finite]).max(), np.abs(reference[finite]).max()
    if not np.isfinite(difference):
        raise HarnessError(f"Output {name[:80]!r} is not finite where ONNX Runtime's is")
    return float(difference / scale) if scale else float(difference)
