"""Agents that attack the host at each step of a session: errors of the device, or harmless, never faults of harness."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hostile_sshd import little_memory
from nullbench import DEVICE, Bench
from scripted_agent import CASES, start_scripted

from harness import RepeatPolicy, build_lut, profile
from harness.device import local, transport
from harness.device.diagnose import check_device
from harness.device.inventory import BUILT_IN
from harness.device.session import AgentSession, Deadlines, LoadRequest, Visit
from harness.errors import DeviceBusy, DeviceError, HarnessError, LinkLost, ProtocolError, WorkerDied

BOUND_BYTES = 32 << 20
NULL = BUILT_IN["null01"].model_copy(update={"exclusive": True})
PROBE = LoadRequest("p", b"model", (), ({"name": "x", "shape": [10], "dtype": "float32"},), 4)
PATIENT = Deadlines(lease_ttl_s=60.0, start_s=30.0, reply_s=30.0, load_s=30.0, run_s=30.0, margin_s=1.0)
HASTY = Deadlines(lease_ttl_s=2.0, start_s=30.0, reply_s=2.0, load_s=0.5, run_s=0.5, margin_s=0.5)

pytestmark = pytest.mark.timeout(900)

REFUSED: dict[str, tuple[type[HarnessError], str]] = {
    "text before the greeting": (ProtocolError, "prints a text before the agent answers"),
    "zeros before the greeting": (ProtocolError, "header length 0"),
    "a frame before any request": (ProtocolError, "major|malformed|another|frame"),
    "a greeting that drips": (LinkLost, "no hello within"),
    "a greeting with two types": (ProtocolError, "reports x"),
    "a batch that the host did not ask for": (ProtocolError, "batch, which only the host sets"),
    "a token below zero": (ProtocolError, "token"),
    "a token of 2^63": (ProtocolError, "token"),
    "a token that is true": (ProtocolError, "token"),
    "always busy, with a name of 7 kB": (DeviceBusy, "in use by"),
    "a compilation of NaN s": (ProtocolError, "not plain JSON"),
    "a compilation of -1 s": (ProtocolError, "compile_s"),
    "an answer of another type": (ProtocolError, "answered 'run' instead of put"),
    "an answer that drips": (LinkLost, "no put within"),
    "a session that ends in its middle": (LinkLost, "status 77"),
    "an agent that closes half of the way": (LinkLost, "still runs"),
    "an agent that stops reading": (LinkLost, "nothing arrived|no status"),
    "a gigabyte of errors at the end": (ProtocolError, "more than 2 MiB"),
    "samples that drip": (LinkLost, "no samples or end within"),
    "a worker that always dies": (WorkerDied, "Output"),
}
HARMLESS = ("a greeting of the largest size", "texts that turn the line around", "nodes on the CPU without end")
MEASURED = ("cores beyond any number", "a token of 2^63 - 1", "a lease of 10^308 s", "a state of -10^308")
HASTE = ("an answer that drips", "samples that drip", "an agent that stops reading")


@pytest.fixture(autouse=True)
def haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make closing short, and the budget of errors one that is reached soon."""
    monkeypatch.setattr(local, "CLOSE_S", 0.3)
    monkeypatch.setattr(transport, "ERROR_BYTES", 2 << 20)


def _whole_session(case: str) -> AgentSession:
    deadlines = replace(HASTY, start_s=1.0) if case == "a greeting that drips" else PATIENT
    deadlines = HASTY if case in HASTE else deadlines
    with AgentSession(start_scripted(case), NULL, deadlines) as session:
        session.greet()
        session.acquire("the test")
        session.status()
        session.put(PROBE)
        parts = list(session.run([Visit("p", 0, 3)] * 3))
        session.drop(["p"])
    assert sum(len(one.samples) for series, _ in parts for one in series) == 9
    assert all(math.isfinite(value) for _, state in parts for value in state.values())
    return session


def _is_printable(text: str) -> bool:
    return all(one.isprintable() for one in text)


@pytest.mark.parametrize("case", REFUSED)
def test_a_hostile_agent_is_an_error_of_the_device(case: str) -> None:
    """The session ends with an error of the device that names what was wrong, shows nothing raw, and costs little."""
    kind, why = REFUSED[case]
    with little_memory(BOUND_BYTES), pytest.raises(HarnessError) as refused:
        _whole_session(case)
    error = refused.value
    cause = error.__cause__ if type(error) is not kind else error
    assert isinstance(error, DeviceError) and isinstance(cause, kind)
    assert (error.exit_code, error.fault) in ((4, "device"), (4, "link"))
    assert re.search(why, str(error)), error
    assert _is_printable(str(error)) and len(str(error)) < 2500


@pytest.mark.parametrize("case", ["polite", *HARMLESS])
def test_a_strange_agent_that_keeps_to_the_protocol_is_used(case: str) -> None:
    """Answers that are strange but allowed change nothing; their texts are shown without what would move the cursor."""
    with little_memory(BOUND_BYTES):
        session = _whole_session(case)
    texts = [session.hello.agent_version, *session.hello.fingerprint.values()]
    assert all(map(_is_printable, texts))


@pytest.mark.parametrize("case", MEASURED)
def test_numbers_of_an_agent_break_nothing_that_is_computed_from_them(
    tmp_path: Path, runtime_folder: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A campaign with absurd facts, states, tokens and lease times completes, and the device can be checked."""
    assert runtime_folder
    monkeypatch.setattr("harness.device.session.start_here", lambda: start_scripted(case))
    monkeypatch.setattr("harness.device.diagnose.start_agent", lambda _: start_scripted(case))
    bench = Bench(tmp_path / "bench")
    policy = RepeatPolicy(runs=2)
    assert profile(bench.model, device=DEVICE, policy=policy, workspace=bench.workspace).samples
    assert build_lut(DEVICE, workspace=bench.workspace).entries
    found = check_device(NULL)
    assert not [one for one in found if one.name == "check"], "nothing unexpected was raised"


def test_all_cases_are_tested() -> None:
    """No case of the scripted agent is left out, but those of tests of their own."""
    assert {*REFUSED, *HARMLESS, *MEASURED, "polite", "slow_visits", "slow_probes"} == set(CASES)
