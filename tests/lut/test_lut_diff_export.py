"""Comparison of tables, and export of their entries."""

import csv
import dataclasses
import importlib.util
import json
import math
import random
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings, strategies as st
from made_tables import entry, table

from harness.errors import ConfigurationError, UsageError
from harness.latency.layer_latency import positive
from harness.lut.layer_diff import compare
from harness.lut.table import Entry
from harness.lut.table_files import export_entries, publish


def layer(number: int) -> Entry:
    """Return a resolved layer, with an error of one percent."""
    latency_s = 1e-4 * (number + 1)
    error_s = latency_s / 100
    times = {"latency_s": latency_s, "stderr_s": error_s, "remainder_s": latency_s, "remainder_stderr_s": error_s}
    return entry(f"layer {number}", **times)


def slower(one: Entry, factor: float) -> Entry:
    """Return a layer that takes another time."""
    return dataclasses.replace(one, latency_s=one.latency_s * factor, remainder_s=one.remainder_s * factor)


LAYERS = [layer(number) for number in range(50)]


def test_a_table_does_not_differ_from_itself() -> None:
    """A table compared with itself has no changes and a ratio of one."""
    changes = compare(table(LAYERS), table(LAYERS))
    assert (changes.changed, changes.added, changes.removed, changes.common) == ((), (), (), 50)
    assert changes.total_ratio == 1.0
    assert changes.fingerprint == {}


def test_a_layer_that_became_slower_is_found_and_measured() -> None:
    """A change of 20 % with errors of 1 % is listed with ratio and significance, the largest change first."""
    after = list(LAYERS)
    after[3] = slower(LAYERS[3], 1.2)
    after[40] = slower(LAYERS[40], 0.7)
    changes = compare(table(LAYERS), table(after))
    assert [one.key for one in changes.changed] == [LAYERS[40].key, LAYERS[3].key]
    assert [one.ratio for one in changes.changed] == pytest.approx([0.7, 1.2])
    assert changes.changed[1].z == pytest.approx(0.2 / 0.01 / math.sqrt(2))
    total = sum(one.latency_s for one in LAYERS)
    assert changes.total_ratio == pytest.approx((total + 0.2 * 4e-4 - 0.3 * 41e-4) / total)


def test_noise_is_not_flagged() -> None:
    """Of 5,000 unchanged layers measured twice, no more than chance allows are listed as changed."""
    draw, flagged = random.Random(4), 0
    for _ in range(100):
        noisy = [[slower(one, draw.gauss(1.0, one.stderr_s / one.latency_s)) for one in LAYERS] for _ in "ab"]
        flagged += len(compare(table(noisy[0]), table(noisy[1])).changed)
    assert flagged <= 5000 * 0.0027 + 4 * math.sqrt(5000 * 0.0027)


def test_layers_below_resolution_are_compared_by_what_was_measured() -> None:
    """Noise about zero is no change, although the latencies, which are positive, differ by a factor."""
    draw, error_s = random.Random(5), 1e-6

    def measured(number: int) -> Entry:
        found = positive(draw.gauss(0.0, error_s), error_s, 9)
        times = {name: getattr(found, name) for name in ("latency_s", "stderr_s", "remainder_s", "remainder_stderr_s")}
        return entry(f"layer {number}", resolved=found.resolved, **times)

    before, after = ([measured(number) for number in range(2000)] for _ in "ab")
    assert len(compare(table(before), table(after)).changed) <= 2000 * 0.0027 + 4 * math.sqrt(2000 * 0.0027)


def test_significant_but_small_changes_are_not_flagged() -> None:
    """A change of 1 % is not listed, however certain."""
    exact = [dataclasses.replace(one, stderr_s=0.0, remainder_stderr_s=0.0) for one in LAYERS]
    changes = compare(table(exact), table([slower(one, 1.01) for one in exact]))
    assert changes.changed == ()
    assert changes.total_ratio == pytest.approx(1.01)


def test_layers_that_only_one_table_holds_are_listed() -> None:
    """Added and removed layers are listed and do not affect the ratio; a layer in another context is another entry."""
    moved = dataclasses.replace(LAYERS[0], context="outside")
    changes = compare(table(LAYERS[:2]), table([LAYERS[1], LAYERS[2], moved]))
    assert set(changes.added) == {LAYERS[2].key, moved.key}
    assert changes.removed == (LAYERS[0].key,)
    assert (changes.common, changes.total_ratio) == (1, 1.0)
    assert compare(table(), table(LAYERS)).total_ratio == 1.0


def test_a_changed_fingerprint_is_listed() -> None:
    """Differences of the fingerprints are listed with both values."""
    before, after = table(fingerprint={"cpu": "x", "kernel": "1"}), table(fingerprint={"cpu": "x", "governor": "p"})
    assert compare(before, after).fingerprint == {"kernel": ("1", ""), "governor": ("", "p")}


@settings(max_examples=12, phases=(Phase.explicit, Phase.generate))
@given(st.floats(1e-11, 1e3), st.floats(1e-12, 1e2), st.sampled_from(["csv", "json"]))
def test_an_export_keeps_every_digit(
    tmp_path_factory: pytest.TempPathFactory, latency_s: float, error_s: float, kind: str
) -> None:
    """Latencies from picoseconds to minutes are exported with all digits, in CSV and in JSON."""
    folder = tmp_path_factory.mktemp("export")
    rows = [
        entry("a", latency_s=latency_s, stderr_s=error_s),
        entry('b,"c";d', context="chip,outside", resolved=False),
    ]
    lut = publish(table(rows), folder)
    path = folder / f"layers.{kind}"
    export_entries(lut, path)
    for found, one in zip(read_export(path), lut.entries, strict=True):
        assert (found["device"], found["lut"]) == ("board", lut.name)
        assert float(found["latency_s"]) == pytest.approx(one.latency_s, rel=1e-6)
        assert float(found["stderr_s"]) == pytest.approx(one.stderr_s, rel=1e-6)
        assert {name: str(found[name]) for name in texts(one)} == texts(one)


def read_export(path: Path) -> list[dict[str, object]]:
    """Return the records of an exported file."""
    if path.suffix == ".json":
        found: list[dict[str, object]] = json.loads(path.read_text())
        return found
    with path.open(newline="", encoding="utf-8") as text:
        return [dict(row) for row in csv.DictReader(text)]


def texts(one: Entry) -> dict[str, str]:
    """Return the fields of an entry that are not seconds, as text."""
    return {name: str(value) for name, value in dataclasses.asdict(one).items() if not name.endswith("_s")}


def test_parquet_is_written_or_its_extra_is_named(tmp_path: Path) -> None:
    """With pyarrow the entries are exported as Parquet; without it the error names the extra to install."""
    lut = publish(table(LAYERS), tmp_path)
    path = tmp_path / "layers.parquet"
    if importlib.util.find_spec("pyarrow") is None:
        with pytest.raises(UsageError, match="pyarrow") as refused:
            export_entries(lut, path)
        assert "parquet" in refused.value.next_step
        assert not path.exists()
        return
    import pandas

    export_entries(lut, path)
    frame = pandas.read_parquet(path)
    assert list(frame["latency_s"]) == [one.latency_s for one in lut.entries]
    assert list(frame["signature"]) == [one.signature for one in lut.entries]


def test_an_export_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """Unknown endings and missing folders are refused, and no file is written."""
    lut = publish(table(LAYERS), tmp_path)
    with pytest.raises(UsageError):
        export_entries(lut, tmp_path / "layers.xlsx")
    with pytest.raises(ConfigurationError):
        export_entries(lut, tmp_path / "missing" / "layers.csv")
    assert not list(tmp_path.glob("layers*"))
