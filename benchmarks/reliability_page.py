"""The page docs/reliability.md: its generated blocks, written from the figures that the parts kept as JSON.

A generated block stands between `<!-- generated: NAME -->` and `<!-- end -->`; everything else is left alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accuracy_page import BLOCK, percent, replaced, table

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reliability.md"
RESULTS = ROOT / "benchmarks" / "results" / "reliability"
SUMMARY, SHORT = "targets", "short"
_NOT_RUN = "not measured"
MOST_FALSE_ALARMS, FEWEST_FOUND = 0.01, 0.95


@dataclass(frozen=True)
class Reached:
    """What was reached of a target; `met` is None where there is nothing to miss."""

    target: str
    wanted: str
    figure: str
    met: bool | None


@dataclass(frozen=True)
class Section:
    """The generated block of a part, and what it reached."""

    text: str
    reached: tuple[Reached, ...]


def write_page(page: Path, results: Path) -> list[str]:
    """Writes all blocks from the figures in `results`; returns the targets that were missed."""
    text, reached = page.read_text(encoding="utf-8"), []
    for part, section_of in SECTIONS.items():
        path = results / f"{part}.json"
        if not path.exists():
            text = replaced(text, part, f"Not measured yet: `python benchmarks/reliability.py {part}`.")
            reached.append(Reached(part, "", _NOT_RUN, None))
            continue
        kept = json.loads(path.read_text(encoding="utf-8"))
        section = section_of(kept["found"])
        text = replaced(text, part, f"{section.text.strip()}\n\n{_told_by(kept)}")
        reached += section.reached
    words = {True: "yes", False: "**no**", None: "–"}
    rows = [(one.target, one.wanted, one.figure, words[one.met]) for one in reached]
    text = replaced(text, SUMMARY, table(("target", "wanted", "reached", "met"), rows))
    missed = [f"{one.target}: {one.figure}, wanted {one.wanted}" for one in reached if one.met is False]
    open_parts = [f"{one.target}: {_NOT_RUN}" for one in reached if one.figure == _NOT_RUN]
    lines = [f"- {line}" for line in (*missed, *open_parts)] or ["Nothing of the table at the top."]
    page.write_text(replaced(text, SHORT, "\n".join(lines)), encoding="utf-8")
    return missed


def check_page(page: Path) -> None:
    """Ends the program where the page lacks a block: better before an hour of measuring than after."""
    found = {match["name"] for match in BLOCK.finditer(page.read_text(encoding="utf-8"))}
    missing = sorted({*SECTIONS, SUMMARY, SHORT} - found)
    if missing:
        raise SystemExit(f"{page} has no block <!-- generated: {missing[0]} --> … <!-- end -->; put one in")


def _told_by(kept: Mapping[str, Any]) -> str:
    return (
        f"`{kept['command']}`: {kept['seconds']:,} s, with a load of {kept['load_before']:g} on the machine before it "
        f"began. {kept['machine']}"
    ).replace(" Parts measured on another day say so.", "")


def _zero(target: str, count: int, of: str) -> Reached:
    return Reached(target, "0", f"{count:,} of {of}", count == 0)


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:,.3g}"


# --- the parts ------------------------------------------------------------------------------------------------------


def _fleet(found: Any) -> Section:
    run, journal = found["controller"], found["evidence"]
    jobs = found["devices"] * found["campaigns"]
    rows = [
        ("devices, campaigns on each", f"{found['devices']}, {found['campaigns']}"),
        ("width: jobs side by side", f"{run['width']}"),
        ("devices measured at the same time, at most", f"{journal['at_once']}"),
        ("sessions in the journal", f"{journal['sessions']:,}"),
        ("sessions that overlap with another of their device", f"{journal['overlaps']:,}"),
        ("shortest time between two sessions of a device", f"{_seconds(journal['gap_s'])} s"),
        ("fencing tokens of a device that did not grow", f"{journal['tokens_not_growing']:,}"),
        ("campaigns complete", f"{journal['complete']:,} of {jobs:,}"),
        ("campaigns that differ from one measured alone, in places or numbers of samples", f"{journal['differing']:,}"),
        ("samples", f"{journal['samples']:,} of {journal['expected_samples']:,}"),
        ("places with more than one series", f"{journal['doubled']:,}"),
        ("jobs tried again", f"{run['retried']:,}"),
        ("devices in quarantine", f"{sum('DeviceQuarantined' in one for one in run['failures']):,}"),
        ("time in all, and for each campaign", f"{run['seconds']:,.0f} s, {run['seconds'] / jobs:.2f} s"),
        ("CPU time of the controller, for each campaign", f"{run['cpu_s']:,.0f} s, {run['cpu_s'] / jobs:.2f} s"),
        ("CPU time of agents and workers, for each campaign",
         f"{run['children_cpu_s']:,.0f} s, {run['children_cpu_s'] / jobs:.2f} s"),
        ("memory of the controller: before, at its peak", f"{run['rss_before_mb']:.0f}, {run['rss_peak_mb']:.0f} MB"),
        ("open files: before, most, after", f"{run['files_before']}, {run['files_peak']}, {run['files_after']}"),
        ("threads: most, after", f"{run['threads_peak']}, {run['threads_after']}"),
        ("journal", f"{journal['journal_mb']:.0f} MB"),
    ]  # fmt: skip
    parts = [
        (f"{one['jobs']:,}", f"{one['seconds']:,.0f}", f"{one['cpu_s']:,.0f}", f"{one['rss_mb']:.0f}",
         one["files"], one["threads"])
        for one in run["parts"]
    ]  # fmt: skip
    first, last = run["parts"][0]["rss_mb"], run["parts"][-1]["rss_mb"]
    header = ("jobs done", "s", "CPU s", "memory, MB", "open files", "threads")
    text = f"{table(('', ''), rows)}\n\nThe controller as it went on:\n\n{table(header, parts)}"
    if run["failures"]:
        text += "\n\nFailures:\n\n" + "\n".join(f"- {one}" for one in run["failures"])
    amiss = journal["doubled"] + journal["differing"]
    return Section(
        text,
        (
            _zero("fleet: two at once on a device", journal["overlaps"] + journal["tokens_not_growing"],
                  f"{journal['sessions']:,} sessions"),
            Reached("fleet: campaigns complete", f"{jobs:,}", f"{journal['complete']:,}", journal["complete"] == jobs),
            Reached("fleet: samples", f"{journal['expected_samples']:,}", f"{journal['samples']:,}",
                    journal["samples"] == journal["expected_samples"]),
            _zero("fleet: campaigns with places doubled or amiss", amiss, f"{jobs:,}"),
            Reached("fleet: files and threads left", "0, 0",
                    f"{run['files_after'] - run['files_before']}, {run['threads_after'] - 1}",
                    run["files_after"] <= run["files_before"] and run["threads_after"] == 1),
            Reached("fleet: memory of the controller, first part to last", "told",
                    f"{first:.0f} to {last:.0f} MB, peak {run['rss_peak_mb']:.0f} MB", None),
        ),
    )  # fmt: skip


_KILLED = {"controller": "controller, kill -9", "agent": "agent, kill -9", "worker": "worker, kill -9", "link": "link"}
_CUTS = {"Reset": "reset", "Close": "closed", "BlackHole": "swallowing all"}


def _kills(found: Any) -> Section:
    header = (
        "victim", "cuts", "life, s", "while leased", "samples there already", "samples lost", "doubled", "places amiss",
        "refused", "not one campaign", "not resumed", "past the lease", "held beyond grace", "left behind",
        "s to free, median", "slowest", "nothing runs after, s",
    )  # fmt: skip
    rows, reached, words = [], [], []
    for one in found:
        name = _KILLED[one["victim"]]
        if one["victim"] == "link":
            name += " (" + ", ".join(f"{one['kinds'][kind]} {word}" for kind, word in _CUTS.items()) + ")"
        rows.append((
            name, one["cuts"], _seconds(one["life_s"]), one["leased"], f"{one['begun']} cuts, {one['kept']:,} samples",
            one["lost"], one["doubled"], one["differing"], one["refused"], one["campaigns_too_many"],
            one["not_resumed"], one["past_lease"], one["held"], one["left_behind"], _seconds(one["free_median_s"]),
            _seconds(one["free_slowest_s"]), _seconds(one["ended_slowest_s"]),
        ))  # fmt: skip
        figure = f"{one['lost']}, {one['doubled']}, {one['held']} in {one['cuts']} cuts"
        nothing = one["lost"] == one["doubled"] == one["held"] == 0
        reached.append(Reached(f"{name}: samples lost, doubled, boards held beyond grace", "0, 0, 0", figure, nothing))
        past = f"{one['past_lease']} of {one['cuts']}; the slowest after {_seconds(one['free_slowest_s'])} s"
        reached.append(Reached(f"{name}: boards free later than their lease", "0", past, one["past_lease"] == 0))
        others = ("differing", "refused", "campaigns_too_many", "not_resumed", "hung", "left_behind")
        amiss = sum(one[key] for key in others)
        reached.append(_zero(f"{name}: places amiss, refused, not resumed, left behind", amiss, f"{one['cuts']} cuts"))
        ending = ", ".join(f"{count} {kind}" for kind, count in sorted(one["endings"].items()))
        words.append(f"{_KILLED[one['victim']]}: the cut sitting ended as {ending}; {one['missed']} moments came too"
                     " late and were drawn anew.")  # fmt: skip
        words += [f"  Amiss: `{finding}`" for finding in one["findings"]]
    text = table(header, rows) + "\n\n" + "\n".join(f"- {line}" if line[0] != " " else line for line in words)
    return Section(text, tuple(reached))


def _faults(found: Any) -> Section:
    rows = [
        (
            one["fault"], one["error"], _seconds(one["seconds_to_free"]), _seconds(one["bound_s"]), one["kept"],
            one["lost"], one["doubled"], "yes" if one["resumed"] else "**no**",
        )
        for one in sorted(found["rows"], key=lambda one: str(one["fault"]))
    ]  # fmt: skip
    header = ("fault", "error class", "s to free", "lease, s", "samples kept", "lost", "doubled", "resumed")
    text = table(header, rows)
    if found["skipped"]:
        text += "\n\nNot injected on this machine:\n\n" + "\n".join(
            f"- {name}: {why}" for name, why in found["skipped"]
        )
    if found["failed"]:
        text += "\n\nTests that failed:\n\n" + "\n".join(f"- {name}" for name in found["failed"])
    amiss = sum(one["lost"] + one["doubled"] + (not one["resumed"]) for one in found["rows"])
    late = [one["seconds_to_free"] - one["bound_s"] for one in found["rows"] if one["seconds_to_free"] is not None]
    later = sum(seconds > 0 for seconds in late)
    beyond = f"{later} of {len(late)}, by at most {_seconds(max([0.0, *late]))} s"
    return Section(
        text,
        (
            _zero("faults: samples lost or doubled, campaigns not resumed", amiss, f"{len(rows)} faults"),
            Reached("faults: boards free later than their lease", "told", beyond, None),
            _zero("faults: tests that failed", len(found["failed"]), f"{found['tests']}"),
        ),
    )


def _golden(found: Any) -> Section:
    rows = [
        (one["device"], f"{one['slower'] - 1:.0%}", one["sessions"], one["quarantined"],
         percent(one["quarantined"] / one["sessions"]))
        for one in found
    ]  # fmt: skip
    sound = [one for one in found if one["slower"] == 1.0]
    count = sum(one["quarantined"] for one in sound)
    header = ("device", "slower by", "sessions", "in quarantine", "")
    false_ones = _zero("golden probe: sound devices in quarantine", count, f"{sum(one['sessions'] for one in sound):,}")
    return Section(table(header, rows), (false_ones,))


def _nights(found: Any) -> Section:
    rows, reached = [], []
    for one in found["rows"]:
        between = f"{percent(one['low'], 2)} to {percent(one['high'], 2)}"
        rows.append((one["kind"], one["network"], one["earlier"], one["comparisons"], f"{one['nights']:,}",
                     f"{one['told']:,}", percent(one["rate"], 2), between))  # fmt: skip
        if one["network"] != "all":
            continue
        figure = f"{percent(one['rate'], 2)} of {one['nights']:,} ({between})"
        how = f"{one['earlier']} earlier, {one['comparisons']} compared"
        if one["kind"] == "A/A":
            met = one["rate"] <= MOST_FALSE_ALARMS
            reached.append(Reached(f"nights, {how}: false alarms where nothing changed", "<= 1 %", figure, met))
        else:
            met = one["rate"] >= FEWEST_FOUND
            reached.append(Reached(f"nights, {how}: a layer 2 % slower is found", ">= 95 %", figure, met))
    header = ("nights", "networks", "earlier nights", "comparisons", "nights", "told", "rate", "95 % interval")
    return Section(table(header, rows), tuple(reached))


def _fuzz(found: Any) -> Section:
    if "missing" in found:
        return Section(f"Not run: {found['missing']}.", (Reached("fuzzing", "0 faults", _NOT_RUN, None),))
    targets: Sequence[Any] = found["targets"]
    rows = [
        (one["target"], f"{one['seconds']:.0f}", f"{one['inputs']:,}", f"{one['accepted']:,}", len(one["faults"]),
         f"{1000 * one['slowest_s']:,.0f} ms", f"{one['peak_rss_mb']:,} MB")
        for one in targets
    ]  # fmt: skip
    header = ("reader", "s", "inputs", "accepted", "crashes, hangs", "slowest input", "peak memory")
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
"""What each part's figures look like on the page, in its order."""
