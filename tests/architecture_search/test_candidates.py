"""Files of candidates, their ranking, and the command."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import pytest
from synthetic_tables import table_of

from benchmarks.search.mobile_space import mobile_space
from harness.architecture_search import candidates, ranking
from harness.architecture_search.candidates import array_spans, random_count, random_spans, read_candidates, read_scores
from harness.architecture_search.ranking import Selection, best_of, rank_on_cluster, rank_span
from harness.architecture_search.search_space import SearchSpace
from harness.architecture_search.space_estimator import SpaceEstimator
from harness.cli.app import main
from harness.errors import ConfigurationError, UsageError
from harness.lut.error_correlations import pack
from harness.lut.table_files import publish
from harness.text import latency_s


@pytest.fixture(scope="module")
def space() -> SearchSpace:
    """Return a space of 100 networks."""
    return SearchSpace.read(mobile_space((8,), edge=8, blocks=3))


@pytest.fixture(scope="module")
def estimator(space: SearchSpace) -> SpaceEstimator:
    """Return its tables."""
    return SpaceEstimator.of(space, table_of(space, "plain"))


@pytest.mark.parametrize("scored", [False, True])
def test_the_best_of_all_spans_are_kept(
    estimator: SpaceEstimator, scored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranking span by span gives the candidates that sorting all of them gives, ties in the order of the file.

    Equal candidates are kept once. With a bound below all of them, the lowest latency is still known.
    """
    monkeypatch.setattr(candidates, "SPAN", 64)
    random = np.random.default_rng(3)
    rows = random.integers(0, estimator.sizes, (1000, len(estimator.sizes)))
    scores = random.integers(0, 20, 1000).astype(float) if scored else None
    latencies = estimator.latency_s(rows)
    bound_s = float(np.median(latencies))
    selection = Selection(30, bound_s)
    found = best_of((rank_span(estimator, span, selection) for span in array_spans(rows, scores)), selection)
    costs = latencies if scores is None else -scores
    under = np.flatnonzero(latencies <= bound_s)
    expected = under[np.lexsort((under, costs[under]))]
    _, first = np.unique(rows[expected], axis=0, return_index=True)
    expected = expected[np.sort(first)][:30]
    assert len(first) < len(under)
    assert found.numbers.tolist() == expected.tolist()
    assert (found.rows == rows[expected]).all()
    assert (found.seen, found.under, found.unknown) == (1000, len(under), 0)
    none = best_of((rank_span(estimator, span, Selection(30, 0.0)) for span in array_spans(rows, scores)), selection)
    assert (len(none.rows), none.fastest_s) == (0, latencies.min())


def test_few_of_many_equal_candidates_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all costs are equal, the first distinct rows are the best, and not all rows are sorted for that."""
    seen: list[int] = []
    unique = np.unique
    monkeypatch.setattr(np, "unique", lambda rows, **options: seen.append(len(rows)) or unique(rows, **options))
    rows = np.repeat(np.arange(1000)[:, None], 3, axis=0)
    assert ranking._lowest(np.zeros(3000), rows, 10).tolist() == list(range(0, 30, 3))
    assert max(seen) <= 80


@pytest.mark.parametrize("unscored", [0, 1, 250])
def test_candidates_without_a_score_are_counted(
    estimator: SpaceEstimator, unscored: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores that are not numbers are counted over all spans, below the bound, and their candidates are left out."""
    monkeypatch.setattr(candidates, "SPAN", 64)
    rows = np.random.default_rng(5).integers(0, estimator.sizes, (250, len(estimator.sizes)))
    latencies = estimator.latency_s(rows)
    bound_s = float(np.median(latencies))
    scores = np.arange(250.0)
    scores[:unscored] = np.nan
    selection = Selection(1000, bound_s)
    found = best_of((rank_span(estimator, span, selection) for span in array_spans(rows, scores)), selection)
    left_out = int(np.count_nonzero(latencies[:unscored] <= bound_s))
    kept = np.unique(rows[unscored:][latencies[unscored:] <= bound_s], axis=0)
    assert (found.unscored, found.under - found.unscored) == (left_out, int(np.sum(latencies[unscored:] <= bound_s)))
    assert np.unique(found.rows, axis=0).tolist() == kept.tolist() and len(found.rows) == len(kept)


def test_random_candidates_are_the_same_wherever_they_are_drawn(
    estimator: SpaceEstimator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seed determines all candidates, each position has all of its choices, and spans hold as many as were asked."""
    monkeypatch.setattr(candidates, "SPAN", 300)
    spans = list(random_spans(700, estimator.sizes, seed=5))
    rows = [span.rows() for span in spans]
    assert [len(part) for part in rows] == [300, 300, 100]
    assert all((span.rows() == part).all() for span, part in zip(spans, rows, strict=True))
    assert not (rows[0] == rows[1]).all()
    assert (np.concatenate(rows).max(axis=0) + 1).tolist() == list(estimator.sizes)


@pytest.mark.parametrize("content", ["floats", "columns", "objects", "text", "empty", "archive"])
def test_files_that_hold_no_candidates_are_refused(content: str, tmp_path: Path) -> None:
    """Other types, other shapes, pickled objects and other formats are refused, and nothing is unpickled."""
    path = tmp_path / "candidates.npy"
    if content == "text":
        path.write_text("0,1,2")
    elif content == "empty":
        path.touch()
    elif content == "archive":
        path.write_bytes(b"PK\x03\x04" + bytes(100))
    else:
        array = {"floats": np.zeros((2, 3)), "columns": np.zeros((2, 4), int), "objects": np.array([[{}] * 3] * 2)}
        np.save(path, array[content], allow_pickle=content == "objects")
    with pytest.raises(ConfigurationError):
        read_candidates(path, 3)
    with pytest.raises(ConfigurationError):
        read_scores(path, 2)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr':'|u1','fortran_order':False,'shape':(1180591620717411303424,3)}",
        "{'descr':'|u1','fortran_order':False,'shape':(True,3)}",
        "{'descr':('<i4',(5,)),'fortran_order':False,'shape':(-1,3)}",
        "{'descr':'|u1','fortran_order'",
        "{'descr':" + "-" * 3000 + "1}",
    ],
)
def test_files_with_a_damaged_header_are_refused(header: str, tmp_path: Path) -> None:
    """Whatever NumPy finds wrong with a header, the file holds no candidates."""
    path = tmp_path / "candidates.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(30))
    with pytest.raises(ConfigurationError):
        read_candidates(path, 3)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["<i2", ">u4"])
def test_a_file_is_read_part_by_part(order: Literal["C", "F"], kind: str, tmp_path: Path) -> None:
    """Any rows of a file are those of its array, whatever its order of axes and of bytes."""
    array = np.arange(60).reshape(20, 3).astype(kind, order=order)
    np.save(tmp_path / "candidates.npy", array)
    found = read_candidates(tmp_path / "candidates.npy", 3)
    assert len(found) == 20
    for part in (slice(0, 7), slice(7, 20), slice(15, 99)):
        assert found[part].tolist() == array[part].tolist()


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_file_that_is_cut_while_it_is_read_is_an_error(order: Literal["C", "F"], tmp_path: Path) -> None:
    """A file that is too short before or after it is opened is refused, and ends no process."""
    path = tmp_path / "candidates.npy"
    np.save(path, np.zeros((1000, 3), np.uint8, order=order))
    found = read_candidates(path, 3)
    os.truncate(path, 1500)
    with pytest.raises(ConfigurationError, match="too short"):
        _ = found[800:1000]
    with pytest.raises(ConfigurationError, match="too short"):
        read_candidates(path, 3)


@pytest.mark.parametrize(
    "text", ["random:", "random:0", "random:-1", "random:1e6", f"random:{10**15}", "random:" + "9" * 5000]
)
def test_wrong_numbers_of_candidates_are_refused(text: str) -> None:
    """Only whole positive numbers follow `random:`, and not more than can be estimated in days."""
    with pytest.raises(UsageError):
        random_count(text)


def test_latencies_have_units() -> None:
    """A latency is a number with its unit."""
    assert [latency_s(text) for text in ("5ms", "300us", "0.5 s")] == pytest.approx([5e-3, 3e-4, 0.5])
    for text in ("5", "ms", "5m", "0ms"):
        with pytest.raises(ValueError, match="latency"):
            latency_s(text)


def test_the_command_writes_the_best_candidates(
    space: SearchSpace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`harness estimate --space` ranks the candidates of a file, reports their intervals, and writes the best."""
    published = publish(dataclasses.replace(table_of(space, "plain")), tmp_path / "lut")
    onnx.save(mobile_space((8,), edge=8, blocks=3), tmp_path / "super.onnx")
    rows = np.random.default_rng(4).integers(0, space.sizes, (500, len(space.sizes))).astype(np.uint8)
    np.save(tmp_path / "candidates.npy", rows)
    files = ["--space", str(tmp_path / "super.onnx"), "--candidates", str(tmp_path / "candidates.npy")]
    options = ["--lut", str(published.path), "--workspace", str(tmp_path), "--best", "3", "--json"]
    with pytest.raises(SystemExit) as end:
        main(["estimate", *files, *options, "--under", "1s", "-o", str(tmp_path / "best.npy")])
    assert not end.value.code
    found = json.loads(capsys.readouterr().out)
    assert (found["candidates"], found["under"], found["unknown"]) == (500, 500, 0)
    assert [one["choices"] for one in found["best"]] == np.load(tmp_path / "best.npy").tolist()
    for one in found["best"]:
        assert one["choices"] == rows[one["number"]].tolist()
        assert one["interval_s"][0] < one["latency_s"] < one["interval_s"][1]
        assert one["coverage"]["measured"] > 0
    np.save(tmp_path / "scores.npy", np.full(500, np.nan))
    with pytest.raises(SystemExit) as end:
        main(["estimate", *files, *options, "--scores", str(tmp_path / "scores.npy")])
    assert not end.value.code
    printed = capsys.readouterr()
    assert "500 candidates have a score that is not a number" in printed.err
    assert (json.loads(printed.out)["unscored"], json.loads(printed.out)["best"]) == (500, [])
    with pytest.raises(SystemExit) as end:
        main(["estimate", *files, "--layers", "--lut", str(published.path)])
    assert end.value.code == 2
    lacking = publish(
        dataclasses.replace(published, entries=published.entries[:1], correlations=pack(np.eye(1))), tmp_path
    )
    with pytest.raises(SystemExit) as end:
        main(["estimate", *files, "--lut", str(lacking.path), "--under", "1s"])
    assert end.value.code == 6
    assert "within the bound: 0  with unknown layers: 500" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")
def test_a_cluster_ranks_as_one_process_does(estimator: SpaceEstimator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans that workers of a Dask scheduler rank have the same best candidates as here."""
    from distributed import LocalCluster

    monkeypatch.setattr(candidates, "SPAN", 200)
    selection = Selection(20)
    here = best_of(
        (rank_span(estimator, span, selection) for span in random_spans(1500, estimator.sizes, 1)), selection
    )
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    with LocalCluster(protocol="tcp", **options) as cluster:
        rankings = rank_on_cluster(
            cluster.scheduler_address, estimator, random_spans(1500, estimator.sizes, 1), selection
        )
        there = best_of(rankings, selection)
    assert there.numbers.tolist() == here.numbers.tolist()
    assert (there.rows == here.rows).all()
    assert (there.seen, there.under) == (here.seen, here.under)
