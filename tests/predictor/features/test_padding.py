"""The share of a window that lies on its map."""

import pytest
from convolutions import convolution
from hypothesis import given, strategies as st

from harness.predictor.features.layer_arrays import layer_arrays
from harness.predictor.features.layer_features import matrix_product
from harness.predictor.roofline.device_tiling import shares_of, work_on_map

SMALL = st.integers(1, 9)


@given(size=st.integers(1, 20), taps=SMALL, stride=st.integers(1, 3), dilation=st.integers(1, 6), data=st.data())
def test_shares_are_those_of_counting(size: int, taps: int, stride: int, dilation: int, data: st.DataObject) -> None:
    """The shares equal a count over all positions and taps of one axis."""
    least = max(0, -(-((taps - 1) * dilation + 1 - size) // 2))
    padding = data.draw(st.integers(least, least + taps // 2))
    layer = convolution(
        batch=1,
        in_channels=1,
        out_channels=1,
        size=(size, 1),
        kernel=(taps, 1),
        stride=(stride, 1),
        padding=(padding, 0),
        dilation=(dilation, 1),
    )
    count = layer.out_size[0]
    # A layer does not store its padding: what the sizes need at least is divided over both ends.
    used = max(0, (count - 1) * stride + (taps - 1) * dilation + 1 - size) // 2
    on_map = [
        [0 <= position * stride + tap * dilation - used < size for tap in range(taps)] for position in range(count)
    ]
    found = shares_of(layer_arrays([layer]), "height")
    assert found.taps[0] == pytest.approx(sum(map(sum, on_map)) / (count * taps))
    assert found.whole[0] == pytest.approx(sum(map(all, on_map)) / count)


def test_work_on_the_map_by_hand() -> None:
    """Without padding a window takes all of its time; with only its centre on the map, a ninth at the pace of edges."""
    plain = matrix_product(rows=64, depth=32, columns=32)
    whole, centre = (
        convolution(
            batch=1,
            in_channels=16,
            out_channels=16,
            size=(8, 8),
            kernel=(3, 3),
            padding=(pad, pad),
            dilation=(apart, apart),
        )
        for pad, apart in ((0, 1), (8, 8))
    )
    assert work_on_map(layer_arrays([plain, whole, centre])) == pytest.approx([1.0, 1.0, 2 / 9])
