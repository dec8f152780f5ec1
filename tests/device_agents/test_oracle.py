"""Who may ask the oracle, and which agents have one: the agent as a real process."""

from collections.abc import Callable
from typing import Any

import pytest

from device_agents import wire

Start = Callable[[], Any]  # the fixture's AgentProcess


def _opened(start_agent: Start, **purpose: object) -> Any:
    agent = start_agent()
    agent.hello = agent.ask("hello", major=wire.PROTOCOL_MAJOR, minor=1, backend="null", options={}, **purpose)
    agent.lease()
    agent.put()
    return agent


@pytest.mark.parametrize("purpose", [{}, {"purpose": "measurement"}])
def test_sessions_that_measure_are_forbidden_to_ask(start_agent: Start, purpose: dict[str, str]) -> None:
    """Only a session opened for validation may ask; the others go on without an answer."""
    agent = _opened(start_agent, **purpose)
    frame = agent.ask("oracle", token=agent.token, probe="p")
    assert (frame.type, frame.fields["code"]) == ("error", "forbidden")
    assert agent.ask("renew", token=agent.token).type == "renew"


def test_purpose_is_settled_at_hello(start_agent: Start) -> None:
    """No field of the request itself opens the oracle."""
    agent = _opened(start_agent)
    frame = agent.ask("oracle", token=agent.token, probe="p", purpose="validation")
    assert frame.fields["code"] == "forbidden"


def test_backend_without_oracle_says_so(start_agent: Start) -> None:
    """A backend without oracle answers with an error of code backend, and its hello lists no oracle."""
    agent = _opened(start_agent, purpose="validation")
    assert agent.hello.fields["reveals"] == ["unfused"]
    frame = agent.ask("oracle", token=agent.token, probe="p")
    assert (frame.type, frame.fields["code"]) == ("error", "backend")


def test_oracle_needs_the_lease(start_agent: Start) -> None:
    """The token is asked for before anything else."""
    agent = _opened(start_agent, purpose="validation")
    assert agent.ask("oracle", token=agent.token + 1, probe="p").fields["code"] == "lease-lost"


@pytest.mark.parametrize("purpose", ["curiosity", 3, None, ["validation"]])
def test_unknown_purposes_are_refused(start_agent: Start, purpose: object) -> None:
    """An unknown purpose is a bad request and starts no worker."""
    frame = start_agent().ask("hello", major=wire.PROTOCOL_MAJOR, minor=1, backend="null", options={}, purpose=purpose)
    assert (frame.type, frame.fields["code"]) == ("error", "bad-request")
