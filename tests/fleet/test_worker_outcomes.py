"""What a worker reports about a job is checked before it is used."""

from dataclasses import replace
from typing import Any

import pytest

from harness.errors import EngineError
from harness.fleet.cluster.job_archive import read_outcome, write_outcome
from harness.fleet.profile_outcome import ProfileOutcome
from harness.fleet.store import DeviceHealth
from harness.measure.profiling import ProfileResult
from harness.measure.request import ProfileRequest

RESULT = ProfileResult(7, "left", 1, 1, 1.0, 1.0, False, 0, 0, 1.0, 0.0)


GOOD = ProfileOutcome(
    ProfileRequest("left", name="n"), "2026-11-20T20:00:00+00:00", "2026-11-20T20:00:01+00:00", 1, RESULT
)


INFINITE = float("inf")


@pytest.mark.parametrize(
    "wrong",
    [
        *({"golden_s": value} for value in (INFINITE, -INFINITE, float("nan"))),
        *(
            {"result": replace(RESULT, **{name: INFINITE})}
            for name in ("device_seconds", "wall_seconds", "median_runs", "drift")
        ),
        {"result": replace(RESULT, device="right")},
        {"result": replace(RESULT, campaign=8)},
        {"result": None},
        {"started": "soon"},
        {"started": "2026-11-20T20:00:00"},
        {"ended": "2026-11-20\x1b20:00:00+00:00"},
        {"health": DeviceHealth("left", "good", "golden", "soon")},
    ],
    ids=str,
)
def test_an_invalid_outcome_is_refused(wrong: dict[str, Any]) -> None:
    """Infinite numbers, invalid times and other devices in an outcome raise an EngineError."""
    assert read_outcome(write_outcome(GOOD), GOOD.request, {7: 2}).result == replace(RESULT, campaign=2)
    with pytest.raises(EngineError):
        read_outcome(write_outcome(replace(GOOD, **wrong)), GOOD.request, {7: 2})


def test_a_number_as_text_is_not_finite_either() -> None:
    """'NaN' as text is refused as well."""
    text = write_outcome(replace(GOOD, golden_s=1.5)).replace("1.5", '"NaN"')
    with pytest.raises(EngineError):
        read_outcome(text, GOOD.request, {7: 2})


def test_texts_of_an_outcome_are_printable() -> None:
    """Nothing that a worker writes reaches a terminal as a control character."""
    sent = replace(GOOD, fingerprint={"a\x1b[31m": "b\n\x07"}, notes=("c\x1b",))
    found = read_outcome(write_outcome(sent), GOOD.request, {7: 2})
    texts = [*found.fingerprint, *found.fingerprint.values(), *found.notes]
    assert len(texts) == 3
    assert all(map(str.isprintable, texts))
