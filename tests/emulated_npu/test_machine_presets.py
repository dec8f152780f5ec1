"""The presets: valid, with sources, and as the published figures say."""

import dataclasses
import re

import pytest
from published_figures.nvdla_sheet import SheetLayer, sheet_dram_cycles, sheet_mac_cycles
from published_figures.published import read_anchor, resnet50_sheet, sheet_machine

from device_agents.emulated_npu.machine import (
    load_preset,
    preset_names,
    preset_text,
)
from device_agents.emulated_npu.timing.cost.command_cost import CostModel
from device_agents.emulated_npu.unit_commands import Command, DataType, Descriptor, Function, Operand, Space
from device_agents.emulated_npu.unit_settings import Settings

PRIMER = {row["macs"]: row for row in read_anchor("nvdla_resnet50")["primer"]["rows"]}


def test_all_documented_presets_are_valid() -> None:
    """Machines of the emulator, of models and of published chips load under their own names."""
    names = {"edge", "chiplets-64", "systolic-32", "systolic-128", *(f"nvdla-{macs}" for macs in PRIMER)}
    names |= {"nvdla-256-halo", "nvdla-2048-halo", "nvdla-small", "dpu-b4096", "edge-tpu", "eyeriss", "zhang-2015"}
    names |= {*(f"ethos-u55-{macs}" for macs in (32, 64, 128, 256)), "ethos-u65-256"}
    assert set(preset_names()) == names
    for name in names:
        assert load_preset(name).name == name
    assert len({load_preset(name).digest for name in names}) == len(names)


@pytest.mark.parametrize("name", preset_names())
def test_every_number_of_a_preset_has_its_source_beside_it(name: str) -> None:
    """A comment on the line or directly above it gives the source of the number, or the reason for a choice."""
    above = ""
    for line in preset_text(name).splitlines():
        if re.match(r"\w+\s*=\s*[-+.\d]", line):
            source = line.partition("#")[2] or (above if above.startswith("#") else "")
            assert len(source.strip("# ")) > 6, line
            if "hoice" in source:
                assert re.search(r"Choice: \w+", source), line
        above = line


def test_edge_computes_float32_with_all_memories() -> None:
    """The default machine has every kind of memory, so values, halo and cache are exercised on it."""
    edge = load_preset("edge")
    assert edge.data_type is DataType.FLOAT32
    assert (edge.mfu.dataflow, edge.mfu.packing) == ("dot-product", "row")
    assert not edge.shared_buffer
    assert min(edge.halo_bytes, edge.llc.bytes, edge.llc.bytes_per_s) > 0
    assert edge.llc.bytes_per_s > edge.ddr.bytes_per_s
    assert edge.llc.latency_ns < edge.ddr.latency_ns
    assert edge.host.noise.jitter > 0


@pytest.mark.parametrize("macs", PRIMER)
def test_nvdla_preset_is_its_row_of_the_table(macs: int) -> None:
    """Multipliers, buffer and bandwidth are the primer's; a KB counts as 1000 bytes of bandwidth, as in the sheet."""
    machine, row = load_preset(f"nvdla-{macs}"), PRIMER[macs]
    assert machine.mfu.rows * machine.mfu.columns == macs
    assert machine.nb_bytes == machine.sb_bytes == row["buffer_kb"] * 1024
    assert machine.shared_buffer
    assert machine.ddr.bytes_per_s == row["dram_gb_per_s"] * 1.024e9
    assert (machine.data_type, machine.clock_hz, machine.llc.bytes) == (DataType.INT8, 10**9, 0)


def _convolution(layer: SheetLayer) -> Command:
    """Return a row of the sheet as one command."""
    height, width = -(-layer.height // layer.stride), -(-layer.width // layer.stride)

    def operand(space: Space, *dims: int) -> Operand:
        return Operand(Descriptor(space, DataType.INT8, dims, (0,) * len(dims)), 0)

    return Command(
        Function.CONVOLVE,
        target=operand(Space.NB, 1, height, width, layer.kernels),
        first=operand(Space.NB, 1, layer.height, layer.width, layer.in_channels),
        second=operand(Space.SB, 1, layer.kernel_h, layer.kernel_w, layer.in_channels, layer.kernels),
        settings=Settings(kernel=(1, layer.kernel_h, layer.kernel_w), stride=(1, layer.stride, layer.stride)),
    )


@pytest.mark.parametrize("macs", PRIMER)
def test_geometry_of_nvdla_preset_comes_close_to_the_sheet(macs: int) -> None:
    """With the sheet's traffic and the array's own cycles, ResNet-50 is within 6 % of the sheet without Winograd."""
    sheet = sheet_machine(PRIMER[macs], winograd=False)
    model = CostModel(load_preset(f"nvdla-{macs}"))
    ours = theirs = 0.0
    for layer in resnet50_sheet():
        memory = sheet_dram_cycles(layer, sheet)
        cycles = model.duration_ps(_convolution(layer)) / model.cycle_ps / (16 if layer.fully_connected else 1)
        ours += max(memory, cycles)
        theirs += max(memory, float(sheet_mac_cycles(layer, sheet)))
    assert abs(theirs / ours - 1) < 0.06


@pytest.mark.parametrize("size", [32, 128])
def test_memory_never_limits_a_systolic_preset(size: int) -> None:
    """A mebibyte of external memory takes at most some thousandths of a cycle."""
    machine = load_preset(f"systolic-{size}")
    assert (machine.mfu.dataflow, machine.mfu.rows, machine.mfu.columns) == ("weight-stationary", size, size)
    assert machine.ddr.latency_ns == 0
    assert 2**20 / machine.ddr.bytes_per_s < 2e-3 / machine.clock_hz


@pytest.mark.parametrize("macs", [32, 64, 128, 256])
def test_an_ethos_preset_has_its_multipliers(macs: int) -> None:
    """Reduction, channels and pixels of an Ethos-U55 multiply to its name."""
    machine = load_preset(f"ethos-u55-{macs}")
    assert machine.mfu.multipliers == macs
    assert (machine.data_type, machine.nb_port_bytes, machine.mfu.depthwise) == (DataType.INT8, 8, "mfu")


@pytest.mark.parametrize("macs", [256, 2048])
def test_an_nvdla_with_a_halo_buffer_differs_in_nothing_else(macs: int) -> None:
    """The halo buffer is the only difference from the row of the table."""
    plain, halo = load_preset(f"nvdla-{macs}"), load_preset(f"nvdla-{macs}-halo")
    assert halo.halo_bytes > 0 == plain.halo_bytes
    assert dataclasses.replace(halo, name=plain.name, halo_bytes=0) == plain
