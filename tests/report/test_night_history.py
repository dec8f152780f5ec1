"""The page of all nights in a browser: it loads nothing, names are text, tables sort, and steps are marked."""

from dataclasses import replace
from pathlib import Path

import pytest
from made_nights import MadeDevice, layer_name
from page_browser import Browser

from harness.fleet.store import Acceptance
from harness.nightly.set_comparison import subject_id
from harness.nightly.set_history import SetHistory
from harness.report.nights import night_history
from harness.report.nights.night_history import render_history, write_history
from harness.slowdowns.subject_history import Step, SubjectHistory, histories

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def subjects() -> tuple[SubjectHistory, ...]:
    """Return the histories of a device on which a layer became 10 % slower on the fifth night."""
    devices = [MadeDevice()] * 4 + [MadeDevice(slow={4: 1.1})] * 3
    return histories([replace(one.night(at), date=f"2026-11-{at + 1:02d}") for at, one in enumerate(devices)], 0.01)


def history(subjects: tuple[SubjectHistory, ...], name: str = "vision", accepted: str = "") -> SetHistory:
    """Return a set of this name; the slower layer is accepted for a reason."""
    nights = tuple(night.night for night in subjects[0].nights)
    slower = next(one for one in subjects if one.subject.name == layer_name(4))
    known = (Acceptance(name, name, subject_id(slower.subject), nights[-1], 0.1, accepted),) if accepted else ()
    return SetHistory(name, name, "device", nights, subjects, known)


def test_page_loads_nothing_and_shows_hostile_names_as_text(
    browser: Browser, tmp_path: Path, subjects: tuple[SubjectHistory, ...]
) -> None:
    """Two devices stand on one page; it requests only itself, logs no error, and shows names of devices unchanged."""
    changed = [replace(one, subject=replace(one.subject, name=f"{one.subject.name} {HOSTILE}")) for one in subjects]
    first = history(subjects)
    sets = [first, SetHistory(HOSTILE, HOSTILE, "device", first.nights, tuple(changed), ())]
    path = tmp_path / "nights.html"
    write_history(path, sets, "harness nightly history")
    visit = browser.open(path)
    text = visit.page.inner_text("main")
    assert f"{HOSTILE} on {HOSTILE}" in text and "vision on vision" in text
    assert visit.page.locator("svg.curve").count() == 2 * len(subjects)
    assert path.stat().st_size < 2_500_000
    assert "2026-11-" in visit.hover("#night-1-1")
    visit.assert_sound()


def test_slower_layer_stands_first_when_sorted_by_its_step(
    browser: Browser, tmp_path: Path, subjects: tuple[SubjectHistory, ...]
) -> None:
    """Sorted by the last step, the slower layer is first, with the night of the step; its curve has a mark."""
    path = tmp_path / "nights.html"
    write_history(path, [history(subjects)], "harness nightly history")
    visit = browser.open(path, viewport={"width": 390, "height": 844})
    table = visit.page.locator("table").nth(1)
    table.locator("thead button").nth(5).click()
    row = table.locator("tbody tr").first
    assert layer_name(4) in row.inner_text() and "2026-11-05" in row.inner_text()
    assert row.locator("td.bad").count() == 1
    assert row.locator("circle").count() == 1
    assert visit.errors == []
    assert visit.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_accepted_changes_are_no_alarm(subjects: tuple[SubjectHistory, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """An accepted step is shown with its reason and not in the colour of warnings; a later step is not accepted."""
    monkeypatch.setattr(night_history, "MAX_FIGURES", 1)
    assert "bad" in render_history([history(subjects)], "").split("<table>")[2].partition("</table>")[0]
    page = render_history([history(subjects, accepted="compiler 2.1")], "")
    table = page.split("<table>")[2].partition("</table>")[0]
    assert "compiler 2.1" in table and "bad" not in table
    for change, night in ((-0.1, "2026-11-07"), (0.5, "2026-11-07")):
        later = tuple(replace(one, steps=(*one.steps, Step(night, change, ()))) for one in subjects if one.steps)
        assert "compiler 2.1" not in render_history([history(later, accepted="compiler 2.1")], "")


def test_a_large_change_is_accepted_within_its_error(subjects: tuple[SubjectHistory, ...]) -> None:
    """The error is a fraction of the latency before, as the change is."""
    held = history(subjects, accepted="compiler 2.1")
    slower = next(one for one in subjects if one.steps)
    last = replace(slower.nights[-1], level_s=5.0, halfwidth_s=0.15)
    for change, is_accepted in ((4.1, True), (4.2, False)):
        step = replace(slower.steps[-1], change=change)
        one = replace(slower, nights=(*slower.nights[:-1], last), steps=(step,))
        known = replace(held, accepted=(replace(held.accepted[0], subject=subject_id(one.subject), change=4.0),))
        assert (known.acceptance(one) is not None) == is_accepted


def test_steps_of_all_sets_come_first(subjects: tuple[SubjectHistory, ...]) -> None:
    """The first table has the steps of every set with device, night and size; without a step the page says so."""
    page = render_history([history(subjects), history(subjects, "speech")], "")
    steps = page.partition("</table>")[0]
    assert (
        steps.count("2026-11-05") == steps.count("fingerprint unchanged") == 2
        and "vision" in steps
        and "speech" in steps
        and layer_name(4) in steps
    )
    calm = tuple(replace(one, steps=()) for one in subjects)
    assert "No network or layer has a step" in render_history([history(calm)], "")


def test_only_subjects_that_changed_have_figures_and_all_have_curves(
    subjects: tuple[SubjectHistory, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer without a step has a curve only; above the limit of figures the page says how many have none."""
    layers = [one for one in subjects if one.subject.kind == "layer"]
    drawn = [one for one in subjects if one.subject.kind != "layer" or one.steps]
    page = render_history([history(subjects)], "")
    assert page.count('class="curve"') == len(subjects) and page.count("data-figure=") == len(drawn) < len(subjects)
    monkeypatch.setattr(night_history, "MAX_FIGURES", 3)
    many = tuple(replace(one, subject=replace(one.subject, name=f"{one.subject.name} again")) for one in layers)
    page = render_history([history((*subjects, *many))], "")
    assert page.count("data-figure=") == 3
    assert f"{len(subjects) + len(many) - 3} more subjects: the table has the curves" in page


def test_networks_with_a_step_have_a_figure_before_those_without(
    subjects: tuple[SubjectHistory, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the limit of figures, the figure of the network that changed is drawn, wherever it stands in the set."""
    monkeypatch.setattr(night_history, "MAX_FIGURES", 1)
    calm = [replace(one, steps=()) for one in subjects if one.subject.kind == "network"]
    steps = next(one.steps for one in subjects if one.steps)
    changed = replace(calm[0], subject=replace(calm[0].subject, name="changed network"), steps=steps)
    page = render_history([history((*calm, changed, *(one for one in subjects if one.subject.kind == "layer")))], "")
    assert page.count("data-figure=") == 1 and "changed network" in page.partition("<figcaption")[2][:200]
