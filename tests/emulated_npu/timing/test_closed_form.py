"""Closed forms against the figures published by their authors, and against counting one by one."""

from __future__ import annotations

import csv
from fractions import Fraction
from pathlib import Path

import pytest
from anchors.published import (
    FOLDER,
    Comparison,
    comparisons,
    fsrcnn_layers,
    read_anchor,
    resnet50_sheet,
    sheet_fps,
    sheet_machine,
)
from hypothesis import given
from hypothesis import strategies as st

from device_agents.emulated_npu.emulator_errors import DoesNotFit, EmulatorError
from device_agents.emulated_npu.timing.closed_form import (
    SheetMachine,
    ValidConvolution,
    chained_elements,
    halo_macs,
    input_stationary_cycles,
    layer_by_layer_elements,
    layer_cycles,
    network_cycles,
    output_stationary_cycles,
    read_sheet,
    sheet_dram_cycles,
    sheet_mac_cycles,
    sheet_volumes,
    weight_stationary_cycles,
)

DEFAULTS = SheetMachine(macs=2048, buffer_kb=512, dram_gb_per_s=Fraction(10))
SIZES = st.integers(1, 12)


@pytest.mark.parametrize("row", comparisons(), ids=lambda row: f"{row.anchor}: {row.quantity}")
def test_published_figure_is_reproduced(row: Comparison) -> None:
    """Every figure of tests/anchors is met within the tolerance that stands beside it."""
    assert row.agrees, f"published {row.published}, ours {row.ours} ({row.error_percent:+.3f} %)"


def test_sheet_sums_to_its_own_cycles_exactly() -> None:
    """At its defaults the sheet's 54 rows sum to 7,113,691 cycles, as a whole number."""
    assert len(resnet50_sheet()) == 54
    assert network_cycles(resnet50_sheet(), DEFAULTS) == 7_113_691


def test_frames_a_second_round_to_the_printed_ones() -> None:
    """All seven configurations of the primer give the figure that is printed, to its last digit."""
    for row in read_anchor("nvdla_resnet50")["primer"]["rows"]:
        digits = 0 if row["half_digit"] == 0.5 else 1
        assert round(sheet_fps(sheet_machine(row, winograd=True)), digits) == row["fps"]


def test_every_intermediate_column_of_the_sheet_is_met() -> None:
    """Volumes, memory cycles and multiplier cycles of all 54 rows are those of the CSV."""
    with (FOLDER / "nvdla_resnet50.csv").open(newline="") as file:
        published = list(csv.DictReader(file))
    for layer, row in zip(resnet50_sheet(), published, strict=True):
        volumes = sheet_volumes(layer, DEFAULTS)
        ours = [round(float(volume), 4) for volume in volumes]
        assert ours == [float(row[f"{column}_kb"]) for column in ("X", "Y", "Z", "AA", "AB")], layer.name
        assert sheet_dram_cycles(layer, DEFAULTS) == int(row["dram_cycles_at_10GBps"]), layer.name
        assert sheet_mac_cycles(layer, DEFAULTS) == int(row["mac_cycles_2048"]), layer.name


def test_without_limit_of_memory_multipliers_alone_count() -> None:
    """No bandwidth limit: the network takes the sum of its multiplier cycles."""
    unlimited = SheetMachine(macs=2048, buffer_kb=512, dram_gb_per_s=None)
    multipliers = sum(sheet_mac_cycles(layer, unlimited) for layer in resnet50_sheet())
    assert network_cycles(resnet50_sheet(), unlimited) == multipliers == 1_647_400


@given(st.sampled_from((2048, 256, 32)), st.integers(1, 100), st.integers(1, 100))
def test_more_bandwidth_is_never_slower_in_the_sheet(macs: int, bandwidth: int, more: int) -> None:
    """Cycles of every row fall or stay with the bandwidth."""
    slow, fast = (SheetMachine(macs, 512, Fraction(value)) for value in (bandwidth, bandwidth + more))
    assert all(layer_cycles(layer, fast) <= layer_cycles(layer, slow) for layer in resnet50_sheet()[::9])


def test_buffer_smaller_than_a_kernels_rows_is_an_error() -> None:
    """The sheet has no answer for a buffer that the rows under one kernel fill; the error names the layer."""
    with pytest.raises(DoesNotFit, match="Conv1"):
        network_cycles(resnet50_sheet(), SheetMachine(32, 8, Fraction(1)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"in_channels", b"channels"),
        (b"conv,3,224", b"conv,three,224"),
        (b"conv,3,224", b"conv,0,224"),
        (b"conv,3,224,224,64,7,7,2,1,1", b"conv,3,224"),
        (b"fc1000,fc", b""),
        (b"Conv1", b"\xff"),
    ],
)
def test_broken_sheet_is_an_error_that_names_the_file(tmp_path: Path, old: bytes, new: bytes) -> None:
    """A column missing, no number, a size of 0, a row cut short, no text: an error of ours."""
    content = (FOLDER / "nvdla_resnet50.csv").read_bytes()
    path = tmp_path / "copy.csv"
    path.write_bytes(content)
    assert read_sheet(path) == resnet50_sheet()
    path.write_bytes(content.replace(old, new, 1))
    with pytest.raises(EmulatorError, match=r"copy\.csv"):
        read_sheet(path)


def test_sheet_that_ends_too_early_is_an_error(tmp_path: Path) -> None:
    """No file, no rows, or a pooled row without one that tells the size after pooling."""
    path = tmp_path / "copy.csv"
    lines = (FOLDER / "nvdla_resnet50.csv").read_text().splitlines(keepends=True)
    with pytest.raises(EmulatorError, match=r"copy\.csv"):
        read_sheet(path)
    for kept, why in ((0, "no rows"), (1, "no rows"), (2, "no row follows"), (54, "no row follows")):
        path.write_text("".join(lines[:kept]))
        with pytest.raises(EmulatorError) as caught:
            read_sheet(path)
        assert why in caught.value.why


def _folds(size: int, array: int) -> int:
    return len(range(0, size, array))


@given(SIZES, SIZES, SIZES, SIZES, SIZES)
def test_stationary_weights_take_as_long_as_their_wavefront(m: int, n: int, k: int, rows: int, columns: int) -> None:
    """A fold loads a row a cycle; vector v then meets the weight at (i, j) i + j cycles after it enters."""
    last = max(rows + v + i + j for v in range(m) for i in range(rows) for j in range(columns))
    expected = _folds(k, rows) * _folds(n, columns) * (last + 1) - 1
    assert weight_stationary_cycles(m, n, k, rows, columns) == expected


@given(SIZES, SIZES, SIZES, SIZES, SIZES)
def test_stationary_sums_take_as_long_as_their_wavefront(m: int, n: int, k: int, rows: int, columns: int) -> None:
    """Product p of the sum at (i, j) is made i + j cycles after both operands enter."""
    last = max(p + i + j for p in range(k) for i in range(rows) for j in range(columns))
    expected = _folds(m, rows) * _folds(n, columns) * (last + 1) - 1
    assert output_stationary_cycles(m, n, k, rows, columns) == expected


@given(SIZES, SIZES, SIZES, SIZES, SIZES)
def test_stationary_inputs_are_stationary_weights_of_the_transposed_product(
    m: int, n: int, k: int, rows: int, columns: int
) -> None:
    """Holding the inputs of A B is holding the weights of its transpose."""
    assert input_stationary_cycles(m, n, k, rows, columns) == weight_stationary_cycles(n, m, k, rows, columns)


def _counted_macs(
    layers: list[ValidConvolution], width: int, height: int, tile_width: int, tile_height: int
) -> tuple[int, int, int]:
    """Multiply-adds tile by tile, from the outputs that each tile needs of every layer."""
    counts = [0, 0, 0]
    for y in range(0, height, tile_height):
        for x in range(0, width, tile_width):
            right, bottom = min(width, x + tile_width), min(height, y + tile_height)
            margin = 0
            for layer in reversed(layers):
                products = layer.kernel**2 * layer.in_channels * layer.out_channels
                new_x = x + margin if x else 0  # what tiles to the left have not computed
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
    """The closed forms equal a walk over all tiles, ragged ones too."""
    ours = halo_macs(layers, width, height, tile_width, tile_height)
    assert tuple(ours) == _counted_macs(layers, width, height, tile_width, tile_height)
    assert ours.retained <= ours.one_direction <= ours.recompute


def test_chaining_saves_external_activations_by_21_to_25() -> None:
    """FSRCNN: layer by layer against chained, and the traffic written out layer by layer."""
    anchor = read_anchor("halo_fsrcnn")
    size = anchor["width"], anchor["height"]
    chained = chained_elements(fsrcnn_layers(), *size)
    single = layer_by_layer_elements(fsrcnn_layers(), *size)
    assert chained == 974 * 554 + 960 * 540 * 16
    intermediates = 970 * 550 * (56 + 12) + (968 * 548 + 966 * 546 + 964 * 544) * 12 + 962 * 542 * (12 + 56)
    assert single == chained + 2 * intermediates
    assert anchor["external"]["ratio"]["low"] <= single / chained <= anchor["external"]["ratio"]["high"]
