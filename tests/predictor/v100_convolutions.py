"""The measured convolutions of data/v100_conv_fp16.txt.xz."""

import lzma
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from convolutions import convolution

from harness.predictor.features.layer_features import TrainingExample

_FILE = Path(__file__).resolve().parent / "data" / "v100_conv_fp16.txt.xz"
_HALF_BYTES = 2


@cache
def measured() -> tuple[TrainingExample, ...]:
    """Return all measured rows, in the order of the file."""
    with lzma.open(_FILE, "rt", encoding="ascii") as lines:
        rows = [line.strip().lstrip("{").split("} ") for line in lines]
    return tuple(_sample(layer, float(milliseconds)) for layer, milliseconds in rows if float(milliseconds) > 0.0)


def split(seed: int, *counts: int) -> list[list[TrainingExample]]:
    """Return random disjoint parts of these sizes."""
    samples = measured()
    order = np.random.default_rng(seed).permutation(len(samples))
    ends = np.cumsum(counts)
    return [[samples[place] for place in order[end - count : end]] for count, end in zip(counts, ends, strict=True)]


def _sample(text: str, milliseconds: float) -> TrainingExample:
    kind, *numbers = text.split(",")
    batch, in_channels, height, width, out_channels, kernel, stride, elementwise = map(int, numbers)
    layer = convolution(
        batch=batch,
        in_channels=in_channels,
        out_channels=out_channels,
        size=(height, width),
        kernel=(kernel, kernel),
        stride=(stride, stride),
        padding=(kernel // 2, kernel // 2),
        groups=in_channels if kind == "Depthwise" else 1,
    )
    layer = replace(layer, extra_operands=elementwise, element_bytes=_HALF_BYTES)
    return TrainingExample(layer, milliseconds / 1e3)
