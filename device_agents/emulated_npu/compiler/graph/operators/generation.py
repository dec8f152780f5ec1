"""Operators that make tensors of a known shape: ConstantOfShape and Range."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import numpy_helper

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.constants import known
from device_agents.emulated_npu.compiler.graph.drafts import Builder, Handler
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import OnnxNode
from device_agents.emulated_npu.unit_settings import Binary


def _constant_of_shape(build: Builder, node: OnnxNode) -> None:
    """Bind a tensor of one value; the model states its shape, which the network would compute."""
    kind = build.type(node.outputs[0])
    value = node.attribute("value")
    array = np.zeros(()) if value is None else numpy_helper.to_array(value).reshape(())
    build.bind(
        node.outputs[0], build.constant_view(known(f"{node.outputs[0]}.filled", np.full(kind.shape, array), kind.dtype))
    )


def _range(build: Builder, node: OnnxNode) -> None:
    """Add a Range of stated length: start + place * delta."""
    output = build.result()
    dtype = build.dtype(output)
    start, delta = (views.divided(build.view(node.inputs[place]), (1,)) for place in (0, 2))
    places = known(f"{node.outputs[0]}.places", np.arange(output.shape[0]), dtype)
    scaled = build.temporary("scaled", output.shape, dtype)
    build.binary(Binary.MULTIPLY, build.constant_view(places), delta, scaled)
    build.binary(Binary.ADD, scaled, start, output)


HANDLERS: Mapping[str, Handler] = {"ConstantOfShape": _constant_of_shape, "Range": _range}
