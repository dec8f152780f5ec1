"""A night's report as Markdown: short enough for a merge request, the verdict first, the details folded."""

import re
from collections.abc import Sequence

from harness.nightly.night_report import (
    AttentionItem,
    Change,
    DeviceRow,
    NightReport,
    PublishedTable,
    SetComparison,
    SetRow,
)
from harness.report.page_values import display, duration, signed_percent
from harness.slowdowns.findings import UNCHANGED
from harness.text import counted

MAX_ROWS = 50
"""Rows of a table in the report; the others are counted. `harness nightly run --json` prints all of them."""
MAX_TEXT = 300
_ESCAPED = re.compile(r"([\\`*_\[\]{}|<>])")
_REFERENCE = re.compile(r"([@#!~$%&])(?=\w)")
_LINK = re.compile(r"(?i):(?=//)|www(?=\.)")
_BLOCK_STARTS = ("#", "+", "-", "=")
_BREAK = "\N{ZERO WIDTH SPACE}"


def plain(text: str) -> str:
    """Return text of a device or a file escaped for Markdown: no table, code, HTML, link, mention or second line."""
    unlinked = _LINK.sub(lambda found: found[0] + _BREAK, display(text, MAX_TEXT))
    escaped = _ESCAPED.sub(r"\\\1", _REFERENCE.sub(lambda found: found[0] + _BREAK, unlinked))
    return f"\\{escaped}" if escaped.startswith(_BLOCK_STARTS) else escaped


def markdown(report: NightReport) -> str:
    """Return the whole report."""
    parts = [f"## Night of {report.night}", verdict(report, "**")]
    if report.regressions:
        parts += ["### Slower than before", _changes(report.regressions)]
    if report.attention:
        parts += ["### Needs attention", _attention(report.attention)]
    if report.not_compared:
        parts += ["### Not compared", _not_compared(report)]
    if report.improvements:
        parts.append(_folded(f"Faster: {len(report.improvements)}", _changes(report.improvements)))
    if report.accepted:
        parts.append(_folded(f"Accepted: {len(report.accepted)}", _accepted(report.accepted)))
    passed = [one for one in report.changes if one.state == "passed"]
    if passed:
        parts.append(_folded(f"Back to normal: {len(passed)}", _changes(passed)))
    parts.append(_folded(f"Devices: {len(report.devices)}", _devices(report.devices)))
    if any(not one.not_compared for one in report.compared):
        parts.append(_folded("Smallest detectable changes", _detectable(report.compared)))
    parts.append(f"Started {plain(report.started)}, finished {plain(report.finished)}, plan {plain(report.plan)}.")
    return "\n\n".join(parts) + "\n"


def verdict(report: NightReport, mark: str = "") -> str:
    """Return the night in one line: what became slower or needs attention, between marks, and how much was measured."""
    compared = len(report.compared) - len(report.not_compared)
    counts = [f"{report.count('done')} of {sum(len(one.sets) for one in report.devices)} sets measured"]
    for status in ("failed", "deferred", "skipped"):
        counts += [f"{report.count(status)} {status}"] if report.count(status) else []
    counts += [f"{compared} compared with earlier nights"] if compared and report.not_compared else []
    published = sum(bool(one.published.table and not one.published.kept_because) for one in report.devices)
    return (
        f"{mark}{', '.join(_findings(report, compared)).capitalize()}.{mark} {', '.join(counts)} on"
        f" {counted(len(report.devices), 'device')}, {counted(published, 'table')} published."
        f" Exit code {report.exit_code}."
    )


def _findings(report: NightReport, compared: int) -> list[str]:
    fresh = sum(one.fresh for one in report.regressions)
    known = len(report.regressions) - fresh
    found = [counted(fresh, "new regression")] if fresh else []
    found += [counted(known, "known regression")] if known else []
    if items := len(report.attention):
        found.append(f"{counted(items, 'item')} {'needs' if items == 1 else 'need'} attention")
    if not compared:
        found.append("nothing to compare with yet" if found else "no failures, nothing to compare with yet")
    elif not found:
        found = ["nothing became slower"]
    return ["the night was stopped", *found] if report.stopped else found


def _changes(changes: Sequence[Change]) -> str:
    rows = [
        (
            plain(one.device),
            f"{one.kind} {plain(one.name)}{_in_brackets(one.op)}",
            duration(one.before_s) if one.before_s else "",
            duration(one.after_s) if one.before_s else "",
            f"**{signed_percent(one.change)}** [{signed_percent(one.interval[0])}, {signed_percent(one.interval[1])}]",
            f"{one.p_value:.1g}",
            f"{plain(one.since[:10])}{', new' if one.fresh else ''}",
            plain(", ".join(one.causes)) or UNCHANGED,
        )
        for one in changes
    ]
    header = ("device", "subject", "before", "now", "change [95 %]", "p", "since", "likely cause")
    return _table(header, rows, "llrrrlll")


def _accepted(changes: Sequence[Change]) -> str:
    rows = [
        (
            plain(one.device),
            f"{one.kind} {plain(one.name)}",
            signed_percent(one.change),
            plain(one.since[:10]),
            plain(one.accepted),
        )
        for one in changes
    ]
    return _table(("device", "subject", "change", "since", "reason"), rows, "llrll")


def _attention(items: Sequence[AttentionItem]) -> str:
    lines = []
    for one in items[:MAX_ROWS]:
        where = f"**{plain(one.device)}**: " if one.device else ""
        what = f"{where}{plain(one.what)}{_in_brackets(one.why)}"
        lines.append(f"- {what}. *Next:* {plain(one.next_step) or 'investigate'}")
    if len(items) > MAX_ROWS:
        lines.append(f"- … and {len(items) - MAX_ROWS} more")
    return "\n".join(lines)


def _not_compared(report: NightReport) -> str:
    """Return the sets that could not be compared, by reason."""
    lines = []
    for reason, names in list(report.not_compared_by_reason.items())[:MAX_ROWS]:
        more = f" and {len(names) - MAX_ROWS} more" if len(names) > MAX_ROWS else ""
        lines.append(f"- {', '.join(map(plain, names[:MAX_ROWS]))}{more}: {plain(reason)}")
    return "\n".join(lines)


def _devices(devices: Sequence[DeviceRow]) -> str:
    rows = [
        (
            plain(one.device),
            f"{one.health}: {plain(one.health_reason)}",
            "; ".join(map(_set, one.sets)),
            f"{one.device_s:.1f} s",
            _golden(one),
            _published(one.published),
            "; ".join(map(plain, one.notes)),
        )
        for one in devices
    ]
    header = ("device", "health", "sets", "device time", "golden probe", "table", "notes")
    return _table(header, rows, "lllrlll")


def _set(row: SetRow) -> str:
    machine = f", machine {plain(row.machine)}" if row.machine else ""
    return f"{plain(row.set)} {row.status}{_in_brackets(row.reason)}{machine}"


def _in_brackets(text: str) -> str:
    return f" ({plain(text)})" if text else ""


def _golden(row: DeviceRow) -> str:
    band = f"{duration(row.band_s[0])} to {duration(row.band_s[1])}" if row.band_s else "no band"
    return f"{duration(row.golden_s)} ({band})" if row.golden_s is not None else "not measured"


def _published(published: PublishedTable) -> str:
    if not published.kept_because:
        return plain(published.table or "none")
    kept = f"{plain(published.table)}, kept" if published.table else "none"
    return f"{kept}: {plain(published.kept_because)}"


def _detectable(compared: Sequence[SetComparison]) -> str:
    """Return, for each set, the median and the largest of the smallest changes that tonight detects."""
    rows = []
    for one in (one for one in compared if not one.not_compared):
        sizes = sorted(one.detectable.values())
        middle, largest = (signed_percent(sizes[len(sizes) // 2]), signed_percent(sizes[-1])) if sizes else ("", "")
        figures = (str(one.nights), str(len(sizes)), middle, largest, str(len(one.hidden)))
        rows.append((plain(one.device), plain(one.set), *figures, signed_percent(one.host_change)))
    header = ("device", "set", "earlier nights", "watched", "median", "largest", "not detectable", "host change")
    return _table(header, rows, "llrrrrrr")


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> str:
    marks = {"l": "---", "r": "---:"}
    lines = [header, [marks[one] for one in align], *rows[:MAX_ROWS]]
    more = f"\n\n… and {len(rows) - MAX_ROWS} more." if len(rows) > MAX_ROWS else ""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + more


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{content}\n\n</details>"
