"""Pooling over windows and over whole maps, unpooling, and local response normalisation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.constants import known
from device_agents.emulated_npu.compiler.graph.drafts import Builder, Handler
from device_agents.emulated_npu.compiler.graph.hardware_graph import View
from device_agents.emulated_npu.compiler.graph.operators.normalisation import axes_mask
from device_agents.emulated_npu.compiler.graph.operators.spatial.padding import pad_by_zeros
from device_agents.emulated_npu.compiler.graph.operators.spatial.window_attributes import (
    MAX_SPATIAL_AXES,
    MAX_WINDOW,
    Window,
    read_window,
    triple,
)
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import OnnxNode, unsupported
from device_agents.emulated_npu.unit_commands import DataType, Function
from device_agents.emulated_npu.unit_settings import Activation, Binary, Reduction, Settings

COUNT_PADDING = 1


def _max_pool(build: Builder, node: OnnxNode) -> None:
    """Add a MaxPool, and layers for its second output, the indices."""
    source, window = _read(build, node)
    if len(node.outputs) > 1 and node.outputs[1]:
        _number_largest(build, source, window, "F" if node.attribute("storage_order", 0) else "C")
    if not _as_slice(build, node, source, window):
        build.layer(Function.POOL_MAX, [source], build.result(), window.settings())


def _number_largest(build: Builder, source: View, window: Window, order: Literal["C", "F"]) -> None:
    """Add layers that gather the taps of each window, find the first largest, and number it over all maps."""
    output = build.result(1)
    batch, counts, spatial = output.shape[:2], output.shape[2:], source.shape[2:]
    taps, pixels, rank = math.prod(window.kernel), math.prod(spatial), len(spatial)
    along = [
        np.expand_dims(window.elements(axis, counts[axis], spatial[axis]), [*{*range(2 * rank)} - {axis, rank + axis}])
        for axis in range(rank)
    ]
    constants = {
        "elements": np.ravel_multi_index(np.broadcast_arrays(*along), spatial).reshape(*counts, taps),
        "windows": np.arange(math.prod(counts)).reshape(counts) * taps,
        "numbers": np.ravel_multi_index(np.broadcast_arrays(*along), spatial, order=order).reshape(-1),
        "maps": np.arange(math.prod(batch)).reshape(*batch, *[1] * rank) * pixels,
    }
    elements, windows, numbers, maps = (
        build.constant_view(known(f"{output.value}.{name}", array, DataType.INT64)) for name, array in constants.items()
    )
    flat = build.reshape(source, (*batch, pixels), f"{output.value}.flat")
    beside = build.temporary("beside", (*output.shape, taps), build.dtype(source))
    gathered = views.permuted(beside, (*range(2, rank + 3), 0, 1))
    build.layer(Function.GATHER, [views.permuted(flat, (2, 0, 1)), elements], gathered)
    first, place, number = (
        build.temporary(name, output.shape, DataType.INT64) for name in ("first", "place", "number")
    )
    settings = Settings(axes=axes_mask((-1,), len(beside.axes)), mode=Reduction.ARGMAX)
    build.layer(Function.REDUCE, [beside], views.with_axis(first, len(output.axes)), settings)
    build.binary(Binary.ADD, first, windows, place)
    build.layer(Function.GATHER, [numbers, place], number)
    build.binary(Binary.ADD, number, maps, output)


def average_pool(build: Builder, node: OnnxNode) -> None:
    """Add an AveragePool, which counts the padding or not."""
    source, window = _read(build, node)
    if _as_slice(build, node, source, window):
        return
    output = build.result()
    padded = any(window.before) or any(window.after)
    if node.attribute("count_include_pad", 0) and padded:
        if not _overhangs(window, source, output):
            build.layer(Function.POOL_AVERAGE, [source], output, window.settings(COUNT_PADDING))
            return
        # Padding is included, but not the part that ceil_mode adds after it: the padding becomes part of the map.
        source, window = pad_by_zeros(build, source, window.before, window.after), window.without_padding()
    build.layer(Function.POOL_AVERAGE, [source], output, window.settings())


def _read(build: Builder, node: OnnxNode) -> tuple[View, Window]:
    source = build.view(node.inputs[0])
    window = read_window(node, node.attribute("kernel_shape"), source.shape[2:])
    if any(max(pads) >= reach for *pads, reach in zip(window.before, window.after, window.reach, strict=True)):
        raise unsupported(node, "It pads by as much as its kernel or more: a window would contain only padding")
    counts = build.type(node.outputs[0]).shape[2:]
    for count, stride, size, before in zip(counts, window.stride, source.shape[2:], window.before, strict=True):
        if node.attribute("ceil_mode", 0) and (count - 1) * stride >= size + before:
            raise unsupported(node, "With ceil_mode its last window is outside the feature map; runtimes omit it")
    return source, window


def _overhangs(window: Window, source: View, output: View) -> bool:
    """Return whether a last window reaches beyond the padding."""
    windows = zip(output.shape[2:], window.stride, window.reach, strict=True)
    maps = zip(source.shape[2:], window.before, window.after, strict=True)
    return any(
        (count - 1) * stride + reach > sum(sizes) for (count, stride, reach), sizes in zip(windows, maps, strict=True)
    )


def _as_slice(build: Builder, node: OnnxNode, source: View, window: Window) -> bool:
    """Bind pooling with a window of one element to a view; return False for other windows and network outputs.

    An output must be written. Pooling writes it in tiles that follow the layer before it; a copy has other tiles.
    """
    one_element = max(window.kernel) == 1 and not any((*window.before, *window.after))
    if not one_element or node.outputs[0] in build.source.outputs:
        return False
    shape = build.type(node.outputs[0]).shape
    for axis, (size, stride) in enumerate(zip(shape[2:], window.stride, strict=True), start=2):
        source = views.sliced(source, axis, 0, size, stride)
    build.bind(node.outputs[0], source)
    return True


def _global_pool(function: Function, reduction: Reduction) -> Handler:
    def handler(build: Builder, node: OnnxNode) -> None:
        source = build.view(node.inputs[0])
        spatial = source.shape[2:]
        if len(spatial) <= MAX_SPATIAL_AXES and max(spatial, default=1) <= MAX_WINDOW:
            build.layer(function, [source], build.result(), Settings(kernel=triple(spatial, 1)))
        else:
            mask = axes_mask(range(2, len(source.axes)), len(source.axes))
            build.layer(Function.REDUCE, [source], build.result(), Settings(axes=mask, mode=reduction))

    return handler


def _lp_pool(build: Builder, node: OnnxNode) -> None:
    """Add an LpPool: the root of a sum of powers, which is the mean of the window times its size."""
    source, window = _read(build, node)
    p, output = node.attribute("p", 2), build.result()
    powers = _powers(build, source, p)
    mean = build.temporary("mean", output.shape, build.dtype(source))
    build.layer(Function.POOL_AVERAGE, [powers], mean, window.settings(COUNT_PADDING))
    total = build.mapped("total", mean, Activation.SCALE, float(math.prod(window.kernel)), 0.0)
    _root(build, total, p, output)


def _global_lp_pool(build: Builder, node: OnnxNode) -> None:
    """Add a GlobalLpPool: the root of the sum of powers of a whole map."""
    source, p = build.view(node.inputs[0]), node.attribute("p", 2)
    output, rank = build.result(), len(source.axes)
    total = build.temporary("total", output.shape, build.dtype(source))
    settings = Settings(axes=axes_mask(range(2, rank), rank), mode=Reduction.SUM)
    build.layer(Function.REDUCE, [_powers(build, source, p)], total, settings)
    _root(build, total, p, output)


def _powers(build: Builder, source: View, p: int) -> View:
    """Return |x| ** p."""
    if p == 2:
        return build.combined("powers", Binary.MULTIPLY, source, source)
    powers = build.mapped("powers", source, Activation.ABS)
    if p == 1:
        return powers
    return _raised(build, powers, float(p), build.temporary("raised", source.shape, build.dtype(source)))


def _root(build: Builder, total: View, p: int, output: View) -> None:
    """Write total ** (1 / p)."""
    if p == 2:
        build.map(total, output, Activation.SQRT)
    else:
        _raised(build, total, 1 / p, output)


def _raised(build: Builder, source: View, exponent: float, output: View) -> View:
    constant = known(f"{output.value}.exponent", np.array(exponent), build.dtype(source))
    build.binary(Binary.POWER, source, build.constant_view(constant), output)
    return output


def local_response_normalisation(build: Builder, node: OnnxNode) -> None:
    """Add an LRN across channels."""
    axes = len(build.type(node.inputs[0]).shape)
    if axes < 2 or node.attribute("size") < 1:
        raise unsupported(node, f"It sums over {node.attribute('size')} channels of an input of {axes} axes")
    settings = Settings(
        mode=node.attribute("size"),
        alpha=node.attribute("alpha", 1e-4),
        beta=node.attribute("beta", 0.75),
        gamma=node.attribute("bias", 1.0),
    )
    build.layer(Function.LRN, [build.view(node.inputs[0])], build.result(), settings)


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
    dtype = build.dtype(source)
    flat = build.reshape(source, (indices.size,), f"{node.outputs[0]}.flat")
    picked = build.temporary("picked", output.shape, dtype)
    build.layer(Function.GATHER, [flat, build.fixed("origin", np.maximum(places, 0), DataType.INT64)], picked)
    chosen = build.fixed("chosen", places >= 0, DataType.BOOL)
    zero = views.expanded(build.fixed("zero", np.zeros(()), dtype), output.shape)
    build.layer(Function.WHERE, [chosen, picked, zero], output)


HANDLERS: Mapping[str, Handler] = {
    "MaxPool": _max_pool,
    "AveragePool": average_pool,
    "GlobalMaxPool": _global_pool(Function.POOL_MAX, Reduction.MAXIMUM),
    "GlobalAveragePool": _global_pool(Function.POOL_AVERAGE, Reduction.MEAN),
    "LpPool": _lp_pool,
    "GlobalLpPool": _global_lp_pool,
    "MaxUnpool": _max_unpool,
    "LRN": local_response_normalisation,
}
