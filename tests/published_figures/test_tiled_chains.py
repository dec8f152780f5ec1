"""Multiply-adds and external elements of tiled chains, against counting tile by tile."""

from hypothesis import given, strategies as st
from published_figures.published import fsrcnn_layers, read_anchor
from published_figures.tiled_chains import ValidConvolution, chained_elements, halo_macs, layer_by_layer_elements

SIZES = st.integers(1, 12)


def _counted_macs(
    layers: list[ValidConvolution], width: int, height: int, tile_width: int, tile_height: int
) -> tuple[int, int, int]:
    """Return the multiply-adds, counted from the outputs that each tile needs of every layer."""
    counts = [0, 0, 0]
    for y in range(0, height, tile_height):
        for x in range(0, width, tile_width):
            right, bottom = min(width, x + tile_width), min(height, y + tile_height)
            margin = 0
            for layer in reversed(layers):
                products = layer.kernel**2 * layer.in_channels * layer.out_channels
                new_x = x + margin if x else 0  # the part that tiles to the left have not computed
                new_y = y + margin if y else 0
                counts[0] += (right + margin - x) * (bottom + margin - y) * products
                counts[1] += (right + margin - new_x) * (bottom + margin - y) * products
                counts[2] += (right + margin - new_x) * (bottom + margin - new_y) * products
                margin += layer.kernel - 1
    return counts[0], counts[1], counts[2]


LAYERS = st.lists(
    st.builds(ValidConvolution, st.integers(1, 5), st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=4
)


@given(LAYERS, SIZES, SIZES, SIZES, SIZES)
def test_halo_macs_are_those_counted_tile_by_tile(
    layers: list[ValidConvolution], width: int, height: int, tile_width: int, tile_height: int
) -> None:
    """The closed forms equal a count over all tiles, ragged ones included."""
    ours = halo_macs(layers, width, height, tile_width, tile_height)
    assert tuple(ours) == _counted_macs(layers, width, height, tile_width, tile_height)
    assert ours.retained <= ours.one_direction <= ours.recompute


def test_chaining_saves_external_activations_by_21_to_25() -> None:
    """For FSRCNN, chaining moves 21 to 25 times fewer external elements than running layer by layer."""
    anchor = read_anchor("halo_fsrcnn")
    size = anchor["width"], anchor["height"]
    chained = chained_elements(fsrcnn_layers(), *size)
    single = layer_by_layer_elements(fsrcnn_layers(), *size)
    assert chained == 974 * 554 + 960 * 540 * 16
    intermediates = 970 * 550 * (56 + 12) + (968 * 548 + 966 * 546 + 964 * 544) * 12 + 962 * 542 * (12 + 56)
    assert single == chained + 2 * intermediates
    assert anchor["external"]["ratio"]["low"] <= single / chained <= anchor["external"]["ratio"]["high"]
