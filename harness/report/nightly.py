"""A night's report as Markdown: short enough for a merge request, the verdict first, the details folded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from harness.nightly.outcome import Change, Chore, Compared, DeviceRow, NightReport, SetRow
from harness.report.units import clean, duration, signed_percent

MAX_ROWS = 50
"""Rows of a table in the report; the rest is counted. `harness nightly status --json` has them all."""
MAX_TEXT = 300
_ESCAPED = re.compile(r"([\\`*_\[\]{}|<>])")
_REFERENCE = re.compile(r"([@#!~$%&])(?=\w)")
_LINK = re.compile(r"(?i):(?=//)|www(?=\.)")
_BLOCK_STARTS = ("#", "+", "-", "=")
_BREAK = "\N{ZERO WIDTH SPACE}"


def plain(text: str) -> str:
    """Text of a device or a file that means nothing in Markdown: no table, code, HTML, link, mention or second line."""
    unlinked = _LINK.sub(lambda found: found[0] + _BREAK, clean(text, MAX_TEXT))
    escaped = _ESCAPED.sub(r"\\\1", _REFERENCE.sub(lambda found: found[0] + _BREAK, unlinked))
    return f"\\{escaped}" if escaped.startswith(_BLOCK_STARTS) else escaped


def markdown(report: NightReport) -> str:
    """The whole report."""
    parts = [f"## Night of {report.night}", verdict(report), *_slower(report), *_chores(report.chores)]
    parts += _not_compared(report)
    if report.improvements:
        parts.append(_folded(f"Faster: {len(report.improvements)}", _changes(report.improvements)))
    passed = [one for one in report.changes if one.state == "passed"]
    if passed:
        parts.append(_folded(f"Passed again: {len(passed)}", _changes(passed)))
    parts.append(_folded(f"Devices: {len(report.devices)}", _devices(report.devices)))
    if any(not one.not_compared for one in report.compared):
        parts.append(_folded("What would have been noticed", _detectable(report.compared)))
    parts.append(f"Begun {plain(report.started)}, finished {plain(report.finished)}, plan {plain(report.plan)}.")
    return "\n\n".join(parts) + "\n"


def verdict(report: NightReport) -> str:
    """What a reader needs who reads one line."""
    fresh = sum(one.fresh for one in report.regressions)
    known = len(report.regressions) - fresh
    found = [f"{fresh} new {_plural('regression', fresh)}"] if fresh else []
    found += [f"{known} known {_plural('regression', known)}"] if known else []
    needs = "thing that needs" if len(report.chores) == 1 else "things that need"
    found += [f"{len(report.chores)} {needs} a hand"] if report.chores else []
    compared = len(report.compared) - len(report.not_compared)
    if not found and not compared:
        found = ["nothing went wrong; there is nothing to compare with yet"]
    elif not found:
        found = ["nothing became slower"]
    elif not compared:
        found += ["there is nothing to compare with yet"]
    found = ["the night was stopped", *found] if report.stopped else found
    published = sum(bool(one.published.table and not one.published.kept_because) for one in report.devices)
    counts = [f"{report.count('done')} of {sum(len(one.sets) for one in report.devices)} sets measured"]
    for status in ("failed", "deferred", "skipped"):
        counts += [f"{report.count(status)} {status}"] if report.count(status) else []
    counts += [f"{compared} compared with earlier nights"] if compared and report.not_compared else []
    devices = f"{len(report.devices)} {_plural('device', len(report.devices))}"
    return (
        f"**{', '.join(found).capitalize()}.** {', '.join(counts)} on {devices},"
        f" {published} {_plural('table', published)} published. Exit code {report.exit_code}."
    )


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def _slower(report: NightReport) -> Iterator[str]:
    if report.regressions:
        yield "### Slower than before"
        yield _changes(report.regressions)


def _changes(changes: Sequence[Change]) -> str:
    rows = [
        (
            plain(one.device),
            f"{one.kind} {plain(one.name)}{f' ({plain(one.op)})' if one.op else ''}",
            duration(one.before_s) if one.before_s else "",
            duration(one.after_s) if one.before_s else "",
            f"**{signed_percent(one.change)}** [{signed_percent(one.interval[0])}, {signed_percent(one.interval[1])}]",
            f"{one.p_value:.1g}",
            f"{plain(one.since[:10])}{', new' if one.fresh else ''}",
            plain(", ".join(one.causes)) or "not known",
        )
        for one in changes
    ]
    header = ("device", "what", "before", "now", "change [95 %]", "p", "since", "likely cause")
    return _table(header, rows, "lllrrlll")


def _chores(chores: Sequence[Chore]) -> Iterator[str]:
    if not chores:
        return
    yield "### Needs a hand"
    lines = []
    for one in chores[:MAX_ROWS]:
        where = f"**{plain(one.device)}**: " if one.device else ""
        why = f" ({plain(one.why)})" if one.why else ""
        lines.append(f"- {where}{plain(one.what)}{why}. *Next:* {plain(one.next_step) or 'look into it'}")
    if len(chores) > MAX_ROWS:
        lines.append(f"- … and {len(chores) - MAX_ROWS} more")
    yield "\n".join(lines)


def _not_compared(report: NightReport) -> Iterator[str]:
    """Sets of which nobody can say tonight whether they became slower, by the reason."""
    by_reason: dict[str, list[str]] = {}
    for one in report.not_compared:
        by_reason.setdefault(one.not_compared, []).append(f"{plain(one.set)} on {plain(one.device)}")
    if by_reason:
        yield "### Not compared"
        yield "\n".join(f"- {_some(names)}: {plain(reason)}" for reason, names in list(by_reason.items())[:MAX_ROWS])


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_ROWS} more" if len(names) > MAX_ROWS else ""
    return f"{', '.join(names[:MAX_ROWS])}{more}"


def _devices(devices: Sequence[DeviceRow]) -> str:
    rows = []
    for one in devices:
        table = plain(one.published.table or "none")
        kept = f"{table}, kept: {plain(one.published.kept_because)}" if one.published.kept_because else table
        rows.append(
            (
                plain(one.device),
                f"{one.health}: {plain(one.health_reason)}",
                "; ".join(_set(row) for row in one.sets),
                f"{one.device_s:.1f} s",
                _golden(one),
                kept
                if one.published.table or not one.published.kept_because
                else kept.replace("none, kept", "none", 1),
                "; ".join(map(plain, one.notes)),
            )
        )
    header = ("device", "health", "sets", "device time", "golden probe", "table", "notes")
    return _table(header, rows, "lllrlll")


def _set(row: SetRow) -> str:
    reason = f" ({plain(row.reason)})" if row.reason else ""
    return f"{plain(row.set)} {row.status}{reason}"


def _golden(row: DeviceRow) -> str:
    band = f"{duration(row.band_s[0])} to {duration(row.band_s[1])}" if row.band_s else "no band"
    return f"{duration(row.golden_s)} ({band})" if row.golden_s is not None else "not measured"


def _detectable(compared: Sequence[Compared]) -> str:
    """By set, the change that half and that all of what is watched would have shown."""
    rows = []
    for one in (one for one in compared if not one.not_compared):
        sizes = sorted(one.detectable.values())
        shown = (signed_percent(sizes[len(sizes) // 2]), signed_percent(sizes[-1])) if sizes else ("", "")
        counted = (str(one.nights), str(len(sizes)), *shown, str(len(one.hidden)))
        rows.append((plain(one.device), plain(one.set), *counted, signed_percent(one.host_change)))
    header = ("device", "set", "earlier nights", "watched", "half from", "all from", "cannot be told", "host slower by")
    return _table(header, rows, "llrrrrrr")


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> str:
    marks = {"l": "---", "r": "---:"}
    lines = [header, [marks[one] for one in align], *rows[:MAX_ROWS]]
    more = f"\n\n… and {len(rows) - MAX_ROWS} more." if len(rows) > MAX_ROWS else ""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + more


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{content}\n\n</details>"
