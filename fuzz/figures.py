"""The figures of fuzzing: what they are, as a table, and in docs/hostile_input.md."""

import importlib.metadata
import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "hostile_input.md"
_BEGIN, _END = "<!-- figures of make fuzz: begin -->", "<!-- figures of make fuzz: end -->"
_COLUMNS = ("target", "seconds", "inputs", "accepted", "valid ONNX", "stopped", "faults")
_MEASURED = ("slowest input", "peak memory", "edges reached")


@dataclass(frozen=True)
class Figures:
    """Figures of one target; `faults` lists each crash, hang or breach of the memory limit once.

    `accepted` inputs were read; `checked` ones passed the checks of ONNX, and `stopped` ones were refused by the limits
    of the isolated process, both None for readers without them.
    """

    target: str
    seconds: float
    inputs: int
    accepted: int
    checked: int | None
    stopped: int | None
    slowest_s: float
    edges: int
    peak_rss_mb: int
    faults: tuple[str, ...]


def table(results: Sequence[Figures]) -> str:
    """Return the figures as a table in Markdown."""
    header = (*_COLUMNS, *_MEASURED)
    lines = [f"| {' | '.join(header)} |", "|---|" + "--:|" * (len(header) - 1)]
    for one in results:
        counts = [f"{one.inputs:,}", share(one.accepted, one.inputs), share(one.checked, one.inputs)]
        counts += [share(one.stopped, one.inputs), str(len(one.faults))]
        measured = [f"{1000 * one.slowest_s:,.0f} ms", f"{one.peak_rss_mb:,} MB", f"{one.edges:,}"]
        lines.append(f"| {' | '.join([one.target, f'{one.seconds:.0f}', *counts, *measured])} |")
    return "\n".join(lines)


def share(count: int | None, whole: int) -> str:
    """Return a count of inputs, with its share of all if that is a percent or more; a dash for no count."""
    if count is None:
        return "–"
    percent = round(100 * count / max(1, whole))
    return f"{count:,} ({percent} %)" if percent else f"{count:,}"


def read_figures(path: Path) -> list[Figures]:
    """Return the figures in the JSON of a run, as it is printed or as the results of the reliability page hold it."""
    found = json.loads(path.read_text(encoding="utf-8"))
    targets = found.get("found", found)["targets"]
    return [Figures(**{**one, "faults": tuple(one["faults"])}) for one in targets]


def write_docs(results: Sequence[Figures]) -> None:
    """Write the table into docs/hostile_input.md."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    if not after:
        raise SystemExit(f"{PAGE.name} has no markers for the figures")
    versions = f"CPython {platform.python_version()} and atheris {importlib.metadata.version('atheris')}"
    shown = f"{before}{_BEGIN}\n{table(results)}\n\nWith {versions}.\n{_END}{after}"
    PAGE.write_text(shown, encoding="utf-8")
