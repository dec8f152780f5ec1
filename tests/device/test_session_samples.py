"""Samples of a misbehaving agent: impossible samples are refused, and no wrong one is accepted."""

from typing import Any

import pytest
from scripted_peer import GOOD, Meet, run_script, samples_of

from harness.errors import (
    ProtocolError,
)


def test_proper_run_is_believed(meet: Meet) -> None:
    """The values arrive as they were sent, absent clocks as None."""
    first, second = run_script(meet, samples_of(*GOOD))
    assert (first.visit, first.probe, first.samples[0].wall_ns, first.samples[0].device_ns) == (0, "p", 5, 3)
    assert (second.samples[0].cpu_ns, second.samples[0].preemptions, second.samples[1].cpu_ns) == (0, 1, None)


def _changed(samples: Any) -> list[Any]:
    return [{**GOOD[0], "samples": samples}, GOOD[1]]


@pytest.mark.parametrize(
    "series",
    [
        _changed([[0, 1, 1, 0]]),
        _changed([[-5, 1, 1, 0]]),
        _changed([[True, 1, 1, 0]]),
        _changed([[1.5, 1, 1, 0]]),
        _changed([["5", 1, 1, 0]]),
        _changed([[None, 1, 1, 0]]),
        _changed([[2**63, 1, 1, 0]]),
        _changed([[10**400, 1, 1, 0]]),
        _changed([[86_400 * 10**9 + 1, 1, 1, 0]]),
        _changed([[5, 86_400 * 10**9 + 1, 1, 0]]),
        _changed([[5, 1, 86_400 * 10**9 + 1, 0]]),
        _changed([[5, 1, 2**62, 0]]),
        _changed([[5, 1, None, 0]]),
        _changed([[5, 1, 1, 2**31]]),
        _changed([[5, -1, 1, 0]]),
        _changed([[5, 1, 0, 0]]),
        _changed([[5, 1, 1, -1]]),
        _changed([[5, 1, 1]]),
        _changed([[5, 1, 1, 0, 0]]),
        _changed([[5, 1, 1, 0], [5, 1, 1, 0]]),
        _changed([]),
        [GOOD[0]],
        [GOOD[0], GOOD[0], GOOD[1]],
        [*GOOD, {**GOOD[0], "visit": 2}],
        [{**GOOD[0], "visit": -1}, GOOD[1]],
        [{**GOOD[0], "visit": True}, GOOD[1]],
        [{**GOOD[0], "probe": "q"}, GOOD[1]],
        [{**GOOD[0], "extra": 1}, GOOD[1]],
        [],
    ],
)
def test_samples_that_cannot_be_are_refused(meet: Meet, series: list[Any]) -> None:
    """Impossible numbers, and visits that were not requested, end the run."""
    with pytest.raises(ProtocolError):
        run_script(meet, samples_of(*series))


@pytest.mark.parametrize(
    "payload",
    [
        b'{"series":[{"visit":0,"probe":"p","samples":[[NaN,1,1,0]]}],"state":{}}',
        b'{"series":[{"visit":0,"probe":"p","samples":[[1e400,1,1,0]]}],"state":{}}',
        b'{"series":[{"visit":0,"probe":"p\\ud800","samples":[[1,1,1,0]]}],"state":{}}',
        b'{"series":[{"visit":0,"probe":"p","samples":[[1,1,1,0]]}],"state":{"load":NaN}}',
        b'{"series":[{"visit":0,"probe":"p","samples":[[1,1,1,0]]}],"state":{"load":true}}',
        b'{"series":[{"visit":0,"probe":"p","samples":[[1,1,1,0]]}],"state":{"load":1e999}}',
        '{"series":[],"state":{}}'.encode("utf-16"),
        b'{"series":[{"visit":0,"probe":"p","samples":[[1,1,1,0]]}],"state":{"\\u001b[31m":1}}',
        b'{"series":' + b"[" * 100_000,
        b"\xff\xfe",
        b"",
        b"null",
    ],
)
def test_payloads_that_are_no_samples_are_refused(meet: Meet, payload: bytes) -> None:
    """NaN, overflow, surrogates, bottomless nesting and other text are a ProtocolError."""
    with pytest.raises(ProtocolError):
        run_script(meet, samples_of(payload=payload))


@pytest.mark.parametrize(
    "end",
    [
        {"count": 2},
        {"count": True},
        {"count": 2**62},
        {"hash": "0" * 64},
        {"hash": "x"},
        {"cancelled": True},
        {"cancelled": 0},
        {"extra": 1},
    ],
)
def test_end_record_that_does_not_confirm_is_refused(meet: Meet, end: dict[str, Any]) -> None:
    """Count, hash and cancellation of the end record must match the samples."""
    with pytest.raises(ProtocolError):
        run_script(meet, samples_of(*GOOD, end=end))
