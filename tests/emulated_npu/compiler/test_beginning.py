"""The first layers of a network, compiled alone, run as they do in the network."""

import numpy as np
from hypothesis import HealthCheck, given, settings, strategies as st
from networks_on_npu import NetworkCase, execute, relative_error
from onnx import ModelProto, helper, load_model_from_string
from random_networks import machines_for, random_networks

from device_agents.emulated_npu.compiler.stages import compile_beginning, compile_model
from device_agents.emulated_npu.emulator_errors import EmulatorError


def _without_last(network: NetworkCase) -> bytes:
    """Return the network up to its last node but one, whose result is the only output."""
    proto: ModelProto = load_model_from_string(network.model)
    del proto.graph.node[-1]
    del proto.graph.output[:]
    proto.graph.output.append(helper.make_empty_tensor_value_info(proto.graph.node[-1].output[0]))
    used = {name for node in proto.graph.node for name in node.input}
    kept = [tensor for tensor in proto.graph.initializer if tensor.name in used]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    return proto.SerializeToString(deterministic=True)


@given(st.data())
@settings(max_examples=12, suppress_health_check=list(HealthCheck))
def test_the_beginning_of_a_network_has_its_chains_and_its_values(data: st.DataObject) -> None:
    """The first layers end their chains where the network does, and have the values that they have in it."""
    network = data.draw(random_networks())
    proto = load_model_from_string(network.model)
    if len(proto.graph.node) < 2:
        return
    machine = data.draw(machines_for(network))
    try:
        whole = compile_model(network.model, machine)
        alone = compile_model(_without_last(network), machine)
    except EmulatorError:
        return
    beginning = compile_beginning(_without_last(network), whole)
    count = len(beginning.graph.layers)
    names = [layer.name for layer in beginning.graph.layers]
    if names == [layer.name for layer in whole.graph.layers[:count]]:
        ends = [decision.end for decision in whole.decisions if decision.end < count]
        assert [decision.end for decision in beginning.decisions] == [*ends, count]
    found, wanted = execute(beginning, network), execute(alone, network)
    assert relative_error(found, wanted) < 1e-5
    assert all(np.isfinite(array).all() for array in found.values())
