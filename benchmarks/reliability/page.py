"""The page docs/reliability.md: its generated blocks, written from the figures that the parts stored as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.generated_page import (
    NO_TARGET,
    NOT_MEASURED,
    ROOT,
    TARGETS_BLOCK,
    Reached,
    Section,
    check_blocks,
    percent,
    table,
    targets_table,
    with_block,
)
from fuzz.figures import share

PAGE = ROOT / "docs" / "reliability.md"
RESULTS = ROOT / "benchmarks" / "reliability" / "results"
_SHORT = "short"
MOST_FALSE_ALARMS, FEWEST_FOUND = 0.01, 0.95


def write_page(page: Path, results: Path) -> list[str]:
    """Write all blocks from the figures in `results`; return the targets that were missed."""
    text, reached = page.read_text(encoding="utf-8"), []
    for part, section_of in SECTIONS.items():
        path = results / f"{part}.json"
        if not path.exists():
            text = with_block(text, part, f"Not measured yet: `python -m benchmarks.reliability {part}`.")
            reached.append(Reached(part, "", NOT_MEASURED, None))
            continue
        stored = json.loads(path.read_text(encoding="utf-8"))
        section = section_of(stored["found"])
        text = with_block(text, part, f"{section.text.strip()}\n\n{_origin(stored)}")
        reached += section.reached
    text = with_block(text, TARGETS_BLOCK, targets_table(reached))
    missed = [f"{one.target}: {one.figure}, wanted {one.wanted}" for one in reached if one.met is False]
    open_parts = [f"{one.target}: {NOT_MEASURED}" for one in reached if one.figure == NOT_MEASURED]
    lines = [f"- {line}" for line in (*missed, *open_parts)] or ["All targets at the top of this page are met."]
    page.write_text(with_block(text, _SHORT, "\n".join(lines)), encoding="utf-8")
    return missed


def check_page(page: Path) -> None:
    """Exit before anything is measured if the page lacks a block."""
    check_blocks(page, (*SECTIONS, TARGETS_BLOCK, _SHORT))


def _origin(stored: Mapping[str, Any]) -> str:
    return (
        f"`{stored['command']}`: {stored['seconds']:,} s; the load of the machine was {stored['load_before']:g} before "
        f"the start. {stored['machine']}"
    )


def _zero(target: str, count: int, of: str) -> Reached:
    return Reached(target, "0", f"{count:,} of {of}", count == 0)


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:,.3g}"


def _fleet(found: Any) -> Section:
    run, journal = found["controller"], found["evidence"]
    jobs = found["devices"] * found["campaigns"]
    text = f"{table(('', ''), _fleet_rows(found))}\n\nThe controller during the run:\n\n{_progress_table(run['parts'])}"
    if run["failures"]:
        text += "\n\nFailures:\n\n" + "\n".join(f"- {one}" for one in run["failures"])
    together = journal["overlaps"] + journal["tokens_not_growing"]
    files, threads = run["files_after"] - run["files_before"], run["threads_after"] - 1
    first, last = run["parts"][0]["rss_mb"], run["parts"][-1]["rss_mb"]
    memory = f"{first:.0f} to {last:.0f} MB, peak {run['rss_peak_mb']:.0f} MB"
    complete, samples, expected = journal["complete"], journal["samples"], journal["expected_samples"]
    differing = journal["doubled"] + journal["differing"]
    rows = (
        _zero("fleet: two jobs at once on a device", together, f"{journal['sessions']:,} sessions"),
        Reached("fleet: campaigns complete", f"{jobs:,}", f"{complete:,}", complete == jobs),
        Reached("fleet: samples", f"{expected:,}", f"{samples:,}", samples == expected),
        _zero("fleet: campaigns with doubled or differing series", differing, f"{jobs:,}"),
        Reached("fleet: files and threads left", "0, 0", f"{files}, {threads}", files <= 0 and threads == 0),
        Reached("fleet: memory of the controller, first part to last", NO_TARGET, memory, None),
    )
    return Section(text, rows)


def _fleet_rows(found: Any) -> list[tuple[str, str]]:
    run, journal = found["controller"], found["evidence"]
    jobs = found["devices"] * found["campaigns"]
    quarantined = sum("DeviceQuarantined" in one for one in run["failures"])
    cpu_s, children_cpu_s = run["cpu_s"], run["children_cpu_s"]
    return [
        ("devices, campaigns on each", f"{found['devices']}, {found['campaigns']}"),
        ("width: jobs side by side", f"{run['width']}"),
        ("most devices measured at the same time", f"{journal['at_once']}"),
        ("sessions in the journal", f"{journal['sessions']:,}"),
        ("sessions that overlap with another of their device", f"{journal['overlaps']:,}"),
        ("shortest time between two sessions of a device", f"{_seconds(journal['gap_s'])} s"),
        ("fencing tokens of a device that did not grow", f"{journal['tokens_not_growing']:,}"),
        ("campaigns complete", f"{journal['complete']:,} of {jobs:,}"),
        ("campaigns whose series differ from a campaign measured alone", f"{journal['differing']:,}"),
        ("samples", f"{journal['samples']:,} of {journal['expected_samples']:,}"),
        ("doubled series", f"{journal['doubled']:,}"),
        ("jobs tried again", f"{run['retried']:,}"),
        ("devices in quarantine", f"{quarantined:,}"),
        ("time in all, per campaign", f"{run['seconds']:,.0f} s, {run['seconds'] / jobs:.2f} s"),
        ("CPU time of the controller, per campaign", f"{cpu_s:,.0f} s, {cpu_s / jobs:.2f} s"),
        ("CPU time of agents and workers, per campaign", f"{children_cpu_s:,.0f} s, {children_cpu_s / jobs:.2f} s"),
        ("memory of the controller: before, peak", f"{run['rss_before_mb']:.0f}, {run['rss_peak_mb']:.0f} MB"),
        ("open files: before, peak, after", f"{run['files_before']}, {run['files_peak']}, {run['files_after']}"),
        ("threads: peak, after", f"{run['threads_peak']}, {run['threads_after']}"),
        ("journal", f"{journal['journal_mb']:.0f} MB"),
    ]


def _progress_table(parts: Sequence[Any]) -> str:
    rows = []
    for part in parts:
        figures = (f"{part['jobs']:,}", f"{part['seconds']:,.0f}", f"{part['cpu_s']:,.0f}", f"{part['rss_mb']:.0f}")
        rows.append((*figures, part["files"], part["threads"]))
    return table(("jobs done", "s", "CPU s", "memory, MB", "open files", "threads"), rows)


_VICTIMS = {"controller": "controller, kill -9", "agent": "agent, kill -9", "worker": "worker, kill -9", "link": "link"}
_CUTS = {"Reset": "reset", "Close": "closed", "BlackHole": "swallowing all"}
_KILLS_HEADER = (
    *("victim", "cuts", "life, s", "while leased", "after the first sample", "samples lost", "doubled", "differing"),
    *("refused", "not one campaign", "not resumed", "past the lease", "held beyond grace", "left behind"),
    *("s until free, median", "slowest", "s until all processes ended"),
)


def _kills(found: Any) -> Section:
    rows, reached, words = [], [], []
    for one in found:
        name = _VICTIMS[one["victim"]]
        if one["victim"] == "link":
            name += " (" + ", ".join(f"{one['kinds'][kind]} {word}" for kind, word in _CUTS.items()) + ")"
        rows.append(_victim_row(name, one))
        reached += _victim_targets(name, one)
        ending = ", ".join(f"{count} {kind}" for kind, count in sorted(one["endings"].items()))
        words.append(
            f"- {_VICTIMS[one['victim']]}: the cut runs ended with {ending}; {one['missed']} moments were drawn again."
        )
        words += [f"  Failed: `{finding}`" for finding in one["findings"]]
    return Section(f"{table(_KILLS_HEADER, rows)}\n\n" + "\n".join(words), tuple(reached))


def _victim_row(name: str, one: Any) -> tuple[object, ...]:
    counts = [one[key] for key in ("lost", "doubled", "differing", "refused", "campaigns_too_many", "not_resumed")]
    boards = [one[key] for key in ("past_lease", "held", "left_behind")]
    times = [_seconds(one[key]) for key in ("free_median_s", "free_slowest_s", "ended_slowest_s")]
    begun = f"{one['begun']} cuts, {one['kept']:,} samples"
    return (name, one["cuts"], _seconds(one["life_s"]), one["leased"], begun, *counts, *boards, *times)


def _victim_targets(name: str, one: Any) -> list[Reached]:
    nothing = one["lost"] == one["doubled"] == one["held"] == 0
    figure = f"{one['lost']}, {one['doubled']}, {one['held']} in {one['cuts']} cuts"
    past = f"{one['past_lease']} of {one['cuts']}; the slowest after {_seconds(one['free_slowest_s'])} s"
    others = ("differing", "refused", "campaigns_too_many", "not_resumed", "hung", "left_behind")
    wrong = sum(one[key] for key in others)
    return [
        Reached(f"{name}: samples lost, doubled, boards held beyond grace", "0, 0, 0", figure, nothing),
        Reached(f"{name}: boards free later than their lease", "0", past, one["past_lease"] == 0),
        _zero(f"{name}: series differing, refused, not resumed, left behind", wrong, f"{one['cuts']} cuts"),
    ]


def _faults(found: Any) -> Section:
    rows = []
    for one in sorted(found["rows"], key=lambda one: str(one["fault"])):
        times = (_seconds(one["seconds_to_free"]), _seconds(one["bound_s"]))
        resumed = "yes" if one["resumed"] else "**no**"
        rows.append((one["fault"], one["error"], *times, one["kept"], one["lost"], one["doubled"], resumed))
    header = ("fault", "error class", "s until free", "lease, s", "samples kept", "lost", "doubled", "resumed")
    text = table(header, rows)
    if found["skipped"]:
        reasons = [f"- {name}: {why}" for name, why in found["skipped"]]
        text += "\n\nNot injected on this machine:\n\n" + "\n".join(reasons)
    if found["failed"]:
        text += "\n\nTests that failed:\n\n" + "\n".join(f"- {name}" for name in found["failed"])
    wrong = sum(one["lost"] + one["doubled"] + (not one["resumed"]) for one in found["rows"])
    late = [one["seconds_to_free"] - one["bound_s"] for one in found["rows"] if one["seconds_to_free"] is not None]
    later = sum(seconds > 0 for seconds in late)
    beyond = f"{later} of {len(late)}, by at most {_seconds(max([0.0, *late]))} s"
    targets = (
        _zero("faults: samples lost or doubled, campaigns not resumed", wrong, f"{len(rows)} faults"),
        Reached("faults: boards free later than their lease", NO_TARGET, beyond, None),
        _zero("faults: tests that failed", len(found["failed"]), f"{found['tests']}"),
    )
    return Section(text, targets)


def _golden(found: Any) -> Section:
    rows = []
    for one in found:
        share = percent(one["quarantined"] / one["sessions"])
        rows.append((one["device"], f"{one['slower'] - 1:.0%}", one["sessions"], one["quarantined"], share))
    sound = [one for one in found if one["slower"] == 1.0]
    count = sum(one["quarantined"] for one in sound)
    header = ("device", "slower by", "sessions", "in quarantine", "share")
    false_ones = _zero("golden probe: sound devices in quarantine", count, f"{sum(one['sessions'] for one in sound):,}")
    return Section(table(header, rows), (false_ones,))


def _nights(found: Any) -> Section:
    rows, reached = [], []
    for one in found["rows"]:
        rate, between = percent(one["rate"], 2), f"{percent(one['low'], 2)} to {percent(one['high'], 2)}"
        compared = (one["earlier"], one["comparisons"], f"{one['nights']:,}", f"{one['detected']:,}")
        rows.append((one["kind"], one["network"], *compared, rate, between))
        if one["network"] != "all":
            continue
        figure = f"{rate} of {one['nights']:,} ({between})"
        how = f"{one['earlier']} earlier, {one['comparisons']} compared"
        if one["kind"] == "A/A":
            met = one["rate"] <= MOST_FALSE_ALARMS
            reached.append(Reached(f"nights, {how}: false alarms without a change", "<= 1 %", figure, met))
        else:
            met = one["rate"] >= FEWEST_FOUND
            reached.append(Reached(f"nights, {how}: a layer 2 % slower is found", ">= 95 %", figure, met))
    header = ("kind", "networks", "earlier nights", "comparisons", "nights", "detected", "rate", "95 % interval")
    return Section(table(header, rows), tuple(reached))


_FUZZ_SHARES = {"accepted": "accepted", "checked": "valid ONNX", "stopped": "stopped at limits"}
"""What fuzzing counts of each reader, and the titles of these columns."""


def _fuzz(found: Any) -> Section:
    if "missing" in found:
        return Section(f"Not run: {found['missing']}.", (Reached("fuzzing", "0 faults", NOT_MEASURED, None),))
    targets: Sequence[Any] = found["targets"]
    rows = []
    for one in targets:
        counts = (
            f"{one['seconds']:.0f}",
            f"{one['inputs']:,}",
            *(share(one[name], one["inputs"]) for name in _FUZZ_SHARES),
        )
        measured = (f"{1000 * one['slowest_s']:,.0f} ms", f"{one['peak_rss_mb']:,} MB")
        rows.append((one["target"], *counts, len(one["faults"]), *measured))
    header = ("reader", "s", "inputs", *_FUZZ_SHARES.values(), "crashes, hangs", "slowest input", "peak memory")
    faults = [f"- {one['target']}: {fault}" for one in targets for fault in one["faults"]]
    text = "\n\n".join([table(header, rows), *(["\n".join(faults)] if faults else [])])
    inputs = sum(one["inputs"] for one in targets)
    return Section(text, (_zero("fuzzing: crashes and hangs", len(faults), f"{inputs:,} inputs"),))


SECTIONS: Mapping[str, Callable[[Any], Section]] = {
    "fleet": _fleet,
    "kills": _kills,
    "faults": _faults,
    "golden": _golden,
    "nights": _nights,
    "fuzz": _fuzz,
}
"""The section of each part from its figures, in the order of the page."""
