"""How many times a device loads the elements of a map whose tiles overlap."""

import math

import pytest
from convolutions import convolution
from hypothesis import given, strategies as st

from harness.predictor.features.layer_arrays import layer_arrays
from harness.predictor.features.layer_features import LayerFeatures, channelwise
from harness.predictor.roofline.tile_refetch import times_loaded

SMALL = st.integers(1, 9)


def counted(layer: LayerFeatures, buffer_bytes: int) -> float:
    """Return the loads of the best cut into tiles of powers of two, counted tile by tile."""

    def tiles(axis: int, computed: int) -> list[range]:
        size, stride, count = layer.in_size[axis], layer.stride[axis], layer.out_size[axis]
        reach = (layer.kernel[axis] - 1) * layer.dilation[axis]
        padding = max(0, (count - 1) * stride + reach + 1 - size) // 2
        ends = [(first, min(first + computed, count) - 1) for first in range(0, count, computed)]
        return [
            range(max(0, first * stride - padding), min(size, last * stride + reach + 1 - padding))
            for first, last in ends
        ]

    def held(axis: int, computed: int) -> int:
        return min(layer.in_size[axis], (computed - 1) * layer.stride[axis] + reaches[axis] + 1)

    reaches = [(taps - 1) * apart for taps, apart in zip(layer.kernel, layer.dilation, strict=True)]
    found = []
    for rows, columns in ((2**one, 2**other) for one in range(6) for other in range(6)):
        rows, columns = min(rows, layer.out_size[0]), min(columns, layer.out_size[1])
        read = held(0, rows) * held(1, columns) * layer.in_channels // layer.groups
        written = rows * columns * layer.columns
        loads = [max(layer.in_size[axis], sum(map(len, tiles(axis, one)))) for axis, one in ((0, rows), (1, columns))]
        if 4 * (read + written) <= buffer_bytes:
            found.append(math.prod(loads))
    taps = math.prod(layer.kernel) * math.prod(layer.out_size)
    return max(1.0, min([taps, *found]) / math.prod(layer.in_size))


@given(
    size=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    kernel=st.tuples(SMALL, SMALL),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 6),
    buffer_bytes=st.integers(1, 10_000),
)
def test_loads_are_those_of_counting(
    size: tuple[int, int], kernel: tuple[int, int], stride: int, dilation: int, buffer_bytes: int
) -> None:
    """The loads equal a count over all tiles of all cuts that fit into the buffer."""
    layer = convolution(
        batch=1,
        in_channels=3,
        out_channels=5,
        size=size,
        kernel=kernel,
        stride=(stride, stride),
        padding=((kernel[0] - 1) * dilation // 2 + 1, (kernel[1] - 1) * dilation // 2 + 1),
        dilation=(dilation, dilation),
    )
    assert times_loaded(layer_arrays([layer]), buffer_bytes)[0] == pytest.approx(counted(layer, buffer_bytes))


def test_maps_are_loaded_once_where_nothing_overlaps_or_all_fits() -> None:
    """Windows without overlap, channels that are cut alone, and maps that fit are loaded once."""
    square = {"batch": 1, "in_channels": 64, "out_channels": 64, "size": (64, 64)}
    pointwise = convolution(**square, kernel=(1, 1))
    dilated = convolution(**square, kernel=(3, 3), padding=(16, 16), dilation=(16, 16))
    pooled = channelwise("MaxPool", batch=1, channels=64, in_size=(64, 64), out_size=(64, 64), kernel=(3, 3))
    arrays = layer_arrays([pointwise, dilated, pooled])
    assert times_loaded(arrays, 1 << 22).tolist() == [1.0, 1.0, 1.0]
    halves = 64 * 4 * (64 * 64 + 32 * 64)  # room for half of the rows; each half also reads 16 rows of the other
    assert times_loaded(arrays, halves).tolist() == [1.0, 1.5, 1.0]
    assert times_loaded(arrays, 1 << 15).tolist() == [1.0, 9.0, 1.0]
