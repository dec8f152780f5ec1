"""Null probes for the overhead regression, with input and output sizes that vary independently (S1.4).

Where a probe hands over as much as it hands back, a and b cannot be told apart, and where the auxiliary
layer reads all that was handed over, a and the auxiliary layer's own cost cannot. Three families mend it:
pooling at several strides (output varies at a fixed input), a slice in front (the auxiliary layer reads
a small part of a large input), and stacks of auxiliary layers (their fixed cost apart from that of a run).
"""

from __future__ import annotations

from harness.network.assemble import ModelBuilder
from harness.network.graph import TensorType
from harness.probe.auxiliary import AuxiliaryKind, attach, pool, slice_leading, unsqueezed
from harness.probe.probe import Probe, finish
from harness.probe.terms import Terms

CHANNELS = 3
"""Channels of a picture: too few for any blocked layout, so that no reordering hides in a and b."""
CHANNEL_CHOICES = (3, 20, 180)
EDGES = (8, 16, 32, 64, 128, 256, 512)
ALWAYS_UP_TO_EDGE = 128
STACKS = (2, 4, 8)
_OPSET = 13


def calibration_probes(auxiliary: AuxiliaryKind, largest_bytes: int) -> tuple[Probe, ...]:
    """Null probes up to about the largest input or output of the networks at hand, and at least to 200 kB."""
    edges = [edge for edge in EDGES if edge <= ALWAYS_UP_TO_EDGE or CHANNELS * 4 * edge * edge <= 2 * largest_bytes]
    if auxiliary == "avgpool":
        varied = [_null(edge, CHANNELS, {edge, edge // 4, 1}, auxiliary) for edge in edges]
    else:  # the output of a convolution follows its positions, its input the channels too
        varied = [
            _null(edge, channels, {1}, auxiliary)
            for edge in edges
            for channels in CHANNEL_CHOICES
            if channels * edge * edge <= CHANNELS * edges[-1] ** 2
        ]
    return (
        *(probe for family in varied for probe in family),
        *(_sliced(edge, part, auxiliary) for edge in edges if edge >= 64 for part in sorted({EDGES[0], edge // 4})),
        *(_stacked(edge, depth, auxiliary) for edge in (EDGES[0], 64) for depth in STACKS),
        *(_viewed(edge, auxiliary) for edge in edges),
    )


def _picture(edge: int, channels: int = CHANNELS) -> TensorType:
    return TensorType("float32", (1, channels, edge, edge))


def _reduce(builder: ModelBuilder, tensor: str, stride: int, auxiliary: AuxiliaryKind) -> tuple[str, Terms]:
    return pool(builder, tensor, (stride, stride)) if auxiliary == "avgpool" else attach(builder, tensor, auxiliary)


def _null(edge: int, channels: int, strides: set[int], auxiliary: AuxiliaryKind) -> list[Probe]:
    probes = []
    for stride in sorted(strides):
        builder = ModelBuilder(_OPSET)
        result, terms = _reduce(builder, builder.input(_picture(edge, channels)), stride, auxiliary)
        label = f"null {channels}x{edge}x{edge} /{stride}"
        probes.append(finish("calibration", label, builder.build([result]), terms, auxiliary))
    return probes


def _sliced(edge: int, part: int, auxiliary: AuxiliaryKind) -> Probe:
    builder = ModelBuilder(_OPSET)
    piece = slice_leading(builder, builder.input(_picture(edge)), (1, CHANNELS, part, edge))
    result, terms = attach(builder, piece, auxiliary)
    terms += Terms(slices=1, slice_bytes=builder.type_of(piece).bytes)
    return finish(
        "calibration", f"null {CHANNELS}x{edge}x{edge} sliced to {part}", builder.build([result]), terms, auxiliary
    )


def _stacked(edge: int, depth: int, auxiliary: AuxiliaryKind) -> Probe:
    builder = ModelBuilder(_OPSET)
    tensor, terms = builder.input(_picture(edge)), Terms()
    for _ in range(depth):
        tensor, added = _reduce(builder, tensor, 1, auxiliary)
        terms += added
    return finish("calibration", f"null {CHANNELS}x{edge}x{edge} x{depth}", builder.build([tensor]), terms, auxiliary)


def _viewed(edge: int, auxiliary: AuxiliaryKind) -> Probe:
    """A picture handed over without its leading dimension, which is put in before the auxiliary layer."""
    builder = ModelBuilder(_OPSET)
    picture = unsqueezed(builder, builder.input(TensorType("float32", (CHANNELS, edge, edge))), (0,))
    result, terms = attach(builder, picture, auxiliary)
    label = f"null {CHANNELS}x{edge}x{edge} viewed"
    return finish("calibration", label, builder.build([result]), terms + Terms(views=1), auxiliary)
