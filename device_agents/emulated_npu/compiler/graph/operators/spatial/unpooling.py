"""MaxUnpool by constant indices: every result is picked from the pooled map, or zero."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.constants import known
from device_agents.emulated_npu.compiler.graph.drafts import Builder, Handler
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import OnnxNode, unsupported
from device_agents.emulated_npu.unit_commands import DataType, Function


def _max_unpool(build: Builder, node: OnnxNode) -> None:
    """Add a MaxUnpool; indices count elements of the map that kernel, strides and pads give, or of its first part."""
    source, output = build.view(node.inputs[0]), build.result()
    indices = build.required(node.inputs[1], "index")
    kernel = node.attribute("kernel_shape")
    count = len(kernel)
    strides, pads = node.attribute("strides") or [1] * count, node.attribute("pads") or [0] * 2 * count
    rows = zip(source.shape[2:], kernel, strides, pads[:count], pads[count:], strict=True)
    spatial = [(size - 1) * step - first - last + taps for size, taps, step, first, last in rows]
    shape = (*source.shape[:2], *spatial)
    fits = indices.shape == source.shape and indices.min() >= 0 and indices.max() < math.prod(shape)
    if not fits or any(have > size for have, size in zip(shape, output.shape, strict=True)):
        raise unsupported(node, f"Its indices do not fit maps of shape {list(source.shape)} and {list(shape)}")
    origin = np.full(math.prod(shape), -1, np.int64)
    origin[indices.reshape(-1)] = np.arange(indices.size)  # the last of several elements in one place counts
    places = np.full(output.shape, -1, np.int64)
    places[tuple(slice(size) for size in shape)] = origin.reshape(shape)
    name, dtype = node.outputs[0], build.dtype(source)
    flat = build.reshape(source, (indices.size,), f"{name}.flat")
    picked = build.temporary("picked", output.shape, dtype)
    second = build.constant_view(known(f"{name}.origin", np.maximum(places, 0), DataType.INT64))
    build.layer(Function.GATHER, [flat, second], picked)
    chosen = build.constant_view(known(f"{name}.chosen", places >= 0, DataType.BOOL))
    zero = views.expanded(build.constant_view(known(f"{name}.zero", np.zeros(()), dtype)), output.shape)
    build.layer(Function.WHERE, [chosen, picked, zero], output)


HANDLERS: Mapping[str, Handler] = {"MaxUnpool": _max_unpool}
