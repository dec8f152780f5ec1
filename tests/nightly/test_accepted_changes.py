"""Changes that a person accepts: no regression any more, but a further change is."""

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from made_nights import MadeDevice
from night_lab import Lab, PretendEngine
from test_night_comparison import RULES, SLOW, nights, report

from harness.errors import UsageError
from harness.fleet.store import Acceptance, FleetStore
from harness.measure.journal.journal import Journal
from harness.nightly import night_rehearsal
from harness.nightly.night_rehearsal import rehearse
from harness.nightly.night_report import SetComparison
from harness.nightly.set_comparison import compare_watches
from harness.nightly.set_history import accept_changes, set_histories
from harness.slowdowns.findings import Subject
from harness.workspace import Workspace


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """Return a workspace whose newest report lists a regression."""
    made = Lab(tmp_path)
    watches = nights([MadeDevice()] * 4 + [SLOW])
    found = compare_watches("one", "vision", watches, RULES, ())
    with FleetStore(made.workspace.fleet) as store:
        night, _, data = report(watches[-1], found)
        store.record_report(night, data)
    return made


def test_accepting_needs_a_change_of_that_name(lab: Lab) -> None:
    """A name or device without a change in the newest report is refused, and nothing is recorded."""
    for device, name in (("one", "layr5"), ("other", "layer5")):
        with pytest.raises(UsageError) as caught:
            accept_changes(lab.workspace, device, ["layer5", name] if device == "one" else [name], "why")
        assert "has no change" in caught.value.what
    with FleetStore(lab.workspace.fleet) as store:
        assert store.acceptances() == ()
    with pytest.raises(UsageError, match="No night has been reported"):
        accept_changes(Workspace(lab.root / "empty"), "one", ["layer5"], "why")


def test_a_stopped_night_hides_no_change(lab: Lab) -> None:
    """After a night that was stopped, the changes of the complete night before can be accepted."""
    with FleetStore(lab.workspace.fleet) as store:
        ((night, _, report),) = store.reports()
        store.record_report("2099-01-01", {**report, "stopped": True, "compared": []})
    (acceptance,) = accept_changes(lab.workspace, "one", ["layer5"], "compiler 2.1")
    assert acceptance.night == night


def test_accepted_change_is_no_regression_and_a_further_one_is(lab: Lab) -> None:
    """Later nights list an accepted change with its reason and do not regress; twice the change is a regression."""
    (acceptance,) = accept_changes(lab.workspace, "one", ["layer5"], "compiler 2.1")
    assert acceptance.change == pytest.approx(0.2, abs=0.02)
    with FleetStore(lab.workspace.fleet) as store:
        assert store.acceptances() == (acceptance,)
    acceptance = replace(acceptance, device="made")
    watches = nights([MadeDevice()] * 4 + [SLOW] * 3 + [MadeDevice(slow={5: 1.44})])
    rules = replace(RULES, accepted=(acceptance,))
    for count in (5, 6, 7):
        found = compare_watches("made", "vision", watches[:count], rules, ())
        layers = [one for one in found.changes if one.name == "layer5"]
        assert [one.accepted for one in layers] == ["compiler 2.1"]
        assert not any(one.is_slower or one.fresh for one in layers)
    further = compare_watches("made", "vision", watches, rules, ())
    (change,) = [one for one in further.changes if one.name == "layer5" and one.state == "new"]
    assert change.is_slower and change.fresh and further.is_regressed


def test_a_faster_layer_does_not_use_the_acceptance_of_a_slower_one() -> None:
    """An acceptance holds in its direction only."""
    faster = MadeDevice(slow={5: 0.8})
    watches = nights([MadeDevice()] * 4 + [faster])
    unaccepted = compare_watches("made", "vision", watches, RULES, ())
    (change,) = [one for one in unaccepted.changes if one.name == "layer5"]
    acceptance = Acceptance("made", "vision", change.subject, watches[-1].date, 0.2, "slower is intended")
    rules = replace(RULES, accepted=(acceptance,))
    found = compare_watches("made", "vision", watches, rules, ())
    assert [one.accepted for one in found.changes if one.name == "layer5"] == [""]


def test_rehearsals_and_histories_need_nights(tmp_path: Path) -> None:
    """Without two nights a rehearsal is refused with the next step, and so is the history page."""
    lab = Lab(tmp_path)
    with pytest.raises(UsageError, match="fewer than two nights"):
        rehearse(lab.workspace, "one", {"layer5": 1.1}, RULES)
    with pytest.raises(UsageError, match="No night has been reported"):
        set_histories(lab.workspace, (), 10, 0.01)
    plan = lab.plan("a")
    lab.run(plan, date(2026, 11, 20), PretendEngine(lab.workspace, {"a": 1.0}))
    with pytest.raises(UsageError, match="No night has measured two"):
        set_histories(lab.workspace, ("two",), 10, 0.01)
    assert set_histories(lab.workspace, (), 10, 0.01) == ()


def test_a_rehearsal_counts_only_what_has_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest detectable change is that of the named layer in any context, not of names that begin alike."""
    lab = Lab(tmp_path)
    with Journal(lab.workspace.journal):
        watches = nights([MadeDevice()] * 2)
    named = [("n5", "Conv", 0.02), ("n5", "Conv, alone", 0.03), ("n51", "Conv", 0.01)]
    watched = tuple(Subject("layer", name, op, ("ab",)) for name, op, _ in named)
    detectable = {f"layer {name} ({op}) in ab": change for name, op, change in named}
    for name, value in {
        "watched_sets": ["s"],
        "read_watches": watches,
        "_watched": watched,
        "compare_watches": SetComparison("one", "s", 1, False, detectable),
    }.items():
        monkeypatch.setattr(night_rehearsal, name, lambda *_, value=value: value)
    (found,) = rehearse(lab.workspace, "one", {"n5": 1.1}, RULES)
    assert found.least == {"n5": 0.02}
