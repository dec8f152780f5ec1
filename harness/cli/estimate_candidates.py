"""`harness estimate --space`: the best candidates of a search space."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.options import arguments
from harness.cli.options.result_files import file_option
from harness.cli.terminal.output import interval_ms, note, print_json, print_line, print_table, write_result
from harness.cli.terminal.progress import LINE_EVERY_S, show_progress
from harness.errors import CoverageError, UsageError
from harness.text import clock_name, latency_s, milliseconds

if TYPE_CHECKING:
    from harness.measure.progress import Observer
    from harness.search.candidates import Span
    from harness.search.ranking import Ranking, Wanted
    from harness.search.search_space import SearchSpace
    from harness.search.space_estimator import SpaceEstimator
    from harness.workspace import Workspace

_INTERVAL = "95 % interval"


@dataclass(frozen=True)
class SpaceOptions:
    """A search space, its candidates, and which of them to show."""

    space: Annotated[
        str | None, typer.Option(metavar="SUPER.onnx", help="Estimate candidates of the search space in this file.")
    ] = None
    candidates: Annotated[
        str | None, typer.Option(metavar="FILE.npy|random:N", help="Choices, a row for each candidate; or N rows.")
    ] = None
    scores: Annotated[
        Path | None,
        typer.Option(metavar="FILE.npy", help="A number for each candidate: the highest are best, not the fastest."),
    ] = None
    best: Annotated[int, typer.Option(metavar="K", min=1, max=1_000_000, help="Show the K best.")] = 10
    under: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only candidates up to this latency, such as 5ms.")
    ] = None
    output: Annotated[
        Path | None, file_option("-o", "--output", metavar="FILE.npy", help="Write the best candidates to this file.")
    ] = None
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of random:N.")] = 0
    engine: Annotated[
        str, typer.Option(metavar="ENGINE", help="Where to estimate candidates: local or dask=ADDRESS.")
    ] = "local"


def estimate_candidates(
    options: SpaceOptions,
    choice: arguments.TableChoice,
    reading: arguments.Reading,
    workspace: Workspace,
    *,
    json: bool,
) -> None:
    """Rank the candidates of a space and print the best."""
    from harness.lut.table_choice import open_table
    from harness.search.ranking import Wanted, best_of
    from harness.search.search_space import SearchSpace
    from harness.search.space_estimator import SpaceEstimator

    if options.space is None or options.candidates is None:
        step = "Give --candidates FILE.npy or --candidates random:N"
        raise UsageError("--space needs candidates", next_step=step)
    wanted = Wanted(options.best, _bound_s(options.under))
    table = open_table(choice.device, choice.lut, workspace, reading.variant)
    space = SearchSpace.read(options.space, reading.dims, reading.batch)
    count, spans = _spans(options, space)
    estimator = SpaceEstimator.of(space, table)
    with show_progress("estimate", quiet_s=LINE_EVERY_S, by_thread=False) as observe:
        rankings = _watched(_rankings(options.engine, estimator, spans, wanted), count, observe)
        found = best_of(rankings, wanted)
    if options.output is not None:
        write_result(options.output, _npy(found))
    if json:
        print_json(
            device=table.device,
            lut=table.name,
            clock=table.clock,
            method=table.method,
            space=space.name,
            positions=[asdict(position) for position in space.positions],
            candidates=found.seen,
            under=found.under,
            unknown=found.unknown,
            unscored=found.unscored,
            best=_rows(found, estimator, scored=options.scores is not None),
        )
    else:
        _show(found, estimator)
        print_line(f"table: {table.name}  method: {table.method}  clock: {clock_name(table.clock)}")
    if found.unscored:
        note(f"{found.unscored:,} candidates have a score that is not a number; they were left out")
    _raise_unknown(found)


def _spans(options: SpaceOptions, space: SearchSpace) -> tuple[int, Iterator[Span]]:
    """Return the number of candidates, and their spans."""
    from harness.search.candidates import array_spans, random_count, random_spans, read_candidates, read_scores

    text = options.candidates or ""
    count = random_count(text)
    if count is not None:
        if options.scores is not None:
            raise UsageError("Random candidates have no scores", next_step="Give --candidates FILE.npy with --scores")
        return count, random_spans(count, space.sizes, options.seed)
    rows = read_candidates(Path(text), len(space.sizes))
    if not len(rows):
        raise UsageError(f"{text[:80]} has no candidates")
    scores = None if options.scores is None else read_scores(options.scores, len(rows))
    return len(rows), array_spans(rows, scores)


def _watched(rankings: Iterable[Ranking], candidates: int, observe: Observer) -> Iterator[Ranking]:
    """Yield rankings of spans, and report how many of the candidates are ranked."""
    from harness.measure.progress import DONE, steps_of
    from harness.search.candidates import SPAN

    show = steps_of(observe, "ranking spans of candidates")
    for done, ranking in enumerate(rankings, start=1):
        yield ranking
        show(done, -(-candidates // SPAN))
    observe(DONE)


def _rankings(engine: str, estimator: SpaceEstimator, spans: Iterator[Span], wanted: Wanted) -> Iterator[Ranking]:
    from harness.fleet.cluster.access import engine_address
    from harness.search.ranking import rank_span

    scheduler = engine_address(engine)
    if scheduler is None:
        return (rank_span(estimator, span, wanted) for span in spans)
    from harness.search.cluster import rank_on_cluster

    return rank_on_cluster(scheduler, estimator, spans, wanted)


def _bound_s(text: str | None) -> float:
    if text is None:
        return float("inf")
    try:
        return latency_s(text)
    except ValueError as error:
        raise UsageError(f"--under {text[:40]} {error}") from error


def _npy(found: Ranking) -> bytes:
    import numpy as np

    content = io.BytesIO()
    np.save(content, np.asarray(found.rows))
    return content.getvalue()


def _rows(found: Ranking, estimator: SpaceEstimator, *, scored: bool) -> list[dict[str, object]]:
    intervals = estimator.intervals_s(found.rows)
    coverage = estimator.coverage(found.rows)
    return [
        {
            "number": int(number),
            "choices": found.rows[at].tolist(),
            "latency_s": float(intervals.latency_s[at]),
            "interval_s": [float(intervals.low_s[at]), float(intervals.high_s[at])],
            "score": -float(found.costs[at]) if scored else None,
            "coverage": {name: int(counts[at]) for name, counts in coverage.items()},
        }
        for at, number in enumerate(found.numbers)
    ]


def _show(found: Ranking, estimator: SpaceEstimator) -> None:
    intervals = estimator.intervals_s(found.rows)
    coverage = estimator.coverage(found.rows)
    rows = []
    for at, number in enumerate(found.numbers):
        ends = float(intervals.low_s[at]), float(intervals.high_s[at])
        layers = sum(int(counts[at]) for counts in coverage.values())
        measured = f"{int(coverage['measured'][at])}/{layers}"
        choices = " ".join(map(str, found.rows[at].tolist()))
        rows.append((f"{number}", choices, milliseconds(float(intervals.latency_s[at])), interval_ms(ends), measured))
    print_table(("candidate", "choices", "latency ms", _INTERVAL, "layers measured"), rows, left=2)
    print_line(f"candidates: {found.seen:,}  within the bound: {found.under:,}  with unknown layers: {found.unknown:,}")


def _raise_unknown(found: Ranking) -> None:
    """Raise CoverageError if no candidate is known, else note how many are not."""
    if found.unknown == found.seen:
        step = "Run `harness profile` on the super-network and build the table again"
        raise CoverageError("Each candidate has layers that are not in the table", next_step=step)
    if found.unknown:
        note(f"{found.unknown:,} candidates have layers that are neither measured nor predicted; they were left out")
