"""Building a table from the journal: which campaigns are merged, and which never."""

import contextlib
import dataclasses
import sqlite3

import numpy as np
import onnx
import pytest
from nullbench import Bench, StopAfter, build_network
from onnx import TensorProto, helper, numpy_helper

from harness import estimate
from harness.errors import CampaignIncomplete, Interrupted, JournalError, LutError, LutNotFound
from harness.lut import campaign_source
from harness.lut.layer_diff import compare
from harness.lut.table_choice import latest_lut
from harness.lut.table_files import publish, read_lut
from harness.measure.journal.journal import Journal
from harness.measure.policy import RepeatPolicy

FEW = RepeatPolicy(runs=4)


def test_nothing_measured_is_no_table(bench: Bench) -> None:
    """Without a campaign the error names the command to run."""
    with pytest.raises(LutNotFound) as missing:
        bench.build()
    assert "harness profile" in missing.value.next_step


def test_an_unfinished_campaign_is_no_table(bench: Bench) -> None:
    """An interrupted campaign gives no table."""
    with pytest.raises(Interrupted):
        bench.profile(policy=FEW, stop=StopAfter(35))
    with pytest.raises(CampaignIncomplete):
        bench.build()
    assert not bench.workspace.lut.exists()


def test_more_layers_than_a_table_holds_are_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error states the limit of a table, and no table is written."""
    bench.profile(policy=FEW)
    monkeypatch.setattr(campaign_source, "MAX_CORRELATED", 1)
    with pytest.raises(LutError, match="a table can hold at most 1"):
        bench.build()
    assert not bench.workspace.lut.exists()


def test_a_table_of_a_clock_that_was_set_back_is_not_passed_over_in_silence(bench: Bench) -> None:
    """A build says that commands use another table, whose date is later; a build of the latest table says nothing."""
    bench.profile(policy=FEW)
    notes: list[str] = []
    first = bench.build(note=notes.append)
    assert notes == []
    later = publish(dataclasses.replace(first, created="2999-01-01T00:00:00+00:00"), bench.workspace.lut)
    second = bench.build(note=notes.append)
    assert len(notes) == 1 and later.name in notes[0] and f"--lut {second.name}" in notes[0]


def test_a_network_that_reads_nothing_is_measured(bench: Bench) -> None:
    """A product of random numbers and weights, without any input, is a layer with the latency of its weights."""
    nodes = [helper.make_node("RandomNormal", [], ["r"], shape=[8, 64]), helper.make_node("MatMul", ["r", "w"], ["y"])]
    weight = numpy_helper.from_array(np.ones((64, 512), np.float32), "w")
    written = helper.make_tensor_value_info("y", TensorProto.FLOAT, (8, 512))
    model = helper.make_model(helper.make_graph(nodes, "noise", [], [written], [weight]), ir_version=8)
    onnx.save(model, path := bench.root / "noise.onnx")
    bench.profile(path)
    (entry,) = (table := bench.build()).entries
    assert entry.latency_s == pytest.approx(bench.layers(table, path)[entry.key], rel=0.1)
    (network,) = estimate(str(path), lut=table)
    assert network.latency_s == pytest.approx(bench.truth.network_s(path), rel=0.1)


def test_every_entry_leads_back_to_its_samples(bench: Bench) -> None:
    """Campaign, probe and baseline of every entry have samples in the journal."""
    bench.profile(policy=FEW)
    table = bench.build()
    assert latest_lut(bench.workspace.lut, table.device) == table.path
    assert read_lut(table.path, table.device) == table
    with Journal(bench.workspace.journal) as journal:
        for entry in table.entries:
            samples = journal.samples(entry.campaign)
            assert len(samples[entry.probe]) >= entry.samples > 0
            assert entry.baseline in samples
        campaign = journal.campaign(1)
    assert (table.fingerprint, table.clock, table.visits) == (campaign.fingerprint, "device", "cold")
    assert table.fingerprint["runtime"] == "null"
    assert table.overhead.c.value == pytest.approx(bench.truth.c_s, rel=0.02)


def test_an_altered_journal_gives_no_table(bench: Bench) -> None:
    """One changed sample is an error that names the campaign; without it, the older campaign gives the table."""
    bench.profile(policy=FEW)
    bench.profile(policy=FEW, seed=9)
    with contextlib.closing(sqlite3.connect(bench.workspace.journal)) as database, database:
        last = "series=(SELECT max(series) FROM samples) AND ordinal=0"
        assert database.execute(f"UPDATE samples SET wall_ns=wall_ns+1 WHERE {last}").rowcount == 1
    with pytest.raises(JournalError, match="altered on disk: campaign 2") as altered:
        bench.build()
    assert "harness journal check" in altered.value.next_step and "ove the file" not in altered.value.next_step
    assert not bench.workspace.lut.exists()
    with Journal(bench.workspace.journal) as journal:
        journal.exclude(2, journal.campaign(2).token, "altered on disk")
    assert {entry.campaign for entry in bench.build().entries} == {1}


def test_campaigns_of_one_device_are_merged(bench: Bench) -> None:
    """A table merges layers of two campaigns, and a layer measured twice has its newer latency."""
    other = build_network(bench.root / "other.onnx", widths=(8, 48, 32))
    bench.profile(policy=FEW)
    first = bench.build()
    bench.profile(other, policy=FEW)
    both = bench.build()
    assert set(first.by_place) < set(both.by_place)
    assert {entry.campaign for entry in both.entries} == {1, 2}
    bench.profile(policy=FEW, seed=9)
    again = bench.build()
    assert set(again.by_place) == set(both.by_place)
    assert {again.by_place[place].campaign for place in first.by_place} == {3}


def test_campaigns_of_another_fingerprint_are_never_merged(bench: Bench) -> None:
    """A device with another fingerprint is another device: its table holds no older entries."""
    other = build_network(bench.root / "other.onnx", widths=(8, 48, 32))
    bench.profile(other, policy=FEW)
    bench.set_device(dataclasses.replace(bench.truth, weight_s_per_byte=2e-9))
    bench.profile(policy=FEW)
    table = bench.build()
    assert {entry.campaign for entry in table.entries} == {2}
    assert set(bench.layers(table, other)) - set(bench.layers(table)) - {entry.key for entry in table.entries}


def test_a_slower_device_shows_in_the_difference_and_noise_does_not(bench: Bench) -> None:
    """Tables that differ by noise alone compare equal; slower weights show in exactly the layers with weights."""
    tables = []
    slow = dataclasses.replace(bench.truth, seed=99, weight_s_per_byte=1.5e-9)
    for truth in (bench.truth, dataclasses.replace(bench.truth, seed=7), slow):
        bench.set_device(truth)
        bench.profile(policy=RepeatPolicy(runs=12))
        tables.append(bench.build())
    assert compare(tables[0], tables[1]).changed == ()
    found = compare(tables[0], tables[2])
    heavy = {key for key, seconds in bench.layers(tables[2]).items() if seconds > 20e-6}
    assert heavy <= {change.key for change in found.changed}
    assert all(bench.layers(tables[2])[change.key] > 0 for change in found.changed)
    assert set(found.fingerprint) == {"settings"}
