"""Pages with generated blocks: `<!-- generated: NAME -->` … `<!-- end -->`. Other text never changes."""

import importlib.metadata
import os
import platform
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness.version import VERSION

ROOT = Path(__file__).resolve().parent.parent
TARGETS_BLOCK = "targets"
_MACHINE_BLOCK = "machine"
NOT_MEASURED = "not measured"
NO_TARGET = "no target"
_BLOCK = re.compile(r"(<!-- generated: (?P<name>[a-z0-9-]+) -->\n)(?P<content>.*?)(<!-- end -->)", re.DOTALL)
_TARGETS_HEADER = ("target", "wanted", "reached", "met")
_MET = {True: "yes", False: "**no**", None: "–"}
_PACKAGES = ("onnxruntime", "openvino", "onnx", "numpy", "scipy", "scikit-learn")


@dataclass(frozen=True)
class Reached:
    """A row of the table of targets; `met` is None if the figure has no target."""

    target: str
    wanted: str
    figure: str
    met: bool | None


@dataclass(frozen=True)
class Section:
    """The generated block of a part, and its rows of the table of targets."""

    text: str
    reached: tuple[Reached, ...]


@dataclass(frozen=True)
class PartsPage:
    """A page with a block for each part, the wanted value of each target in the order of its table, and the machine."""

    path: Path
    targets: Mapping[str, str]

    def reached(self, target: str, figure: str, met: bool | None) -> Reached:
        """Return the row of a target."""
        return Reached(target, self.targets[target], figure, met)

    def check(self, parts: Iterable[str]) -> None:
        """Exit before anything is measured if the page lacks a block."""
        check_blocks(self.path, (*parts, TARGETS_BLOCK, _MACHINE_BLOCK))

    def write(self, part: str, section: Section, measured: str) -> None:
        """Write the block of a part and its rows of the table of targets. Rows of other parts stay."""
        text = self.path.read_text(encoding="utf-8")
        rows = {row.target: row for row in (*read_targets(block(text, TARGETS_BLOCK)), *section.reached)}
        text = with_block(text, part, f"{section.text.strip()}\n\n{measured}")
        in_order = [rows.get(target, self.reached(target, NOT_MEASURED, None)) for target in self.targets]
        text = with_block(text, TARGETS_BLOCK, targets_table(in_order))
        text = with_block(text, _MACHINE_BLOCK, f"{machine()} Each part states the day on which it was measured.")
        self.path.write_text(text, encoding="utf-8")


def check_blocks(page: Path, names: Iterable[str]) -> None:
    """Exit before anything is measured if the page lacks one of these blocks."""
    found = {match["name"] for match in _BLOCK.finditer(page.read_text(encoding="utf-8"))}
    missing = sorted(set(names) - found)
    if missing:
        raise SystemExit(f"{page} has no block <!-- generated: {missing[0]} --> … <!-- end -->. Add one.")


def block(page: str, name: str) -> str:
    """Return the content of a block, or an empty string."""
    return next((match["content"] for match in _BLOCK.finditer(page) if match["name"] == name), "")


def with_block(page: str, name: str, content: str) -> str:
    """Return the page with new content in a block; its sentences are wrapped."""
    lines = "\n".join(map(_wrapped, content.strip().splitlines()))
    return _BLOCK.sub(lambda match: f"{match[1]}\n{lines}\n\n{match[4]}" if match["name"] == name else match[0], page)


def _wrapped(line: str) -> str:
    if line.startswith("|"):
        return line
    indent = "  " if line.startswith(("- ", "  ")) else ""
    return textwrap.fill(line, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def targets_table(rows: Iterable[Reached]) -> str:
    """Return the table of targets."""
    return table(_TARGETS_HEADER, [(row.target, row.wanted, row.figure, _MET[row.met]) for row in rows])


def read_targets(content: str) -> Iterator[Reached]:
    """Yield the rows of a table of targets."""
    met = {word: value for value, word in _MET.items()}
    for line in content.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == len(_TARGETS_HEADER) and cells[3] in met:
            target, wanted, figure, word = cells
            yield Reached(target, wanted, figure, met[word])


def table(header: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table."""
    return "\n".join(map(_row, (header, ["---"] * len(header), *rows)))


def print_head(*names: object) -> None:
    """Print the head of a Markdown table, whose rows follow as they are measured."""
    print(table(names, ()))


def print_row(*cells: object) -> None:
    """Print a row of a Markdown table at once."""
    print(_row(cells), flush=True)


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def percent(value: float | None, digits: int = 1) -> str:
    """Format a fraction without its sign, such as `1.4 %`; None gives a dash."""
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def signed(value: float | None, digits: int = 1) -> str:
    """Format a fraction with its sign, such as `+1.4 %`; None gives a dash."""
    return "–" if value is None else f"{100 * value:+.{digits}f} %"


def yes(holds: bool) -> str:
    """Return `yes` or `no`."""
    return "yes" if holds else "no"


def milliseconds(value_s: float) -> str:
    """Format seconds as milliseconds with three significant digits."""
    return f"{1e3 * value_s:.3g}"


def microseconds(value_s: float) -> str:
    """Format seconds as microseconds with three significant digits, without an exponent."""
    return f"{1e6 * value_s:,.0f}" if value_s >= 1e-4 else f"{1e6 * value_s:.3g}"


def machine() -> str:
    """Return date, machine and versions in a sentence."""
    versions = ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)
    return (
        f"Generated on {datetime.now(UTC):%Y-%m-%d} by harness {VERSION} on {_processor()}, {os.cpu_count()} cores, "
        f"{platform.system()} {platform.release()}; Python {platform.python_version()}, {versions}."
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _processor() -> str:
    if sys.platform == "linux":
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
        if named:
            return named
    return platform.processor() or platform.machine()
