"""A night's report as Markdown and as JUnit XML: its content, and that text of devices cannot do harm."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from harness.errors import DeviceUnreachable
from harness.fleet.profile_outcome import Failure
from harness.nightly.night_report import (
    AttentionItem,
    Change,
    DeviceRow,
    NightReport,
    PublishedTable,
    SetComparison,
    SetRow,
)
from harness.report.nights.nightly_junit import junit
from harness.report.nights.nightly_markdown import MAX_ROWS, markdown, plain, verdict

FAILURE = Failure.of(DeviceUnreachable("board does not answer", why="no route", next_step="Look at its power"))
CHANGE = Change(
    device="board",
    set="vision",
    subject="layer conv1 (Conv+Relu)",
    kind="layer",
    name="conv1",
    op="Conv+Relu",
    networks=("resnet50",),
    state="new",
    change=0.021,
    interval=(0.017, 0.025),
    p_value=1e-6,
    before_s=1e-3,
    since="2026-11-20T22:00:00+00:00",
    fresh=True,
    causes=("firmware 1 -> 2",),
    summary="layer conv1 (Conv+Relu) is 2.1 % slower, new tonight",
)
NASTY = [
    *("a|b", "`code`", "<script>alert(1)</script>", "line\n\n## heading", "[x](http://evil)", "![x](y)", "@everyone"),
    *("#1", "https://evil.example", "www.evil.example", "\x00\x1b[31m", "\ud800", "</details>", "&lt;", "*b*", "~~s~~"),
    *("]]>", "x" * 10_000, "\u202eabc", "| --- |", "\\", "\\|"),
]
TEXT = st.one_of(st.sampled_from(NASTY), st.text(max_size=60))


def make(text: str = "board", changes: tuple[Change, ...] = (), regressed: bool = False) -> NightReport:
    """Return a night with a set of each status, and this text in every field that a device or a file controls."""
    rows = (
        SetRow("vision", "vision-0", "j/1", "done", device_s=2.5, campaigns=(1,), watch=2, machine=text),
        SetRow("text", "text-0", "j/2", "failed", reason=text, failure=replace(FAILURE, what=text, why=text)),
        SetRow("audio", "audio-0", "j/3", "deferred", reason=text),
        SetRow("video", "video-0", "j/4", "skipped", reason=text),
    )
    device = DeviceRow(
        text, "bad", text, rows, PublishedTable(text, kept_because=text), 1e-3, (0.9e-3, 1.1e-3), (text,)
    )
    compared = SetComparison(
        text, "vision", 5, regressed, {"layer conv1 (Conv+Relu)": 0.01, text: 0.02}, ("layer pool",), changes
    )
    item = AttentionItem(text, "DeviceUnreachable", text, text, text, 4)
    host = AttentionItem("", "disk", text, text, text)
    return NightReport("2026-11-20", text, "2026-11-20T22:00:00+00:00", "x", 1, (device,), (item, host), (compared,))


def calm() -> NightReport:
    """Return a night without failures."""
    rows = (SetRow("vision", "vision-0", "j/1", "done", device_s=2.5, campaigns=(1,), watch=2),)
    device = DeviceRow(
        "board", "good", "in its band", rows, PublishedTable("board/t", entries=5), 1e-3, (0.9e-3, 1.1e-3)
    )
    compared = SetComparison("board", "vision", 5, False, {"layer conv1 (Conv+Relu)": 0.01})
    return NightReport("2026-11-20", "p", "2026-11-20T22:00:00+00:00", "x", 1, (device,), (), (compared,))


# --- Markdown -----------------------------------------------------------------------------------------------------


def test_verdict_comes_first() -> None:
    """The first lines name the night and its verdict; a regression is in a table with its likely cause."""
    report = make(changes=(CHANGE, replace(CHANGE, name="conv2", fresh=False, state="step")), regressed=True)
    lines = markdown(report).splitlines()
    assert lines[0] == "## Night of 2026-11-20"
    assert lines[2].startswith("**1 new regression, 1 known regression, 2 items need attention.**")
    assert "Exit code 4" in lines[2] and "1 of 4 sets measured, 1 failed, 1 deferred, 1 skipped" in lines[2]
    (row,) = [line for line in lines if line.startswith("|") and "conv1" in line and "firmware" in line]
    assert "**+2.1" in row and "1.021" in row and "2026-11-20, new" in row and "firmware 1 -\\> 2" in row


def test_calm_night_says_so() -> None:
    """Without slow-downs and failures the verdict says that nothing became slower, with exit code 0."""
    assert verdict(calm()).startswith("Nothing became slower. 1 of 1 sets measured on 1 device, 1 table published")
    assert calm().exit_code == 0
    alone = replace(calm(), compared=())
    assert "nothing to compare with yet" in verdict(alone)


def test_verdict_on_the_machine_stands_beside_its_set() -> None:
    """The table of devices has the verdict of each set that was measured."""
    night = calm()
    noisy = replace(night.devices[0].sets[0], machine="noisy: 16.6 tasks shared 2 cores")
    device = replace(night.devices[0], sets=(noisy,))
    assert "vision done, machine noisy: 16.6 tasks shared 2 cores |" in markdown(replace(night, devices=(device,)))


def test_sets_without_a_comparison_are_named() -> None:
    """A first night has nothing to compare with; sets that could not be compared are listed with the reason."""
    first = replace(calm().compared[0], nights=0, detectable={}, not_compared="no earlier night watched this set")
    alone = replace(calm(), compared=(first,))
    assert "nothing to compare with yet" in verdict(alone) and "became slower" not in verdict(alone)
    text = markdown(alone)
    assert "### Not compared\n\n- vision on board: no earlier night watched this set" in text
    assert "Smallest detectable changes" not in text
    assert cases(alone)["board/vision: comparison"] == "skipped"
    some = replace(calm(), compared=(*calm().compared, replace(first, set="text")))
    assert verdict(some).startswith("Nothing became slower.") and "1 compared with earlier nights" in verdict(some)


def test_stopped_night_says_so_first() -> None:
    """The report of a stopped night says so first."""
    report = replace(calm(), stopped=True)
    assert verdict(report).startswith("The night was stopped, nothing became slower.") and report.exit_code == 130


def test_improvements_and_passed_nights_do_not_alarm() -> None:
    """A speed-up, and a slow-down of one past night, are listed and are no regressions."""
    faster = replace(CHANGE, change=-0.03, interval=(-0.04, -0.02), name="conv2")
    passed = replace(CHANGE, state="passed", name="conv3", fresh=False)
    report = replace(calm(), compared=(replace(calm().compared[0], changes=(faster, passed)),))
    text = markdown(report)
    assert (report.exit_code, report.regressions) == (0, ())
    assert "<summary>Faster: 1</summary>" in text and "<summary>Back to normal: 1</summary>" in text
    assert "Slower than before" not in text


@given(TEXT)
def test_text_of_devices_means_nothing_in_markdown(text: str) -> None:
    """No name of a device or a file adds a line, cell, tag, link, mention or code to the report."""
    shown = plain(text)
    assert "\n" not in shown and "\r" not in shown and shown.isprintable() is (shown.replace("\u200b", "") == shown)
    assert not re.search(r"(?<!\\)(?:\\\\)*[|`<>\[\]*_]", shown)
    assert not re.search(r"@\w|://|www\.", shown)
    markup = [line for line in markdown(make(text)).splitlines() if line.startswith(("|", "#", "<", "-", "**"))]
    plainly = [line for line in markdown(make("x")).splitlines() if line.startswith(("|", "#", "<", "-", "**"))]
    cells = [len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in markup]
    if text.strip():
        assert cells == [len(re.findall(r"(?<!\\)\|", line)) for line in plainly], "as many rows and cells as ever"
    tags = re.findall(r"(?<!\\)<[^>]*>", "\n".join(markup))
    assert set(tags) <= {"<details>", "<summary>", "</summary>", "</details>"}


def test_long_report_is_cut_and_says_so() -> None:
    """A bad night of many devices stays short enough for a merge request."""
    items = tuple(AttentionItem(f"d{number}", "k", f"what {number}", "", "next") for number in range(500))
    text = markdown(replace(calm(), attention=items))
    assert text.count("\n- ") <= MAX_ROWS + 1 and f"and {500 - MAX_ROWS} more" in text and len(text) < 20_000


# --- JUnit --------------------------------------------------------------------------------------------------------


def cases(report: NightReport) -> dict[str, str]:
    """Return the verdict of each test case of the parsed document, by suite and name."""
    root = ET.fromstring(junit(report))
    found = {}
    for suite in root.iter("testsuite"):
        for case in suite.iter("testcase"):
            key = f"{suite.get('name')}/{case.get('name')}"
            assert key not in found, "GitLab takes the first of equal names and drops the rest"
            found[key] = case[0].tag if len(case) else "passed"
    return found


def test_each_set_and_each_subject_is_a_case() -> None:
    """Sets pass, are in error or are skipped; subjects pass, fail if slower, or are skipped if not detectable."""
    found = cases(make(changes=(CHANGE,), regressed=True))
    assert found == {
        "board/set vision": "passed",
        "board/set text": "error",
        "board/set audio": "skipped",
        "board/set video": "skipped",
        "board/table": "skipped",
        "board/vision: layer conv1 (Conv+Relu)": "failure",
        "board/vision: board": "passed",
        "board/vision: layer pool": "skipped",
        "host/disk": "skipped",
    }


def test_failure_says_the_same_to_every_reader() -> None:
    """Message (Jenkins) and text (GitLab) both hold the failure; the counts match the cases."""
    root = ET.fromstring(junit(make(changes=(CHANGE,), regressed=True)))
    failure, error = root.find(".//failure"), root.find(".//error")
    assert failure is not None and failure.text == failure.get("message") == CHANGE.summary
    assert error is not None and error.get("type") == "DeviceUnreachable" and "Look at its power" in str(error.text)
    for element in (root, *root.iter("testsuite")):
        inside = list(element.iter("testcase"))
        counts = [
            len(inside),
            *(sum(len(case.findall(tag)) for case in inside) for tag in ("failure", "error", "skipped")),
        ]
        assert counts == [int(str(element.get(name))) for name in ("tests", "failures", "errors", "skipped")]


def test_two_regressions_of_one_name_are_two_failures() -> None:
    """Layers of one name in two networks both fail, and no slower layer has a passed case as well."""
    subjects = [f"layer conv1 (Conv+Relu) in {network}" for network in ("aa", "bb")]
    changes = tuple(replace(CHANGE, subject=subject, summary=subject) for subject in subjects)
    watched = SetComparison(
        "board", "vision", 5, True, dict.fromkeys([*subjects, "layer pool in aa"], 0.01), (), changes
    )
    found = cases(replace(calm(), compared=(watched,)))
    verdicts = {name.removeprefix("board/vision: "): what for name, what in found.items() if "vision: " in name}
    assert verdicts == {**dict.fromkeys(subjects, "failure"), "layer pool in aa": "passed"}
    twice = replace(watched, changes=(changes[0], changes[0]))
    assert [*cases(replace(calm(), compared=(twice,))).values()].count("failure") == 2


def test_equal_names_keep_their_cases() -> None:
    """Two layers of one name have one case each."""
    twice = replace(calm().compared[0], hidden=("layer conv1 (Conv+Relu)", "layer pool", "layer pool"))
    found = cases(replace(calm(), compared=(twice, twice)))
    assert len([name for name in found if "layer pool" in name]) == 4


@given(TEXT)
def test_document_is_valid_whatever_devices_say(text: str) -> None:
    """The document parses and holds control characters, surrogates and markup as text."""
    report = make(text, changes=(replace(CHANGE, summary=text, name=text, subject=text),))
    document = junit(replace(report, night=text, started=text, finished=text))
    root = ET.fromstring(document)
    tags = {"testsuites", "testsuite", "testcase", "failure", "error", "skipped"}
    assert {element.tag for element in root.iter()} <= tags
    assert len(document) < 60_000
    document.decode("utf-8")


@pytest.mark.parametrize("name", ["kind", "budget"])
def test_table_that_could_not_be_built_is_an_error(name: str) -> None:
    """A table's failure is an error of its device; a budget that leaves sets out is a case of its own."""
    published = PublishedTable(None, kept_because="no table could be built: x", failure=FAILURE)
    report = replace(calm(), devices=(replace(calm().devices[0], published=published),))
    if name == "budget":
        report = replace(report, attention=(AttentionItem("board", "budget", "The budget is too small for x", "", ""),))
    found = cases(report)
    assert found["board/table"] == "error" and found.get("board/budget", "skipped") == "skipped"
    assert ("board/budget" in found) is (name == "budget")
