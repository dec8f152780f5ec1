"""The values of every built-in network on the emulated NPU against ONNX Runtime, for every treatment of the halo."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from networks_on_npu import (
    TOLERANCE,
    Array,
    NetworkCase,
    builtin_network,
    execute,
    relative_error,
    saturated_softmaxes,
    softmax_by_runtime,
    with_outputs,
)
from onnx import NodeProto
from scratchpad import rows_are_independent

from device_agents.emulated_npu.compiler.compiled import Compiled
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.machine import find_machine
from harness.network.model_references import BUILTIN_NAMES, LIGHT_FILES

FAST = ("dscnn", "squeezenet")
MODES = (Options(), Options(halo="recompute"), Options(halo="refetch"))


@cache
def _compiled(name: str, options: Options) -> Compiled:
    """Return a fast network with varied weights, compiled for the edge."""
    return compile_model(builtin_network(name).model, find_machine("edge"), options)


def _marked(names: Iterable[str], fast: tuple[str, ...]) -> list[Any]:
    return [pytest.param(name, marks=() if name in fast else pytest.mark.long) for name in names]


def _sums_alike(first: Compiled, second: Compiled) -> bool:
    """Return whether both programs add the products of every output in the same order: the same channel blocks."""

    def depths(compiled: Compiled) -> dict[int, set[tuple[int, int]]]:
        found: dict[int, set[tuple[int, int]]] = {}
        for plan in compiled.plans:
            for index, weights in plan.weights.items():
                found.setdefault(index, set()).update(b.channels for load in weights.loads for b in load.blocks)
        return found

    return depths(first) == depths(second)


@pytest.mark.parametrize("name", _marked(BUILTIN_NAMES, FAST))
def test_values_with_varied_weights(name: str) -> None:
    """By default, recomputed and layer by layer, values agree within 1e-4, and equal orders of sums give equal bits."""
    network = builtin_network(name)
    assert all(array.std() > 0.01 * np.abs(array).max() for array in network.expected.values())
    runs = []
    for options in MODES:
        compiled = _compiled(name, options)
        runs.append((compiled, execute(compiled, network)))
        assert relative_error(runs[-1][1], network.expected) <= TOLERANCE
    for compiled, outputs in runs[1:]:
        if rows_are_independent() and _sums_alike(runs[0][0], compiled):
            for output, array in outputs.items():
                assert array.tobytes() == runs[0][1][output].tobytes()
    if name not in FAST:
        builtin_network.cache_clear()
        _compiled.cache_clear()


@pytest.mark.parametrize("name", _marked(LIGHT_FILES, ("squeezenet",)))
def test_light_networks_unmodified(name: str) -> None:
    """The light networks run with the constants of their files; a saturated softmax is compared for the same input."""
    network = builtin_network(name, varied=False)
    compiled = compile_model(network.model, find_machine("edge"))
    outputs = execute(compiled, network)
    saturated = saturated_softmaxes(network)
    if saturated:
        _assert_saturated_outputs(network, compiled, outputs, saturated)
    ill_conditioned = {softmax.output[0] for softmax in saturated}
    conditioned = {name: array for name, array in network.expected.items() if name not in ill_conditioned}
    assert relative_error(outputs, conditioned) <= TOLERANCE


def _assert_saturated_outputs(
    network: NetworkCase, compiled: Compiled, outputs: Mapping[str, Array], saturated: Sequence[NodeProto]
) -> None:
    """Compare the logits with ONNX Runtime's, and each softmax with ONNX Runtime's for the emulator's own logits.

    The last bit of a huge logit moves the whole softmax, and the last bit depends on the processor's BLAS kernel.
    """
    shown = with_outputs(network, [softmax.input[0] for softmax in saturated])
    compiled_with_logits = compile_model(shown.model, compiled.machine)
    assert _sums_alike(compiled, compiled_with_logits)
    found = execute(compiled_with_logits, shown)
    expected = dict(shown.expected)
    for softmax in saturated:
        output = softmax.output[0]
        expected[output] = softmax_by_runtime(network, softmax, found[softmax.input[0]])
        assert outputs[output].tobytes() == found[output].tobytes()
    assert relative_error(found, expected) <= TOLERANCE


@pytest.mark.parametrize("name", FAST)
def test_the_order_of_the_queues_does_not_matter(name: str) -> None:
    """The outputs have the same bits in program order and in both extreme orders of the queues."""
    network = builtin_network(name)
    compiled = _compiled(name, Options())
    outputs = execute(compiled, network)
    for order in ("io-first", "cp-first"):
        for output, array in execute(compiled, network, order).items():
            assert array.tobytes() == outputs[output].tobytes()
