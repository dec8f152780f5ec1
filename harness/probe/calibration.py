"""Null probes for the overhead regression, with input and output sizes that vary independently (S1.4).

If a probe's input is as large as its output, a and b cannot be separated. If the auxiliary layer reads the whole input,
a cannot be separated from the auxiliary layer's own cost. So pooling has several strides, which vary the output at a
fixed input. A slice in front makes it read a small part, and stacks of it separate its fixed cost from that of a run.
Several auxiliary layers side by side have further inputs, and several on one input have further outputs; none reads
another, because a runtime copies a result that is both returned and read. Pictures have one channel, which every layout
keeps in the same order: OpenVINO pools three in blocks of 16, so a, b and c would hold reorders.

A device with its own memory first stores its results there, and that time would be counted as b. Stacks of
convolutions compute so much that the device stores while it computes; windows at their end return more or less of it.
Each load and store also waits for that memory, which would be counted as c, so some probes have several of them.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace

from harness.network.assemble import ModelBuilder
from harness.network.network import TensorType
from harness.probe.auxiliary import AuxiliaryKind, attach_strided, slice_leading, unsqueezed
from harness.probe.overhead_terms import OverheadTerms
from harness.probe.probe import Probe, finish

CHANNELS = 3
"""Channels of a picture of a device with its own memory, or before a convolution."""
CHANNEL_CHOICES = (3, 20, 180)
EDGES = (8, 16, 32, 64, 128, 256, 512)
ALWAYS_UP_TO_EDGE = 128
STACKS = (2, 4, 8)
MANY_INPUTS = 128
"""Inputs of a probe of which the pairs matter: their cost is small next to that of the inputs if these are few."""
BUSY_EDGE = 256
BUSY_CHANNELS = (1, 32, 32, CHANNELS)
"""Channels between the 1x1 convolutions of a busy stack. At this edge they take 8 MB, more than a core keeps, so that a
device stores one part while it computes the next. The input has one channel because it only adds noise to b."""
BUSY_ROWS = (64, 128, BUSY_EDGE)
"""Nothing hides the store of the last part, which is the same for few rows and for many: only b grows with the rows."""
BUSY_STRIDES = ((1, 2), (16, 8))
"""Of the window whose result is returned or not, and of the one after it. A device may skip a window of one."""
_OPSET = 13


def calibration_probes(auxiliary: AuxiliaryKind, largest_bytes: int) -> tuple[Probe, ...]:
    """Return null probes up to about `largest_bytes`, and at least to 200 kB.

    `largest_bytes` is the largest input or output of the networks to be measured.
    """
    edges = [edge for edge in EDGES if edge <= ALWAYS_UP_TO_EDGE or CHANNELS * 4 * edge * edge <= 2 * largest_bytes]
    if auxiliary.layer.strided:
        varied = [(edge, CHANNELS, stride) for edge in edges for stride in (1, edge // 4, edge)]
    else:  # the output size follows from the picture's edge, the input size also from its channels
        largest = CHANNELS * edges[-1] ** 2
        pictures = itertools.product(edges, CHANNEL_CHOICES)
        varied = [(edge, channels, 1) for edge, channels in pictures if channels * edge**2 <= largest]
    probes = [
        *(_null(f"/{stride}", edge, channels, [stride], auxiliary) for edge, channels, stride in varied),
        *(_sliced(edge, part, auxiliary) for edge in edges if edge >= 64 for part in (EDGES[0], edge // 4)),
        *(_null(f"x{depth}", edge, CHANNELS, [1] * depth, auxiliary) for edge in (EDGES[0], 64) for depth in STACKS),
        *(_viewed(edge, auxiliary) for edge in edges),
        *(_side_by_side(count, auxiliary) for count in STACKS),
    ]
    if auxiliary.layer.device_memory:
        probes += [_busy(rows, returned, auxiliary) for rows in BUSY_ROWS for returned in (False, True)]
    else:
        probes += [_side_by_side(MANY_INPUTS, auxiliary), *(_returned(count, auxiliary) for count in STACKS)]
    return tuple(probes)


def _picture(edge: int, auxiliary: AuxiliaryKind, channels: int = CHANNELS) -> TensorType:
    """Return the type of a picture; one that is pooled on a processor has its channels below each other."""
    below = channels if auxiliary.layer.strided and not auxiliary.layer.device_memory else 1
    return TensorType("float32", (1, channels // below, below * edge, edge))


def _gather(builder: ModelBuilder, tensor: str, auxiliary: AuxiliaryKind) -> tuple[str, OverheadTerms]:
    """Append an auxiliary layer that returns as little as it can."""
    return attach_strided(builder, tensor, auxiliary, builder.type_of(tensor).shape[2:])


def _finish(
    label: str, builder: ModelBuilder, loaded: TensorType, results: list[str], terms: OverheadTerms, kind: AuxiliaryKind
) -> Probe:
    """Return the null probe; `loaded` is the part of an input that it reads for each result."""
    for result in results if kind.layer.device_memory else ():
        stored = builder.type_of(result)
        terms += OverheadTerms(loaded_bytes=loaded.bytes, stored_bytes=stored.bytes, accesses=2)
    return finish("calibration", label, builder.build(results), terms, kind)


def _null(what: str, edge: int, channels: int, strides: Sequence[int], auxiliary: AuxiliaryKind) -> Probe:
    """Return a probe of auxiliary layers after each other, one for each stride."""
    builder, picture = ModelBuilder(_OPSET), _picture(edge, auxiliary, channels)
    result, terms = builder.input(picture), OverheadTerms()
    for stride in strides:
        result, added = attach_strided(builder, result, auxiliary, (stride, stride))
        terms += added
    label = f"null {channels}x{edge}x{edge} {what}"
    return _finish(label, builder, picture, [result], terms, auxiliary)


def _returned(count: int, auxiliary: AuxiliaryKind) -> Probe:
    """Return a probe of auxiliary layers on one input, each with its own strides and output."""
    builder, picture = ModelBuilder(_OPSET), _picture(EDGES[0], auxiliary)
    source, results, terms = builder.input(picture), [], OverheadTerms()
    # A runtime computes equal auxiliary layers once.
    for strides in itertools.islice(itertools.product((1, 2, 4), repeat=2), count):
        result, added = attach_strided(builder, source, auxiliary, strides)
        results.append(result)
        terms += added
    label = f"null {CHANNELS}x{EDGES[0]}x{EDGES[0]} returned {count} times"
    return _finish(label, builder, picture, results, terms, auxiliary)


def _sliced(edge: int, part: int, auxiliary: AuxiliaryKind) -> Probe:
    builder = ModelBuilder(_OPSET)
    read = replace(_picture(part, auxiliary), shape=(*_picture(part, auxiliary).shape[:-1], edge))
    piece = slice_leading(builder, builder.input(_picture(edge, auxiliary)), read.shape)
    result, terms = _gather(builder, piece, auxiliary)
    terms += OverheadTerms(slices=1, slice_bytes=read.bytes)
    return _finish(f"null {CHANNELS}x{edge}x{edge} sliced to {part}", builder, read, [result], terms, auxiliary)


def _side_by_side(count: int, auxiliary: AuxiliaryKind) -> Probe:
    """Return a probe of several small inputs, each with its own auxiliary layer and output."""
    builder = ModelBuilder(_OPSET)
    picture = _picture(EDGES[0], auxiliary)
    results, terms = [], OverheadTerms()
    for _ in range(count):
        result, added = attach_strided(builder, builder.input(picture), auxiliary, (1, 1))
        results.append(result)
        terms += added
    label = f"null {count} of {CHANNELS}x{EDGES[0]}x{EDGES[0]}"
    return _finish(label, builder, picture, results, terms, auxiliary)


def _viewed(edge: int, auxiliary: AuxiliaryKind) -> Probe:
    """Return a probe whose input lacks the leading dimension, which is inserted before the auxiliary layer."""
    builder = ModelBuilder(_OPSET)
    whole = _picture(edge, auxiliary)
    picture = unsqueezed(builder, builder.input(TensorType("float32", whole.shape[1:])), (0,))
    result, terms = _gather(builder, picture, auxiliary)
    label = f"null {CHANNELS}x{edge}x{edge} viewed"
    return _finish(label, builder, whole, [result], terms + OverheadTerms(views=1), auxiliary)


def _busy(rows: int, returned: bool, auxiliary: AuxiliaryKind) -> Probe:
    """Return a probe of consecutive convolutions and windows that read all of their result and return little of it.

    The computation hides its loads and stores, and is the same if it also returns the result.
    """
    builder = ModelBuilder(_OPSET)
    tensor = builder.input(TensorType("float32", (1, BUSY_CHANNELS[0], rows, BUSY_EDGE)))
    for channels in BUSY_CHANNELS[1:]:
        tensor = builder.convolution(tensor, channels, [1, 1])
    result, terms = attach_strided(builder, tensor, auxiliary, BUSY_STRIDES[0])
    few, added = attach_strided(builder, result, auxiliary, BUSY_STRIDES[1])
    results = [result, few] if returned else [few]
    written = sum(builder.type_of(one).bytes for one in results)
    terms += added + OverheadTerms(stacks=1, stacked_rows=rows, last_bytes=written // rows)
    label = f"busy {rows}x{BUSY_EDGE}{' returned' if returned else ''}"
    return finish("calibration", label, builder.build(results), terms, auxiliary)
