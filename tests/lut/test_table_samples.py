"""The samples behind a table's overhead, read back from the journal."""

import os
from dataclasses import replace

import pytest
from nullbench import Bench

from harness.errors import DamagedFileWarning, LutError
from harness.lut.table_samples import table_samples
from harness.measure.policy import RepeatPolicy
from harness.report.overhead_figures import sample_figures
from harness.workspace import Workspace

FEW = RepeatPolicy(runs=4)


def test_null_probes_lie_on_the_plane_of_the_device(bench: Bench) -> None:
    """Without further terms, each null probe's total is a, b and c of the device at its sizes, and so is the fit."""
    bench.profile(policy=FEW)
    table = bench.build()
    found = table_samples(bench.workspace, table)
    assert found is not None
    assert len(found.nulls) == table.overhead.probes
    for one in found.nulls:
        plane_s = bench.truth.c_s + bench.truth.a_s_per_byte * one.input_bytes
        plane_s += bench.truth.b_s_per_byte * one.output_bytes
        assert one.total_s - one.further_s == pytest.approx(plane_s, rel=0.05)
        assert one.fitted_s == pytest.approx(one.total_s, rel=0.05)
    assert len({(one.input_bytes, one.output_bytes) for one in found.nulls}) > 5


def test_visits_to_the_reference_probe_are_in_order(bench: Bench) -> None:
    """The visits of the campaign are in order of time from the first one, each with a latency."""
    bench.profile(policy=FEW)
    found = table_samples(bench.workspace, bench.build())
    assert found is not None
    times = [one.elapsed_s for one in found.visits]
    assert times[0] == 0.0 and times == sorted(times) and len(times) > 1
    assert all(one.latency_s > 0 for one in found.visits)
    captions = [one.caption for one in sample_figures(found)]
    assert len(captions) == 3 and captions[2].startswith("Drift")


def test_a_table_of_another_journal_has_no_samples(bench: Bench) -> None:
    """Without the journal, or with one of another device, the table has no samples, and that is no error."""
    bench.profile(policy=FEW)
    table = bench.build()
    assert table_samples(Workspace(bench.root / "elsewhere"), table) is None
    assert table_samples(bench.workspace, replace(table, fingerprint={"cpu": "other"})) is None
    assert table_samples(bench.workspace, replace(table, entries=())) is None
    newer = replace(table.entries[0], campaign=table.entries[0].campaign + 1)
    assert table_samples(bench.workspace, replace(table, entries=(newer,))) is None


def test_a_workspace_that_may_not_be_written_is_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """There a table has its samples, and no table is built, which the error says before the fit."""
    bench.profile(policy=FEW)
    table = bench.build()
    samples = table_samples(bench.workspace, table)
    monkeypatch.setattr(os, "access", lambda *_: False)  # the user root may write anywhere
    monkeypatch.setattr("harness.lut.build._read", pytest.fail)
    assert samples is not None and table_samples(bench.workspace, table) == samples
    with pytest.raises(LutError, match="cannot be written"):
        bench.build()


def test_a_damaged_journal_is_named(bench: Bench) -> None:
    """The samples of a journal that is no database are left out, with a warning of the file and the next step."""
    bench.profile(policy=FEW)
    table, path = bench.build(), bench.workspace.journal
    path.write_bytes(bytes(range(7, 250)) * 20)
    with pytest.warns(DamagedFileWarning, match="samples of the table are left out.*restore it from a backup") as found:
        assert table_samples(bench.workspace, table) is None
    assert str(path) in str(found[0].message)
