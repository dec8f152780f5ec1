"""Pipelines of any network: larger than a chip, on unequal groups, on as many groups as are fastest."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from device_agents.emulated_npu.compiler.options import DEFAULT, Options
from device_agents.emulated_npu.machine import Machine, load_preset
from device_agents.emulated_npu.machine.parts import Cores, Interconnect
from harness.errors import InputError
from harness.npu.loading import load_model
from harness.npu.network_model import NetworkModel
from harness.npu.npu_options import PipelineOptions
from harness.npu.pipeline.pipeline_run import PipelineRun, run_pipeline

EDGE = load_preset("edge")
DIRECT = Options(conv_algorithm="direct")


def _machine(per_chip: int, chips: int = 1, ddr_bytes: int = EDGE.ddr.bytes) -> Machine:
    """Return the edge with some chips, each with a DDR of its own."""
    cores = Cores(per_chip, chips, Interconnect(64e9, 20.0), Interconnect(16e9, 100.0))
    return replace(EDGE, cores=cores, ddr=replace(EDGE.ddr, bytes=ddr_bytes))


def _network(channels: list[int], kind: str, size: int = 12) -> ModelProto:
    """Return convolutions of 3 x 3 in a chain, or with a residual sum or a concatenation after each."""
    rng = np.random.default_rng(11)
    nodes, weights = [], []
    inside, source = 4, "x"
    for place, outside in enumerate(channels):
        tensor = rng.normal(0, 0.2, (outside, inside, 3, 3)).astype(np.float32)
        weights.append(numpy_helper.from_array(tensor, f"w{place}"))
        nodes.append(helper.make_node("Conv", [source, f"w{place}"], [f"c{place}"], f"c{place}", pads=[1] * 4))
        result = f"c{place}"
        if kind == "residual" and inside == outside:
            nodes.append(helper.make_node("Add", [result, source], [f"s{place}"], f"s{place}"))
            result = f"s{place}"
        if kind == "dense":
            nodes.append(helper.make_node("Concat", [source, result], [f"d{place}"], f"d{place}", axis=1))
            result, outside = f"d{place}", inside + outside
        nodes.append(helper.make_node("Relu", [result], [f"r{place}"], f"r{place}"))
        inside, source = outside, f"r{place}"
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 4, size, size))
    y = helper.make_tensor_value_info(source, TensorProto.FLOAT, (1, inside, size, size))
    graph = helper.make_graph(nodes, kind, [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _loaded(folder: Path, channels: list[int], kind: str, size: int = 12) -> NetworkModel:
    path = folder / f"{kind}-{'-'.join(map(str, channels))}.onnx"
    path.write_bytes(_network(channels, kind, size).SerializeToString())
    return load_model(str(path), {})


def _run(model: NetworkModel, machine: Machine, compiled: Options = DEFAULT, **options: object) -> PipelineRun:
    return run_pipeline(model, machine, compiled, PipelineOptions(**options), lambda _: None)  # type: ignore[arg-type]


def _check(run: PipelineRun) -> None:
    """Assert that values are right, every node is in one group, chips hold their groups, and no bound is exceeded."""
    for each in run.runs:
        assert each.max_rel_error is None or each.max_rel_error < 1e-4
        nodes = [node for part in each.partition.sub_structures for node in part.nodes]
        assert sorted(nodes) == list(range(len(run.nodes.layers)))
        held: dict[int, int] = {}
        for group in each.timed.compiled.groups:
            held[group.chip] = held.get(group.chip, 0) + group.ddr_bytes
        assert max(held.values()) <= run.machine.ddr.bytes
        interval_ps = each.timed.report.interval_ps
        for core in each.timed.stream.cores:
            assert core.mfu_ps + core.vfu_ps <= 1.001 * interval_ps, "a core works no more than all of the time"
        for one in each.timed.report.resources:
            assert one.utilisation <= 1.001


OFTEN = (("residual", 3, "3"), ("dense", 2, "4"))
"""Kinds of networks, numbers of chips and groups that are not only tested among all combinations."""


@pytest.mark.parametrize(
    ("kind", "chips", "groups"),
    [
        *OFTEN,
        *(
            pytest.param(kind, *system, marks=pytest.mark.long)
            for kind in ("chain", "residual", "dense")
            for system in ((2, "2"), (3, "3"), (2, "4"))
            if (kind, *system) not in OFTEN
        ),
    ],
)
def test_a_network_larger_than_a_chip_is_divided_over_chips(tmp_path: Path, kind: str, chips: int, groups: str) -> None:
    """Chips that hold their part and a layer more run a network that one such chip is refused for."""
    model = _loaded(tmp_path, [32] * 10, kind)
    compiled = DEFAULT if groups == "2" else DIRECT
    whole = _run(model, _machine(2, chips), compiled, groups=groups)
    _check(whole)
    largest = max(whole.nodes.weight_bytes)
    size = whole.one_core_bytes // chips + largest + 40_000
    assert size < whole.one_core_bytes
    run = _run(model, _machine(2, chips, size), compiled, groups=groups)
    assert not run.fits_one_chip and whole.fits_one_chip
    _check(run)
    assert {group.chip for each in run.runs for group in each.timed.compiled.groups} == set(range(chips))
    with pytest.raises(InputError, match=r"DDR|core group|group"):
        _run(model, _machine(2, 1, size), compiled, groups="2")


def test_groups_of_a_chip_divide_its_memory_by_need(tmp_path: Path) -> None:
    """Two groups of one chip take unequal parts of a DDR that holds exactly what both need."""
    model = _loaded(tmp_path, [8, 8, 64, 64], "chain")
    free = _run(model, _machine(2), groups="2", partition="balanced")
    (each,) = free.runs
    sizes = [group.ddr_bytes for group in each.timed.compiled.groups]
    assert max(sizes) > sum(sizes) / 2
    tight = _run(model, _machine(2, 1, sum(sizes)), groups="2", partition="balanced")
    assert [group.ddr_bytes for group in tight.runs[0].timed.compiled.groups] == sizes
    _check(tight)


def test_a_larger_group_gets_more_work(tmp_path: Path) -> None:
    """Where layers gain from cores, a group of three gets more of the work beside a group of one than one of one."""
    model = _loaded(tmp_path, [64] * 8, "chain", 40)
    shares = {}
    machine = _machine(4)
    machine = replace(machine, ddr=replace(machine.ddr, bytes_per_s=256e9), llc=replace(machine.llc, bytes_per_s=512e9))
    for groups in ("0/1", "0-2/3"):
        (each,) = _run(model, machine, DIRECT, groups=groups, partition="balanced", values=False).runs
        work = [part.workload.compute_macs for part in each.partition.sub_structures]
        shares[groups] = work[0] / sum(work)
    assert shares["0-2/3"] > shares["0/1"]


@settings(max_examples=4, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_pipeline_respects_values_memory_and_bounds(tmp_path: Path, data: st.DataObject) -> None:
    """Any network, groups and memory either run with right values within the chips, or are refused with a reason."""
    channels = data.draw(st.lists(st.sampled_from((4, 8, 24)), min_size=2, max_size=6))
    kind = data.draw(st.sampled_from(("chain", "residual", "dense")))
    model = _loaded(tmp_path, channels, kind)
    groups = data.draw(st.sampled_from(("2", "3", "0-1/2", "0/1-2", "0/4-5", "0-1/4")))
    size = data.draw(st.sampled_from((20_000, 40_000, 80_000, 1 << 30)))
    parts = data.draw(st.sampled_from((None, 3, 4)))
    weights, compiled = (
        data.draw(st.sampled_from(("resident", "fetched"))),
        data.draw(st.sampled_from((DIRECT, DEFAULT))),
    )
    try:
        run = _run(model, _machine(4, 2, size), compiled, groups=groups, parts=parts, weights=weights)
    except InputError as error:
        assert error.why
        return
    _check(run)
