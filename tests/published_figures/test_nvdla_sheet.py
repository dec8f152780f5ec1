"""NVDLA's cost sheet: its sums, its printed digits, and every intermediate column."""

import csv
from fractions import Fraction

import pytest
from hypothesis import given, strategies as st
from published_figures.nvdla_sheet import (
    SheetMachine,
    layer_cycles,
    network_cycles,
    sheet_dram_cycles,
    sheet_mac_cycles,
    sheet_volumes,
)
from published_figures.published import FOLDER, read_anchor, resnet50_sheet, sheet_fps, sheet_machine

DEFAULTS = SheetMachine(macs=2048, buffer_kb=512, dram_gb_per_s=Fraction(10))


def test_sheet_sums_to_its_own_cycles_exactly() -> None:
    """At its defaults the sheet's 54 rows sum to 7,113,691 cycles, as a whole number."""
    assert len(resnet50_sheet()) == 54
    assert network_cycles(resnet50_sheet(), DEFAULTS) == 7_113_691


def test_frames_a_second_round_to_the_printed_ones() -> None:
    """All seven configurations of the primer give the printed figure to its last digit."""
    for row in read_anchor("nvdla_resnet50")["primer"]["rows"]:
        digits = 0 if row["half_digit"] == 0.5 else 1
        assert round(sheet_fps(sheet_machine(row, winograd=True)), digits) == row["fps"]


def test_every_intermediate_column_of_the_sheet_is_met() -> None:
    """All 54 rows have the volumes, memory cycles and multiplier cycles of the CSV."""
    with (FOLDER / "nvdla_resnet50.csv").open(newline="") as file:
        published = list(csv.DictReader(file))
    for layer, row in zip(resnet50_sheet(), published, strict=True):
        volumes = sheet_volumes(layer, DEFAULTS)
        ours = [round(float(volume), 4) for volume in volumes]
        assert ours == [float(row[f"{column}_kb"]) for column in ("X", "Y", "Z", "AA", "AB")], layer.name
        assert sheet_dram_cycles(layer, DEFAULTS) == int(row["dram_cycles_at_10GBps"]), layer.name
        assert sheet_mac_cycles(layer, DEFAULTS) == int(row["mac_cycles_2048"]), layer.name


def test_without_a_bandwidth_limit_only_multipliers_count() -> None:
    """Without a bandwidth limit the network takes the sum of its multiplier cycles."""
    unlimited = SheetMachine(macs=2048, buffer_kb=512, dram_gb_per_s=None)
    multipliers = sum(sheet_mac_cycles(layer, unlimited) for layer in resnet50_sheet())
    assert network_cycles(resnet50_sheet(), unlimited) == multipliers == 1_647_400


@given(st.sampled_from((2048, 256, 32)), st.integers(1, 100), st.integers(1, 100))
def test_more_bandwidth_is_never_slower_in_the_sheet(macs: int, bandwidth: int, more: int) -> None:
    """No row takes more cycles with more bandwidth."""
    slow, fast = (SheetMachine(macs, 512, Fraction(value)) for value in (bandwidth, bandwidth + more))
    assert all(layer_cycles(layer, fast) <= layer_cycles(layer, slow) for layer in resnet50_sheet()[::9])


def test_buffer_smaller_than_a_kernels_rows_is_an_error() -> None:
    """If the rows under one kernel fill the buffer, the error names the layer."""
    with pytest.raises(ValueError, match="Conv1"):
        network_cycles(resnet50_sheet(), SheetMachine(32, 8, Fraction(1)))
