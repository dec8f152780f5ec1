"""The benchmark of docs/reliability.md: what it reads of the tests of faults."""

from pathlib import Path

from benchmarks.reliability.page import faults_section, outcomes_of

REPORT = """<testsuites><testsuite>
<testcase name="passes"/>
<testcase name="fails"><failure message="assert 1 == 2">the trace</failure></testcase>
<testcase name="ends"><error message="no device">the trace</error></testcase>
<testcase name="is left out"><skipped message="no sshd">where</skipped></testcase>
</testsuite></testsuites>"""


def test_a_fault_whose_test_failed_is_counted_although_it_left_no_row(tmp_path: Path) -> None:
    """A report lists failures, errors and skipped tests; the target is missed even if no fault left a row."""
    report = tmp_path / "faults.xml"
    report.write_text(REPORT, encoding="utf-8")
    found = outcomes_of(report)
    assert found == {"tests": 4, "failed": ["fails", "ends"], "skipped": [("is left out", "no sshd")]}
    section = faults_section({"rows": [], **found})
    assert "- fails" in section.text and "is left out: no sshd" in section.text
    assert [row.met for row in section.reached if "tests that failed" in row.target] == [False]
