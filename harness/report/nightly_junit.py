"""A night's report as JUnit XML, in what GitLab and Jenkins both read.

GitLab tells test cases apart by class name and name, and takes the first of equal ones; of a failure it shows the text,
Jenkins the message, so both are given. Each watched layer, network and device is a case of its own under a name that
stays from night to night: CI systems then tell what fails since when.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.nightly.outcome import Chore, Compared, DeviceRow, NightReport, SetRow
from harness.report.units import clean

Verdict = Literal["passed", "failure", "error", "skipped"]
_LIMIT = 1000


@dataclass(frozen=True)
class Case:
    """A test case."""

    name: str
    verdict: Verdict
    message: str = ""
    kind: str = ""
    seconds: float = 0.0


def junit(report: NightReport) -> bytes:
    """The whole report as a document."""
    suites: list[tuple[str, list[Case]]] = []
    for device in report.devices:
        compared = [one for one in report.compared if one.device == device.device]
        suites.append((device.device, _cases(device, compared, report.chores)))
    hosts = [_chore_case(one) for one in report.chores if not one.device]
    if hosts:
        suites.append(("host", hosts))
    root = ET.Element(
        "testsuites", {"name": clean(f"nightly {report.night}"), **_counts([one for _, own in suites for one in own])}
    )
    for name, cases in suites:
        shown = clean(name)
        attributes = {"name": shown, "timestamp": clean(report.started.partition("+")[0]), **_counts(cases)}
        suite = ET.SubElement(root, "testsuite", attributes)
        seen: Counter[str] = Counter()
        for case in cases:
            seen[case.name] += 1
            again = f" #{seen[case.name]}" if seen[case.name] > 1 else ""
            _append(suite, f"nightly.{shown}", case, again)
    ET.indent(root)
    document: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _cases(device: DeviceRow, compared: Sequence[Compared], chores: Sequence[Chore]) -> list[Case]:
    return [
        *(_set_case(row) for row in device.sets),
        _table_case(device),
        *(_chore_case(one) for one in chores if one.device == device.device and one.kind == "budget"),
        *(case for one in compared for case in _compared_cases(one)),
    ]


def _set_case(row: SetRow) -> Case:
    name = f"set {row.set}"
    if row.failure is not None:
        said = [row.failure.what, row.failure.why, row.failure.next_step]
        return Case(name, "error", ". ".join(part.rstrip(".") for part in said if part), row.failure.kind, row.device_s)
    if row.status == "done":
        return Case(name, "passed", seconds=row.device_s)
    return Case(name, "skipped", f"{row.status}: {row.reason}")


def _table_case(device: DeviceRow) -> Case:
    published = device.published
    if published.failure is not None:
        return Case("table", "error", published.kept_because, published.failure.kind)
    return Case("table", "skipped", published.kept_because) if published.kept_because else Case("table", "passed")


def _chore_case(chore: Chore) -> Case:
    said = ". ".join(part.rstrip(".") for part in (chore.what, chore.why, chore.next_step) if part)
    return Case(chore.kind, "error" if chore.exit_code else "skipped", said, chore.kind)


def _compared_cases(compared: Compared) -> list[Case]:
    """One per subject: failed where it is slower, skipped where tonight could not have told."""
    if compared.not_compared:
        return [Case(f"{compared.set}: comparison", "skipped", compared.not_compared)]
    slower = [one for one in compared.changes if one.is_slower]
    told = [Case(f"{compared.set}: {one.subject}", "failure", one.told, "slower", one.after_s) for one in slower]
    named = {one.subject for one in slower}
    passed = [Case(f"{compared.set}: {name}", "passed") for name in compared.detectable if name not in named]
    hidden = [name for name in compared.hidden if name not in named]
    why = "too uncertain to tell tonight"
    return [*told, *passed, *(Case(f"{compared.set}: {name}", "skipped", why) for name in hidden)]


def _counts(cases: Sequence[Case]) -> dict[str, str]:
    verdicts = Counter(case.verdict for case in cases)
    return {
        "tests": str(len(cases)),
        "failures": str(verdicts["failure"]),
        "errors": str(verdicts["error"]),
        "skipped": str(verdicts["skipped"]),
        "time": f"{sum(case.seconds for case in cases):.6f}",
    }


def _append(suite: ET.Element, group: str, case: Case, again: str) -> None:
    attributes = {"classname": group, "name": clean(case.name) + again, "time": f"{case.seconds:.6f}"}
    element = ET.SubElement(suite, "testcase", attributes)
    if case.verdict == "passed":
        return
    message = clean(case.message, _LIMIT)
    child = ET.SubElement(element, case.verdict, {"message": message})
    if case.verdict != "skipped":
        child.set("type", clean(case.kind, 80))
        child.text = message
