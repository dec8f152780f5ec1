"""The energy of a run: counts of accesses times figures of the machine."""

from dataclasses import fields, replace

import pytest
from hypothesis import given, strategies as st
from timed_programs import compute, convolve, load, machine, mfu, steps_of, store

from device_agents.emulated_npu.machine import energy_figures, load_preset
from device_agents.emulated_npu.machine.parts import Energy
from device_agents.emulated_npu.reports.accounting import run_energy
from device_agents.emulated_npu.timing.cost.command_cost import CostModel
from device_agents.emulated_npu.unit_commands import DataType

PROGRAM = steps_of(load(100), convolve((2, 2), 8, 12), convolve((2, 2), 8, 12), compute(10), store(7))
COUNTS = {"mfu": 2 * 384, "vfu": 10, "nb": 100 + 2 * (96 + 48) + 20 + 7, "sb": 2 * 96, "llc": 0, "ddr": 107}
FIGURES = {"mfu": "mac_pj", "vfu": "lane_pj", **{name: f"{name}_pj_per_byte" for name in ("nb", "sb", "llc", "ddr")}}


@pytest.mark.parametrize("name", FIGURES)
def test_each_figure_counts_its_own_accesses(name: str) -> None:
    """A million picojoules for one kind of access are a microjoule for each, whatever the others are."""
    figures = Energy(**{key: 1e6 if part == name else 1.0 for part, key in FIGURES.items()})
    energy = run_energy(PROGRAM, CostModel(machine(energy=figures)), 0)
    assert getattr(energy, name) == pytest.approx(COUNTS[name])
    assert energy.total == pytest.approx(COUNTS[name] + sum(n for part, n in COUNTS.items() if part != name) / 1e6)


def test_static_power_counts_by_time() -> None:
    """Two milliwatts during 3 ms are 6 microjoules."""
    energy = run_energy([], CostModel(machine(energy=Energy(static_mw=2.0))), 3 * 10**9)
    assert energy.static == pytest.approx(6.0) == pytest.approx(energy.total)


def test_depthwise_on_the_matrix_unit_costs_multiply_adds() -> None:
    """The unit that computes decides whether multiply-adds or operations of lanes are paid."""
    command = convolve((2, 2), 8, 12)
    costs = CostModel(machine(mfu=replace(mfu(4, 4), depthwise="mfu"), energy=Energy(mac_pj=1e6, lane_pj=1e3)))
    assert run_energy(steps_of(command), costs, 0).mfu == pytest.approx(384)


def test_published_figures_stand_in_for_missing_ones() -> None:
    """Horowitz' points are met exactly, larger memories cost more, and a file overrides each figure alone."""
    described = machine(nb_bytes=8_192, sb_bytes=1_048_576, data_type=DataType.INT8)
    figures = energy_figures(described)
    assert (figures.mac_pj, figures.nb_pj_per_byte, figures.sb_pj_per_byte) == pytest.approx((0.3, 1.25, 12.5))
    assert energy_figures(replace(described, nb_bytes=32_768)).nb_pj_per_byte == pytest.approx(2.5)
    for each in fields(Energy):
        own = energy_figures(replace(described, energy=Energy(**{each.name: 42.0})))
        assert own == replace(figures, **{each.name: 42.0})


@given(st.integers(1, 2**30), st.integers(2, 64))
def test_a_byte_of_a_larger_memory_costs_more(size: int, times: int) -> None:
    """The published power law grows with the size, but slower than it."""
    small, large = (energy_figures(machine(nb_bytes=each)).nb_pj_per_byte for each in (size, size * times))
    assert small < large < small * times


def test_the_figures_of_edge_are_the_published_ones() -> None:
    """The table of the preset spells out what a machine without it gets."""
    edge = load_preset("edge")
    published = energy_figures(replace(edge, energy=Energy()))
    for each in fields(Energy):
        assert getattr(edge.energy, each.name) == pytest.approx(getattr(published, each.name), rel=1e-2)
