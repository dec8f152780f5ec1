"""A night's report as JUnit XML, in the subset that GitLab and Jenkins both read.

GitLab keeps the first of test cases with equal names; of a failure it shows the text, Jenkins the message. The names of
cases are the same every night, so that CI systems show since when a layer, network or device fails.
"""

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.errors import advice
from harness.nightly.night_report import AttentionItem, DeviceRow, NightReport, SetComparison, SetRow
from harness.nightly.plan_file import dims_key
from harness.report.page_values import display
from harness.text import sentences

CaseResult = Literal["passed", "failure", "error", "skipped"]
_LIMIT = 1000


@dataclass(frozen=True)
class Case:
    """A test case."""

    name: str
    verdict: CaseResult
    message: str = ""
    kind: str = ""
    seconds: float = 0.0


def junit(report: NightReport) -> bytes:
    """Return the whole report as an XML document."""
    suites = [(device.device, _cases(device, report)) for device in report.devices]
    hosts = [_attention_case(one) for one in report.attention if not one.device]
    if hosts:
        suites.append(("host", hosts))
    counts = _counts([one for _, own in suites for one in own])
    root = ET.Element("testsuites", {"name": display(f"nightly {report.night}"), **counts})
    for name, cases in suites:
        timestamp = display(report.started.partition("+")[0])
        suite = ET.SubElement(root, "testsuite", {"name": display(name), "timestamp": timestamp, **_counts(cases)})
        seen: Counter[str] = Counter()
        for case in cases:
            seen[case.name] += 1
            again = f" #{seen[case.name]}" if seen[case.name] > 1 else ""
            _append(suite, f"nightly.{display(name)}", case, again)
    ET.indent(root)
    document: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _cases(device: DeviceRow, report: NightReport) -> list[Case]:
    attention = [one for one in report.attention if one.device == device.device and one.kind == "budget"]
    return [
        *(_set_case(row) for row in device.sets),
        _table_case(device),
        *(_attention_case(one) for one in attention),
        *(case for one in report.compared if one.device == device.device for case in _compared_cases(one)),
    ]


def _set_case(row: SetRow) -> Case:
    name = f"set {row.set}"
    if row.failure is not None:
        message = sentences(row.failure.what, row.failure.why, advice(row.failure, dims_key))
        return Case(name, "error", message, row.failure.kind, row.device_s)
    if row.status == "done":
        return Case(name, "passed", seconds=row.device_s)
    return Case(name, "skipped", f"{row.status}: {row.reason}")


def _table_case(device: DeviceRow) -> Case:
    published = device.published
    if published.failure is not None:
        return Case("table", "error", published.kept_because, published.failure.kind)
    return Case("table", "skipped", published.kept_because) if published.kept_because else Case("table", "passed")


def _attention_case(item: AttentionItem) -> Case:
    message = sentences(item.what, item.why, item.next_step)
    return Case(item.kind, "error" if item.exit_code else "skipped", message, item.kind)


def _compared_cases(compared: SetComparison) -> list[Case]:
    """Return a case for each subject: failed if it is slower, skipped if tonight cannot detect any change of it."""
    if compared.not_compared:
        return [Case(f"{compared.set}: comparison", "skipped", compared.not_compared)]
    slower = [one for one in compared.changes if one.is_slower]
    failed = [Case(f"{compared.set}: {one.subject}", "failure", one.summary, "slower", one.after_s) for one in slower]
    named = {one.subject for one in slower}
    passed = [Case(f"{compared.set}: {name}", "passed") for name in compared.detectable if name not in named]
    hidden = [name for name in compared.hidden if name not in named]
    why = "too uncertain tonight to detect a change"
    return [*failed, *passed, *(Case(f"{compared.set}: {name}", "skipped", why) for name in hidden)]


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
    attributes = {"classname": group, "name": display(case.name) + again, "time": f"{case.seconds:.6f}"}
    element = ET.SubElement(suite, "testcase", attributes)
    if case.verdict == "passed":
        return
    message = display(case.message, _LIMIT)
    child = ET.SubElement(element, case.verdict, {"message": message})
    if case.verdict != "skipped":
        child.set("type", display(case.kind, 80))
        child.text = message
