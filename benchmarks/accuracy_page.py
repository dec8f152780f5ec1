"""The page docs/accuracy.md: its generated blocks, its tables, and the summary of targets at its top.

A generated block stands between `<!-- generated: NAME -->` and `<!-- end -->`; everything else is left alone.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness.version import VERSION

SUMMARY, MACHINE = "targets", "machine"
PACKAGES = ("onnxruntime", "openvino", "onnx", "numpy", "scipy", "scikit-learn")
TARGETS: Mapping[str, str] = {
    "npu01: layers against the oracle, median error": "<= 1 %",
    "npu01: layers against the oracle, 95th percentile": "<= 3 %",
    "npu01: networks, worst error": "<= 5 %",
    "npu01: networks, RMSPE": "<= 1.5 %",
    "npu01: a, b, c, worst error": "<= 2 %",
    "npu01: 95 % intervals of a, b, c hold": "93 to 97 %",
    "cpu01: layers against the profile, time-weighted error": "<= 1.0 %",
    "cpu01: layers above 50 µs, mean error": "<= 6 %",
    "cpu01: networks, median error": "<= 1.5 %",
    "cpu01: networks, mean error": "<= 3 %",
    "cpu01: networks within 10 %": "all",
    "cpu01: networks within 5 %": ">= 13 of 15",
    "cpu01, network left out: median error": "<= 6 %",
    "cpu01, network left out: within 10 %": ">= 12 of 15",
    "npu01, network left out: median error": "<= 3 %",
    "npu01, network left out: within 10 %": ">= 14 of 15",
    "npu01: 90 % intervals of left-out layers hold": "88 to 92 %",
    "cpu01: 90 % intervals of left-out layers hold": "90 %, p >= 0.01",
    "npu01: 90 % intervals of left-out networks hold": "90 %, p >= 0.01",
    "cpu01: 90 % intervals of left-out networks hold": "90 %, p >= 0.01",
    "npu01: 90 % intervals of networks hold": "90 %, p >= 0.01",
    "cpu01: 90 % intervals of networks hold": "90 %, p >= 0.01",
    "V100, 3,000 rows known: within 10 %": ">= 65 %",
    "V100, 10,000 rows known: within 10 %": ">= 75 %",
    "V100: 90 % intervals hold": "90 %, p >= 0.01",
    "cpu-openvino: networks within 10 %": "the same table",
    "Device time on npu01, against 50 runs a probe": "told",
    "Device time on cpu01, against 50 runs a probe": "told",
}
"""What is asked for, in the order of the page."""
BLOCK = re.compile(r"(<!-- generated: (?P<name>[a-z0-9-]+) -->\n)(?P<content>.*?)(<!-- end -->)", re.DOTALL)
_NOT_RUN = "not measured"


@dataclass(frozen=True)
class Reached:
    """What a run reached of a target; `met` is None where there is nothing to miss."""

    target: str
    figure: str
    met: bool | None


@dataclass(frozen=True)
class Section:
    """The generated block of a part, and what it reached."""

    text: str
    reached: tuple[Reached, ...]


def write_section(page: Path, name: str, section: Section, elapsed_s: float) -> None:
    """Puts a part's block into the page, and what it reached into the summary; the other rows stay."""
    measured = f"Measured on {datetime.now(UTC):%Y-%m-%d}; this part took {elapsed_s:,.0f} s in all."
    text = page.read_text(encoding="utf-8")
    known = _summary_rows(_block(text, SUMMARY)) | {one.target: one for one in section.reached}
    text = replaced(text, name, f"{section.text.strip()}\n\n{measured}")
    text = replaced(text, SUMMARY, _summary(known))
    page.write_text(replaced(text, MACHINE, machine()), encoding="utf-8")


def check_page(page: Path, names: Sequence[str]) -> None:
    """Ends the program where the page lacks a block: better before hours of measuring than after."""
    found = {match["name"] for match in BLOCK.finditer(page.read_text(encoding="utf-8"))}
    missing = sorted({*names, SUMMARY, MACHINE} - found)
    if missing:
        raise SystemExit(
            f"{page} has no block <!-- generated: {missing[0]} --> … <!-- end -->; put one where it belongs"
        )


def machine() -> str:
    """Date, machine and versions in a sentence."""
    versions = ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    return (
        f"Generated on {datetime.now(UTC):%Y-%m-%d} by harness {VERSION} on {_processor()}, {os.cpu_count()} cores, "
        f"{platform.system()} {platform.release()}; Python {platform.python_version()}, {versions}. "
        f"Parts measured on another day say so."
    )


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, cells)) + " |" for cells in lines)


def percent(value: float | None, digits: int = 1) -> str:
    """A fraction without sign, such as `1.4 %`; a dash where there is none."""
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def signed(value: float | None, digits: int = 1) -> str:
    """A fraction with its sign, such as `+1.4 %`; a dash where there is none."""
    return "–" if value is None else f"{100 * value:+.{digits}f} %"


def yes(holds: bool) -> str:
    """In a word."""
    return "yes" if holds else "no"


def milliseconds(value_s: float) -> str:
    """Three digits that count."""
    return f"{1e3 * value_s:.3g}"


def microseconds(value_s: float) -> str:
    """Three digits that count, without an exponent."""
    return f"{1e6 * value_s:,.0f}" if value_s >= 1e-4 else f"{1e6 * value_s:.3g}"


def _summary(known: Mapping[str, Reached]) -> str:
    words = {True: "yes", False: "**no**", None: "–"}
    rows = []
    for target, wanted in TARGETS.items():
        reached = known.get(target, Reached(target, _NOT_RUN, None))
        rows.append((target, wanted, reached.figure, words[reached.met]))
    return table(("target", "wanted", "reached", "met"), rows)


def _summary_rows(block: str) -> dict[str, Reached]:
    """The rows that a summary has already."""
    words = {"yes": True, "**no**": False, "–": None}
    found = {}
    for line in block.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 4 and cells[0] in TARGETS and cells[3] in words:
            found[cells[0]] = Reached(cells[0], cells[2], words[cells[3]])
    return found


def _block(page: str, name: str) -> str:
    return next((match["content"] for match in BLOCK.finditer(page) if match["name"] == name), "")


def replaced(page: str, name: str, content: str) -> str:
    """The page with another content of its generated block of that name."""
    return BLOCK.sub(
        lambda match: f"{match[1]}\n{content.strip()}\n\n{match[4]}" if match["name"] == name else match[0], page
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
