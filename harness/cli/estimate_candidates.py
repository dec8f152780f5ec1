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
from harness.cli.terminal.output import note, print_json, print_line, print_table, write_result
from harness.cli.terminal.progress import LINE_EVERY_S, show_progress
from harness.errors import CoverageError, UsageError
from harness.text import clock_name, interval_ms, latency_s, milliseconds

if TYPE_CHECKING:
    from harness.architecture_search.candidates import Span
    from harness.architecture_search.ranking import Ranking, Selection
    from harness.architecture_search.search_space import SearchSpace
    from harness.architecture_search.space_estimator import SpaceEstimator
    from harness.measure.progress import Observer
    from harness.workspace import Workspace

_INTERVAL = "95 % interval"


@dataclass(frozen=True)
class SpaceOptions:
    """A search space, its candidates, and which of them to show."""

    space: Annotated[
        str | None, typer.Option(metavar="SUPER.onnx", help="Estimate candidates of the search space in this file.")
    ] = None
    candidates: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.npy|random:N",
            help="Candidates to estimate: a .npy array with one row of choices each, or N random ones.",
        ),
    ] = None
    scores: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npy", help="Rank by these scores, one per candidate (highest first), instead of by latency."
        ),
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
    reading: arguments.ReadingOptions,
    workspace: Workspace,
    *,
    json: bool,
) -> None:
    """Rank the candidates of a space and print the best."""
    from harness.architecture_search.ranking import Selection, best_of
    from harness.architecture_search.search_space import SearchSpace
    from harness.architecture_search.space_estimator import SpaceEstimator
    from harness.lut.table_choice import open_table

    if options.space is None or options.candidates is None:
        step = "Give --candidates FILE.npy or --candidates random:N"
        raise UsageError("--space needs candidates", next_step=step)
    selection = Selection(options.best, _bound_s(options.under))
    table = open_table(choice.device, choice.lut, workspace, reading.variant)
    space = SearchSpace.read(options.space, reading.dims, reading.batch)
    count, spans = _spans(options, space)
    estimator = SpaceEstimator.of(space, table)
    with show_progress("estimate", quiet_s=LINE_EVERY_S) as observe:
        rankings = _watched(_rankings(options.engine, estimator, spans, selection), count, observe)
        ranking = best_of(rankings, selection)
    if options.output is not None:
        write_result(options.output, _npy(ranking))
    if json:
        print_json(
            device=table.device,
            lut=table.name,
            clock=table.clock,
            method=table.method,
            space=space.name,
            positions=[asdict(position) for position in space.positions],
            candidates=ranking.seen,
            under=ranking.under,
            unknown=ranking.unknown,
            unscored=ranking.unscored,
            best=_rows(ranking, estimator, scored=options.scores is not None),
        )
    else:
        _show(ranking, estimator)
        print_line(f"table: {table.name}  method: {table.method}  clock: {clock_name(table.clock)}")
    if ranking.unscored:
        note(f"{ranking.unscored:,} candidates have a score that is not a number; they were skipped")
    _raise_unknown(ranking)


def _spans(options: SpaceOptions, space: SearchSpace) -> tuple[int, Iterator[Span]]:
    """Return the number of candidates, and their spans."""
    from harness.architecture_search.candidates import (
        array_spans,
        random_count,
        random_spans,
        read_candidates,
        read_scores,
    )

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
    from harness.architecture_search.candidates import SPAN
    from harness.measure.progress import DONE, steps_of

    show = steps_of(observe, "ranking spans of candidates")
    for done, ranking in enumerate(rankings, start=1):
        yield ranking
        show(done, -(-candidates // SPAN))
    observe(DONE)


def _rankings(engine: str, estimator: SpaceEstimator, spans: Iterator[Span], selection: Selection) -> Iterator[Ranking]:
    from harness.architecture_search.ranking import rank_span
    from harness.fleet.cluster.access import engine_address

    scheduler = engine_address(engine)
    if scheduler is None:
        return (rank_span(estimator, span, selection) for span in spans)
    from harness.architecture_search.ranking import rank_on_cluster

    return rank_on_cluster(scheduler, estimator, spans, selection)


def _bound_s(text: str | None) -> float:
    if text is None:
        return float("inf")
    try:
        return latency_s(text)
    except ValueError as error:
        raise UsageError(f"--under {text[:40]} {error}") from error


def _npy(ranking: Ranking) -> bytes:
    import numpy as np

    content = io.BytesIO()
    np.save(content, np.asarray(ranking.rows))
    return content.getvalue()


def _rows(ranking: Ranking, estimator: SpaceEstimator, *, scored: bool) -> list[dict[str, object]]:
    intervals = estimator.intervals_s(ranking.rows)
    coverage = estimator.coverage(ranking.rows)
    return [
        {
            "number": int(number),
            "choices": ranking.rows[at].tolist(),
            "latency_s": float(intervals.latency_s[at]),
            "interval_s": [float(intervals.low_s[at]), float(intervals.high_s[at])],
            "score": -float(ranking.costs[at]) if scored else None,
            "coverage": {name: int(counts[at]) for name, counts in coverage.items()},
        }
        for at, number in enumerate(ranking.numbers)
    ]


def _show(ranking: Ranking, estimator: SpaceEstimator) -> None:
    intervals = estimator.intervals_s(ranking.rows)
    coverage = estimator.coverage(ranking.rows)
    rows = []
    for at, number in enumerate(ranking.numbers):
        ends = float(intervals.low_s[at]), float(intervals.high_s[at])
        layers = sum(int(counts[at]) for counts in coverage.values())
        measured = f"{int(coverage['measured'][at])}/{layers}"
        choices = " ".join(map(str, ranking.rows[at].tolist()))
        rows.append((f"{number}", choices, milliseconds(float(intervals.latency_s[at])), interval_ms(ends), measured))
    if rows:
        print_table(("candidate", "choices", "latency ms", _INTERVAL, "layers measured"), rows, left=2)
    counts = f"candidates: {ranking.seen:,}  within the bound: {ranking.under:,}"
    is_any_slower = not ranking.under and ranking.unknown < ranking.seen
    fastest = f"  the fastest takes {milliseconds(ranking.fastest_s)} ms" if is_any_slower else ""
    print_line(f"{counts}{fastest}  with unknown layers: {ranking.unknown:,}")


def _raise_unknown(ranking: Ranking) -> None:
    """Raise CoverageError if no candidate is known, else note how many are not."""
    if ranking.unknown == ranking.seen:
        step = "Run `harness profile` on the super-network and build the table again"
        raise CoverageError("Each candidate has layers that are not in the table", next_step=step)
    if ranking.unknown:
        note(f"{ranking.unknown:,} candidates have layers that are neither measured nor predicted; they were skipped")
