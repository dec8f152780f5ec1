"""The page docs/reliability.md: its targets, and the blocks that the figures of its parts become."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.generated_page import NO_TARGET, NOT_MEASURED, ROOT, PartsPage, Reached, Section, percent, table
from benchmarks.reliability.golden import Golden
from benchmarks.reliability.nights import Outcome

_VICTIMS = {"controller": "controller, kill -9", "agent": "agent, kill -9", "worker": "worker, kill -9", "link": "link"}
_WAYS = tuple(f"nights, {earlier} earlier, {compared} compared" for earlier in (1, 7) for compared in (1, 10))
_TARGETS = {
    "fleet: two jobs at once on a device": "0",
    "fleet: campaigns complete": "all",
    "fleet: samples": "all",
    "fleet: campaigns with doubled or differing series": "0",
    "fleet: files and threads left": "0, 0",
    "fleet: memory of the controller, first part to last": NO_TARGET,
    **{
        f"{victim}: {what}": wanted
        for victim in _VICTIMS.values()
        for what, wanted in (
            ("samples lost, doubled, boards held beyond grace", "0, 0, 0"),
            ("boards free later than their lease", "0"),
            ("series differing, refused, not resumed, left behind", "0"),
        )
    },
    "faults: samples lost or doubled, campaigns not resumed": "0",
    "faults: boards free later than their lease": NO_TARGET,
    "faults: tests that failed": "0",
    "golden probe: sound devices in quarantine": "0",
    **{f"{way}: false alarms without a change": "<= 1 %" for way in _WAYS},
    **{f"{way}: a layer 2 % slower is found": ">= 95 %" for way in _WAYS},
    "fuzzing: crashes and hangs": "0",
}
PAGE = PartsPage(ROOT / "docs" / "reliability.md", _TARGETS)
reached = PAGE.reached
MOST_FALSE_ALARMS, FEWEST_FOUND = 0.01, 0.95


def _zero(target: str, count: int, of: str) -> Reached:
    return reached(target, f"{count:,} of {of}", count == 0)


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:,.3g}"


def fleet_section(found: Any) -> Section:
    """Return the figures of the fleet and of its controller."""
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
        reached("fleet: campaigns complete", f"{complete:,} of {jobs:,}", complete == jobs),
        reached("fleet: samples", f"{samples:,} of {expected:,}", samples == expected),
        _zero("fleet: campaigns with doubled or differing series", differing, f"{jobs:,}"),
        reached("fleet: files and threads left", f"{files}, {threads}", files <= 0 and threads == 0),
        reached("fleet: memory of the controller, first part to last", memory, None),
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


_CUTS = {"Reset": "reset", "Close": "closed", "BlackHole": "swallowing all"}
_KILLS_HEADER = (
    *("victim", "cuts", "life, s", "while leased", "after the first sample", "samples lost", "doubled", "differing"),
    *("refused", "not one campaign", "not resumed", "past the lease", "held beyond grace", "left behind"),
    *("s until free, median", "slowest", "s until all processes ended"),
)


def kills_section(found: Any) -> Section:
    """Return a row for each victim, and how its cut runs ended."""
    rows, targets, words = [], [], []
    for one in found:
        name = _VICTIMS[one["victim"]]
        targets += _victim_targets(name, one)
        if one["victim"] == "link":
            name += " (" + ", ".join(f"{one['kinds'][kind]} {word}" for kind, word in _CUTS.items()) + ")"
        rows.append(_victim_row(name, one))
        ending = ", ".join(f"{count} {kind}" for kind, count in sorted(one["endings"].items()))
        words.append(
            f"- {_VICTIMS[one['victim']]}: the cut runs ended with {ending}; {one['missed']} moments were drawn again."
        )
        words += [f"  Failed: `{finding}`" for finding in one["findings"]]
    return Section(f"{table(_KILLS_HEADER, rows)}\n\n" + "\n".join(words), tuple(targets))


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
        reached(f"{name}: samples lost, doubled, boards held beyond grace", figure, nothing),
        reached(f"{name}: boards free later than their lease", past, one["past_lease"] == 0),
        _zero(f"{name}: series differing, refused, not resumed, left behind", wrong, f"{one['cuts']} cuts"),
    ]


def outcomes_of(report: Path) -> dict[str, Any]:
    """Return how many tests a report in JUnit's format has, those that failed, and the others that were skipped."""
    cases = list(ElementTree.parse(report).iter("testcase"))  # noqa: S314 - pytest has just written it
    found = [(str(case.get("name")), {one.tag: str(one.get("message")) for one in case}) for case in cases]
    return {
        "tests": len(found),
        "failed": [name for name, parts in found if not parts.keys().isdisjoint(("failure", "error"))],
        "skipped": [(name, parts["skipped"]) for name, parts in found if "skipped" in parts],
    }


def faults_section(found: Any) -> Section:
    """Return the faults by the error that they led to."""
    by_error: dict[str, list[str]] = {}
    rows = sorted(found["rows"], key=lambda one: str(one["fault"]))
    text = f"{len(rows)} faults"
    if rows:
        usual_s, kept = statistics.mode([one["bound_s"] for one in rows]), [one["kept"] for one in rows]
        for one in rows:
            by_error.setdefault(one["error"], []).append(f"{one['fault']} ({_until_free(one, usual_s)})")
        text += (
            f", each after {min(kept)} to {max(kept)} samples were committed. Leases last {usual_s:g} s where no other"
            " length is given. By error class:\n\n"
        )
        text += "\n".join(f"- {error}: {'; '.join(faults)}" for error, faults in sorted(by_error.items()))
    bad = [one for one in rows if one["lost"] or one["doubled"] or not one["resumed"]]
    lists = {
        "Samples lost or doubled, or not resumed": [str(one["fault"]) for one in bad],
        "Not injected on this machine": [f"{name}: {why}" for name, why in found["skipped"]],
        "Tests that failed": found["failed"],
    }
    for title, names in lists.items():
        if names:
            text += f"\n\n{title}:\n\n" + "\n".join(f"- {name}" for name in names)
    late = [one["seconds_to_free"] - one["bound_s"] for one in rows if one["seconds_to_free"] is not None]
    later = sum(seconds > 0 for seconds in late)
    beyond = f"{later} of {len(late)}, by at most {_seconds(max([0.0, *late]))} s"
    wrong = sum(one["lost"] + one["doubled"] + (not one["resumed"]) for one in bad)
    targets = (
        _zero("faults: samples lost or doubled, campaigns not resumed", wrong, f"{len(rows)} faults"),
        reached("faults: boards free later than their lease", beyond, None),
        _zero("faults: tests that failed", len(found["failed"]), f"{found['tests']}"),
    )
    return Section(text, targets)


def _until_free(one: Any, usual_s: float) -> str:
    lease = "" if one["bound_s"] == usual_s else f" of {one['bound_s']:g}"
    return f"{_seconds(one['seconds_to_free'])}{lease}"


def golden_section(found: Sequence[Golden]) -> Section:
    """Return a row for each device and slowdown."""
    rows = []
    for one in found:
        share = percent(one.quarantined / one.sessions)
        rows.append((one.device, f"{one.slower - 1:.0%}", one.sessions, one.quarantined, share))
    sound = [one for one in found if one.slower == 1.0]
    count = sum(one.quarantined for one in sound)
    header = ("device", "slower by", "sessions", "in quarantine", "share")
    false_ones = _zero("golden probe: sound devices in quarantine", count, f"{sum(one.sessions for one in sound):,}")
    return Section(table(header, rows), (false_ones,))


def nights_section(found: Sequence[Outcome]) -> Section:
    """Return a row for each network: the false alarms of the worst way to compare, and what each way detects."""
    by_network: dict[str, list[Outcome]] = {}
    for one in found:
        by_network.setdefault(one.network, []).append(one)
    ways = sorted({(one.earlier, one.comparisons) for one in found}, key=lambda way: (-way[0], way[1]))
    rows = []
    for network, held in by_network.items():
        false = max((one for one in held if one.kind == "A/A"), key=lambda one: one.detected)
        planted = {(one.earlier, one.comparisons): one for one in held if one.kind != "A/A"}
        rows.append((network, f"{false.nights:,}", _detected(false), *(_detected(planted[way]) for way in ways)))
    header = ("network", "nights of each kind", "false alarms, worst way", *(_way(*way) for way in ways))
    return Section(table(header, rows), tuple(map(_nights_target, by_network["all"])))


def _way(earlier: int, comparisons: int) -> str:
    return f"{earlier} earlier, {comparisons} compared"


def _detected(one: Outcome) -> str:
    return f"{one.detected:,} ({percent(one.low, 2)} to {percent(one.high, 2)})"


def _nights_target(one: Outcome) -> Reached:
    figure = f"{percent(one.rate, 2)} of {one.nights:,} ({percent(one.low, 2)} to {percent(one.high, 2)})"
    what = f"nights, {_way(one.earlier, one.comparisons)}"
    if one.kind == "A/A":
        return reached(f"{what}: false alarms without a change", figure, one.rate <= MOST_FALSE_ALARMS)
    return reached(f"{what}: a layer 2 % slower is found", figure, one.rate >= FEWEST_FOUND)


def fuzz_section(found: Any) -> Section:
    """Return the inputs and the faults alone: docs/hostile_input.md has the table of the targets."""
    if "missing" in found:
        return Section(f"Not run: {found['missing']}.", (reached("fuzzing: crashes and hangs", NOT_MEASURED, None),))
    faults = [f"- {one['target']}: {fault}" for one in found["targets"] for fault in one["faults"]]
    inputs = f"{sum(one['inputs'] for one in found['targets']):,} inputs"
    text = "\n".join([f"{len(found['targets'])} targets read {inputs}; {len(faults)} faults.", "", *faults])
    return Section(text, (_zero("fuzzing: crashes and hangs", len(faults), inputs),))
