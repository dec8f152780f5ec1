"""Normalisation: batch, layer, instance, group and RMS normalisation, norms, and softmax."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.constants import batch_normalisation_step
from device_agents.emulated_npu.compiler.graph.drafts import Builder, Handler
from device_agents.emulated_npu.compiler.graph.hardware_graph import View
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import IN_INFERENCE_MODE, OnnxNode, unsupported
from device_agents.emulated_npu.numpy_types import NUMPY_TYPES
from device_agents.emulated_npu.unit_commands import Function
from device_agents.emulated_npu.unit_settings import Activation, Binary, Reduction, Settings

_SMALLEST_DEVIATION = 1e-9
RECOGNISED = "(layer normalisation)"
"""The operator of nodes that a pattern has merged; no operator of ONNX can have this name."""


def axes_mask(axes: Sequence[int], rank: int) -> int:
    """Return a mask with a bit for every axis; negative axes count from the end."""
    return sum(1 << axis for axis in {axis % rank for axis in axes})


def _batch(build: Builder, node: OnnxNode) -> None:
    """Add a BatchNormalization at inference: one step along channels, in a separate layer until folding."""
    if node.attribute("training_mode", 0) or any(node.outputs[1:]):
        raise unsupported(node, "It is in training mode", IN_INFERENCE_MODE)
    if not node.attribute("spatial", 1):
        raise unsupported(node, "It normalises each element separately")
    channels = build.type(node.inputs[0]).shape[1:2]
    if any(build.type(name).shape != channels for name in node.inputs[1:5]):
        raise unsupported(node, f"Its parameters do not have the shape {list(channels)}")
    if any(build.constant(name) is None for name in node.inputs[1:5]):
        _computed_batch(build, node)
        return
    parameters = [build.parameter(name, "parameter") for name in node.inputs[1:5]]
    draft = build.layer(Function.AFFINE, [build.view(node.inputs[0])], build.result())
    draft.steps.append(batch_normalisation_step(parameters, node.attribute("epsilon", 1e-5)))


def _computed_batch(build: Builder, node: OnnxNode) -> None:
    """Add a BatchNormalization by parameters that the network computes."""
    source = build.view(node.inputs[0])
    shape = (source.shape[1], *[1] * (len(source.axes) - 2))
    scale, bias, mean, variance = (build.divided(build.view(name), shape) for name in node.inputs[1:5])
    total = build.mapped("total", variance, Activation.SCALE, 1.0, node.attribute("epsilon", 1e-5))
    root = build.mapped("root", total, Activation.SQRT)
    centred = build.combined("centred", Binary.SUBTRACT, source, mean)
    quotient = build.combined("quotient", Binary.DIVIDE, centred, root)
    build.binary(Binary.ADD, build.combined("scaled", Binary.MULTIPLY, quotient, scale), bias, build.result())


def _mean_variance(build: Builder, node: OnnxNode) -> None:
    """Add a MeanVarianceNormalization, which divides by the deviation plus a billionth."""
    source = build.view(node.inputs[0])
    axes = node.attribute("axes", (0, 2, 3))
    normalize(build, source, build.result(), axes, _SMALLEST_DEVIATION**2, ())


def normalize(
    build: Builder, source: View, output: View, axes: Sequence[int], epsilon: float, factors: Sequence[View]
) -> None:
    """Add a layer (x - mean) / sqrt(variance + epsilon) * factors[0] + factors[1], with the factors broadcast."""
    settings = Settings(axes=axes_mask(axes, len(source.axes)), alpha=epsilon)
    inputs = [source, *(build.expanded(factor, source.shape, "scale or shift") for factor in factors)]
    build.layer(Function.NORMALIZE, inputs, output, settings)


def _reshaped_factors(build: Builder, node: OnnxNode, shape: Sequence[int]) -> list[View]:
    """Return scale and bias with further axes of size 1."""
    return [build.divided(build.view(name), shape) for name in node.inputs[1:3]]


def _axis(node: OnnxNode, rank: int) -> int:
    """Return the first normalised axis, which shape inference does not check."""
    axis: int = node.attribute("axis", -1)
    if not -rank <= axis < rank:
        raise unsupported(node, f"Its axis is {axis}, and its input has {rank} axes")
    return axis % rank


def _layer(build: Builder, node: OnnxNode) -> None:
    if any(node.outputs[1:]):
        raise unsupported(node, "Its mean and deviation are not supported as outputs")
    source = build.view(node.inputs[0])
    axis = _axis(node, len(source.axes))
    factors = [build.view(name) for name in node.inputs[1:3] if name]
    axes = range(axis, len(source.axes))
    normalize(build, source, build.result(), axes, node.attribute("epsilon", 1e-5), factors)


def _recognised(build: Builder, node: OnnxNode) -> None:
    """Add a layer normalisation that the file spells out in several nodes."""
    factors = [build.view(name) for name in node.inputs[1:]]
    source = build.view(node.inputs[0])
    normalize(build, source, build.result(), node.attribute("axes"), node.attribute("epsilon"), factors)


def _instance(build: Builder, node: OnnxNode) -> None:
    source = build.view(node.inputs[0])
    rank = len(source.axes)
    if rank < 3:
        raise unsupported(node, f"Its input has {rank} axes; normalising each channel takes 3 or more")
    factors = _reshaped_factors(build, node, (source.shape[1], *[1] * (rank - 2)))
    normalize(build, source, build.result(), range(2, rank), node.attribute("epsilon", 1e-5), factors)


def _group(build: Builder, node: OnnxNode) -> None:
    """Add a GroupNormalization on views with an axis of groups; factors are per channel, or (opset 18) per group."""
    source, groups = build.view(node.inputs[0]), node.attribute("num_groups")
    batch, channels, *spatial = source.shape
    if groups < 1 or channels % groups:
        raise unsupported(node, f"Its {groups} groups do not divide {channels} channels")
    shape = (batch, groups, channels // groups, *spatial)
    per_group = math.prod(build.type(node.inputs[1]).shape) == groups
    factor_shape = (groups, 1 if per_group else channels // groups, *[1] * len(spatial))
    factors = _reshaped_factors(build, node, factor_shape)
    output, divided = views.divided(build.result(), shape), views.divided(source, shape)
    normalize(build, divided, output, range(2, len(shape)), node.attribute("epsilon", 1e-5), factors)


def _root_mean_square(build: Builder, node: OnnxNode) -> None:
    """Add x / sqrt(mean of squares + epsilon) * scale as several layers."""
    source, kind = build.view(node.inputs[0]), build.type(node.outputs[0])
    rank = len(source.axes)
    axis = _axis(node, rank)
    reduced = (*kind.shape[:axis], *[1] * (rank - axis))
    squares = build.combined("squares", Binary.MULTIPLY, source, source)
    mean = build.temporary("mean", reduced, kind.dtype)
    mask = axes_mask(range(axis, rank), rank)
    build.layer(Function.REDUCE, [squares], mean, Settings(axes=mask, mode=Reduction.MEAN))
    total = build.mapped("sum", mean, Activation.SCALE, 1.0, node.attribute("epsilon", 1e-5))
    quotient = build.combined("quotient", Binary.DIVIDE, source, build.mapped("root", total, Activation.SQRT))
    build.binary(Binary.MULTIPLY, quotient, build.view(node.inputs[1]), build.result())


def _simplified(build: Builder, node: OnnxNode) -> None:
    """Add what ONNX Runtime calls SimplifiedLayerNormalization in files that it has optimised."""
    if any(node.outputs[1:]):
        raise unsupported(node, "Its second output is not supported")
    _root_mean_square(build, node)


def _norm(build: Builder, node: OnnxNode) -> None:
    """Add an LpNormalization: x divided by its norm along an axis; where all elements are zero, zeros."""
    source, kind = build.view(node.inputs[0]), build.type(node.outputs[0])
    rank, p = len(source.axes), node.attribute("p", 2)
    if p not in (1, 2):
        raise unsupported(node, f"Its p is {p}; 1 and 2 are supported")
    axis = _axis(node, rank)
    shape = tuple(1 if place == axis else size for place, size in enumerate(source.shape))
    norm = build.temporary("norm", shape, kind.dtype)
    mode = Reduction.L1 if p == 1 else Reduction.L2
    build.layer(Function.REDUCE, [source], norm, Settings(axes=axes_mask((axis,), rank), mode=mode))
    least = float(np.finfo(NUMPY_TYPES[kind.dtype]).smallest_subnormal)
    divisor = build.mapped("divisor", norm, Activation.CLIP, least, math.inf)
    build.binary(Binary.DIVIDE, source, divisor, build.result())


def _softmax(log: int) -> Handler:
    def handler(build: Builder, node: OnnxNode) -> None:
        """Add a softmax along an axis; before opset 13, along all axes from it on."""
        source = build.view(node.inputs[0])
        rank = len(source.axes)
        recent = build.source.opset >= 13
        axis = node.attribute("axis", -1 if recent else 1)
        first = axis % rank
        axes = [first] if recent else range(first, rank)
        build.layer(Function.SOFTMAX, [source], build.result(), Settings(axes=axes_mask(axes, rank), mode=log))

    return handler


HANDLERS: Mapping[str, Handler] = {
    "BatchNormalization": _batch,
    "LayerNormalization": _layer,
    RECOGNISED: _recognised,
    "InstanceNormalization": _instance,
    "MeanVarianceNormalization": _mean_variance,
    "GroupNormalization": _group,
    "RMSNormalization": _root_mean_square,
    "SimplifiedLayerNormalization": _simplified,
    "LpNormalization": _norm,
    "Softmax": _softmax(0),
    "LogSoftmax": _softmax(1),
}
