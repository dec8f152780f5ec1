"""Requests to load probes that are sent before the ones in front are answered."""

import hashlib
import json
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from device_agents.messages import MOST_PUT_AHEAD_BYTES, MOST_PUTS
from harness.network.assemble import AssembledModel

Start = Callable[[], Any]


def put(agent: Any, name: str, content: bytes = b"model", **lists: Any) -> int:
    """Send a request to load a probe, and do not wait for the answer."""
    payload = content + json.dumps({"weights": [], "inputs": [], **lists}).encode()
    facts = {"probe": name, "model_bytes": len(content), "output_bytes": 4, "reveal": False, "silence_s": 60.0}
    digest = hashlib.sha256(payload).hexdigest()
    return int(agent.send("put", payload, token=agent.token, sha256=digest, **facts))


def test_probes_are_loaded_side_by_side_and_answered_in_order(start_agent: Start, model: AssembledModel) -> None:
    """Of several probes for a real runtime, each is loaded or refused by itself, and all that were loaded can run."""
    agent = start_agent()
    agent.greet("onnxruntime", threads=1)
    agent.lease()
    lists = {"weights": [one.wire() for one in model.weights], "inputs": [one.wire() for one in model.inputs]}
    requests = {name: put(agent, name, model.content, **lists) for name in "abcdefg"}
    requests["bad"] = put(agent, "bad", b"not a model")
    requests["z"] = put(agent, "z", model.content, **lists)
    answers = [agent.receive() for _ in requests]
    assert [one.id for one in answers] == list(requests.values())
    assert [one.fields.get("code") for one in answers] == [None] * 7 + ["backend", None]
    agent.send("run", token=agent.token, visits=[[name, 0, 1] for name in "zabcdefg"], silence_s=60.0)
    assert [agent.receive().type for _ in range(2)] == ["samples", "end"]


@pytest.mark.parametrize("further", [b"m", b"m" * MOST_PUT_AHEAD_BYTES])
def test_no_more_wait_than_stated(start_agent: Start, further: bytes) -> None:
    """A probe too many or too long to wait is refused at once, and those before it are loaded."""
    agent = start_agent().ready()
    os.kill(agent.worker, signal.SIGSTOP)
    count = MOST_PUTS if len(further) == 1 else 2
    waiting = [put(agent, f"p{number}") for number in range(count)]
    refused = agent.receive() if put(agent, "further", further) else None
    assert (refused.type, refused.fields["code"]) == ("error", "bad-request")
    assert agent.ask("heartbeat", token=agent.token).fields["busy"]
    os.kill(agent.worker, signal.SIGCONT)
    assert [agent.receive().id for _ in waiting] == waiting
    assert not agent.ask("heartbeat", token=agent.token).fields["busy"]


def test_nothing_else_waits_behind_probes(start_agent: Start) -> None:
    """A run behind requests to load is refused while they are open, as behind any other request."""
    agent = start_agent().ready()
    os.kill(agent.worker, signal.SIGSTOP)
    waiting = [put(agent, name) for name in "ab"]
    run = agent.ask("run", token=agent.token, visits=[["p", 0, 1]], silence_s=60.0)
    assert run.fields["code"] == "bad-request"
    os.kill(agent.worker, signal.SIGCONT)
    assert [agent.receive().id for _ in waiting] == waiting


def test_a_worker_that_dies_answers_all_that_wait(start_agent: Start) -> None:
    """Each open request gets the error of the worker's end, in order."""
    agent = start_agent().ready()
    os.kill(agent.worker, signal.SIGSTOP)
    waiting = [put(agent, name) for name in "abc"]
    os.kill(agent.worker, signal.SIGKILL)
    answers = [agent.receive() for _ in waiting]
    assert [(one.id, one.fields["code"]) for one in answers] == [(one, "worker-died") for one in waiting]
