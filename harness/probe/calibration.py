"""Null probes for the overhead regression, with input and output sizes that vary independently (S1.4).

Where a probe hands over as much as it hands back, a and b cannot be told apart, and where the auxiliary
layer reads all that was handed over, a and the auxiliary layer's own cost cannot. Three families mend it:
pooling at several strides (output varies at a fixed input), a slice in front (the auxiliary layer reads
a small part of a large input), and stacks of auxiliary layers (their fixed cost apart from that of a run).

A device that works beside its host (`rowpool`) stores what it hands back in a memory of its own first, and
that time would pass for b. A fourth family has it compute so much that it stores while it computes: stacks of
convolutions, all alike, with windows at their end that read everything and hand back more or less. Each load and
store also waits for that memory, which would pass for c: a fifth family has several of them in one run.
"""

from __future__ import annotations

import itertools

from harness.network.assemble import ModelBuilder
from harness.network.network import TensorType
from harness.probe.auxiliary import AuxiliaryKind, attach, pool, pool_all, slice_leading, unsqueezed
from harness.probe.overhead_terms import OverheadTerms
from harness.probe.probe import Probe, finish

CHANNELS = 3
"""Channels of a picture: too few for any blocked layout, so that no reordering hides in a and b."""
CHANNEL_CHOICES = (3, 20, 180)
EDGES = (8, 16, 32, 64, 128, 256, 512)
ALWAYS_UP_TO_EDGE = 128
STACKS = (2, 4, 8)
BUSY_EDGE = 256
BUSY_CHANNELS = (1, 32, 32, CHANNELS)
"""Channels between the 1x1 convolutions of a busy stack: at this edge 8 MB, which no core keeps, so that it computes
part by part and stores one part while it computes the next. One channel goes in, as input only adds noise to b."""
BUSY_ROWS = (64, BUSY_EDGE)
"""Nothing hides the store of the last part, which is the same of few rows as of many: b is what grows with the rows."""
BUSY_STRIDES = (1, 2, 4, 8, 16)
_OPSET = 13


def calibration_probes(auxiliary: AuxiliaryKind, largest_bytes: int) -> tuple[Probe, ...]:
    """Null probes up to about the largest input or output of the networks at hand, and at least to 200 kB."""
    edges = [edge for edge in EDGES if edge <= ALWAYS_UP_TO_EDGE or CHANNELS * 4 * edge * edge <= 2 * largest_bytes]
    if auxiliary in ("avgpool", "rowpool"):
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
        *(_side_by_side(count) for count in STACKS if auxiliary == "rowpool"),
        *(_busy(rows, stride) for rows in BUSY_ROWS for stride in BUSY_STRIDES if auxiliary == "rowpool"),
    )


def _picture(edge: int, channels: int = CHANNELS) -> TensorType:
    return TensorType("float32", (1, channels, edge, edge))


def _reduce(builder: ModelBuilder, tensor: str, stride: int, auxiliary: AuxiliaryKind) -> tuple[str, OverheadTerms]:
    """An auxiliary layer that hands back one value for `stride` rows and columns, or as it does where it cannot."""
    if auxiliary == "avgpool":
        return pool(builder, tensor, (stride, stride))
    return pool_all(builder, tensor, (stride, stride)) if auxiliary == "rowpool" else attach(builder, tensor, auxiliary)


def _gather(builder: ModelBuilder, tensor: str, auxiliary: AuxiliaryKind) -> tuple[str, OverheadTerms]:
    """An auxiliary layer that hands back as little as it can."""
    if auxiliary == "rowpool":
        return pool_all(builder, tensor, builder.type_of(tensor).shape[2:])
    return attach(builder, tensor, auxiliary)


def _finish(
    label: str, builder: ModelBuilder, loaded: TensorType, result: str, terms: OverheadTerms, kind: AuxiliaryKind
) -> Probe:
    """The null probe; `loaded` is the part of its input that is read."""
    if kind == "rowpool":
        terms += OverheadTerms(loaded_bytes=loaded.bytes, stored_bytes=builder.type_of(result).bytes, accesses=2)
    return finish("calibration", label, builder.build([result]), terms, kind)


def _null(edge: int, channels: int, strides: set[int], auxiliary: AuxiliaryKind) -> list[Probe]:
    probes = []
    picture = _picture(edge, channels)
    for stride in sorted(strides):
        builder = ModelBuilder(_OPSET)
        result, terms = _reduce(builder, builder.input(picture), stride, auxiliary)
        probes.append(_finish(f"null {channels}x{edge}x{edge} /{stride}", builder, picture, result, terms, auxiliary))
    return probes


def _sliced(edge: int, part: int, auxiliary: AuxiliaryKind) -> Probe:
    builder = ModelBuilder(_OPSET)
    piece = slice_leading(builder, builder.input(_picture(edge)), (1, CHANNELS, part, edge))
    read = builder.type_of(piece)
    result, terms = _gather(builder, piece, auxiliary)
    terms += OverheadTerms(slices=1, slice_bytes=read.bytes)
    return _finish(f"null {CHANNELS}x{edge}x{edge} sliced to {part}", builder, read, result, terms, auxiliary)


def _stacked(edge: int, depth: int, auxiliary: AuxiliaryKind) -> Probe:
    builder = ModelBuilder(_OPSET)
    tensor, terms = builder.input(_picture(edge)), OverheadTerms()
    for _ in range(depth):
        tensor, added = _reduce(builder, tensor, 1, auxiliary)
        terms += added
    return _finish(f"null {CHANNELS}x{edge}x{edge} x{depth}", builder, _picture(edge), tensor, terms, auxiliary)


def _side_by_side(count: int) -> Probe:
    """Several small inputs, each with an auxiliary layer and an output of its own."""
    builder = ModelBuilder(_OPSET)
    picture = _picture(EDGES[0])
    results, terms = [], OverheadTerms()
    for _ in range(count):
        result, added = pool_all(builder, builder.input(picture), (1, 1))
        results.append(result)
        terms += added + OverheadTerms(
            loaded_bytes=picture.bytes, stored_bytes=builder.type_of(result).bytes, accesses=2
        )
    label = f"null {count} of {CHANNELS}x{EDGES[0]}x{EDGES[0]}"
    return finish("calibration", label, builder.build(results), terms, "rowpool")


def _viewed(edge: int, auxiliary: AuxiliaryKind) -> Probe:
    """A picture handed over without its leading dimension, which is put in before the auxiliary layer."""
    builder = ModelBuilder(_OPSET)
    picture = unsqueezed(builder, builder.input(TensorType("float32", (CHANNELS, edge, edge))), (0,))
    result, terms = _gather(builder, picture, auxiliary)
    label = f"null {CHANNELS}x{edge}x{edge} viewed"
    return _finish(label, builder, _picture(edge), result, terms + OverheadTerms(views=1), auxiliary)


def _busy(rows: int, stride: int) -> Probe:
    """Convolutions in a row and windows that read all of their result: loads and stores hide behind the computing."""
    builder = ModelBuilder(_OPSET)
    tensor = builder.input(_busy_picture(rows, BUSY_CHANNELS[0]))
    for inputs, outputs in itertools.pairwise(BUSY_CHANNELS):
        weight = builder.weight(TensorType("float32", (outputs, inputs, 1, 1)), inputs)
        attributes = {"kernel_shape": [1, 1]}
        tensor = builder.operator("Conv", [tensor, weight], _busy_picture(rows, outputs), attributes)
    result, terms = pool_all(builder, tensor, (stride, stride))
    terms += OverheadTerms(stacks=1, stacked_rows=rows, last_bytes=builder.type_of(result).bytes // rows)
    return finish("calibration", f"busy {rows}x{BUSY_EDGE} /{stride}", builder.build([result]), terms, "rowpool")


def _busy_picture(rows: int, channels: int) -> TensorType:
    return TensorType("float32", (1, channels, rows, BUSY_EDGE))
