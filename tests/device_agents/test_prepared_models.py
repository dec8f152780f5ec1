"""Models that the emulated NPU compiles ahead: side by side, kept for later sessions, with the same result as alone."""

import errno
import gc
import hashlib
import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from load_requests import request_of
from nullbench import build_network

from device_agents.backends import Refused
from device_agents.backends.emulated_npu import EmulatedNpuBackend, emulated_npu_backend, timed_model
from device_agents.backends.emulated_npu.timed_model import TimedModel, from_json, time_model, time_models, to_json
from device_agents.emulated_npu.compiler.planning.search.known_estimates import known_estimates
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.machine import Machine, load_preset
from device_agents.messages import TrueLayer
from device_agents.result_cache import VARIABLE, put
from harness import profile
from harness.measure.journal.journal import Journal
from harness.measure.policy import RepeatPolicy
from harness.network.assemble import AssembledModel, assemble_network
from harness.network.model_references import load_network
from harness.workspace import Workspace

EDGE = load_preset("edge")
_seconds = st.floats(0, 1e3, allow_nan=False)
_texts = st.lists(st.text(max_size=8), max_size=4).map(tuple)
_layers = st.lists(st.builds(TrueLayer, st.text(max_size=8), _texts, _seconds), max_size=4).map(tuple)
_chains = st.lists(st.lists(st.integers(0, 99), max_size=3).map(tuple), max_size=3).map(tuple)
timed_models = st.builds(TimedModel, _seconds, _layers, _texts, _chains, _texts)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[AssembledModel]:
    """Five small networks of different sizes."""
    folder = tmp_path_factory.mktemp("models")
    paths = (build_network(folder / f"{width}.onnx", (8, width, width), 8, 10) for width in (8, 16, 24, 32, 40))
    return [assemble_network(load_network(str(path))) for path in paths]


@given(timed_models)
def test_timed_models_survive_as_json(timed: TimedModel) -> None:
    """What is read back is the value that was written, to the last bit."""
    assert from_json(to_json(timed)) == timed


@given(st.binary(max_size=60) | timed_models.map(lambda one: to_json(one)[:-2] + b"]"))
def test_other_content_is_no_timed_model(content: bytes) -> None:
    """Damaged content raises ValueError, and nothing else."""
    with pytest.raises(ValueError):
        from_json(content)


def test_models_compiled_side_by_side_are_those_compiled_alone(models: list[AssembledModel]) -> None:
    """Any number of processes finds what one finds; a model that cannot be compiled is left out."""
    contents = [one.content for one in models]
    alone = {content: time_model(content, EDGE) for content in contents}
    assert time_models([*contents, b"no model"], EDGE, 3) == alone
    assert time_models(contents[:1], EDGE, 8) == {contents[0]: alone[contents[0]]}


def test_chains_that_any_process_searched_are_known(models: list[AssembledModel]) -> None:
    """Once models were compiled side by side, compiling one of them again finds the estimates of all its chains."""
    contents = [one.content for one in models]
    known_estimates.cache_clear()
    time_models(contents, EDGE, 3)
    count = len(known_estimates())
    for content in contents:
        time_model(content, EDGE)
    assert 0 < count == len(known_estimates())


@pytest.mark.parametrize("kind", [MemoryError, IndexError])
def test_a_model_that_fails_is_left_to_loading(
    models: list[AssembledModel], monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    """A model that fails in any way is left out, and so is that of a fork that dies; what others found stays."""
    parent, contents = os.getpid(), [one.content for one in models]

    def failing(model: bytes, machine: Machine) -> TimedModel:
        if model == contents[0]:
            raise kind
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return time_model(model, machine)

    monkeypatch.setattr(timed_model, "time_model", failing)
    found = time_models(contents, EDGE, 3)
    assert contents[0] not in found
    assert len(found) >= len(contents) - 3
    assert all(timed == time_model(content, EDGE) for content, timed in found.items())


@pytest.mark.parametrize("allowed", [0, 1])
def test_fewer_processes_than_cores_find_what_they_can(
    models: list[AssembledModel], monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    """A system that allows no further process is no error: this process and those that started do all the work."""
    fork, started = os.fork, iter(range(allowed))

    def limited() -> int:
        if next(started, None) is None:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return fork()

    monkeypatch.setattr(os, "fork", limited)
    contents = [one.content for one in models]
    assert set(time_models(contents, EDGE, 3)) == set(contents)


def test_a_later_session_loads_without_compiling(
    models: list[AssembledModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backend answers from the cache of an earlier one of its version and machine, with the same graph and oracle."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    first, request = EmulatedNpuBackend({}), request_of(models[0], reveal=True)
    revealed = first.load(request)
    compiled: list[bytes] = []
    monkeypatch.setattr(
        emulated_npu_backend,
        "time_model",
        lambda model, machine: (compiled.append(model), time_model(model, machine))[1],
    )
    second = EmulatedNpuBackend({})
    assert second.load(request) == revealed
    assert second.oracle("p") == first.oracle("p")
    assert not compiled
    EmulatedNpuBackend({"preset": "systolic-32"}).load(request)
    assert len(compiled) == 1
    monkeypatch.setattr(emulated_npu_backend, "_EMULATOR", "of another version")
    assert EmulatedNpuBackend({}).load(request) == revealed
    assert len(compiled) == 2
    for path in (tmp_path / "results").iterdir():
        put(path.name, b"{}")
    assert EmulatedNpuBackend({}).load(request) == revealed
    assert len(compiled) == 3


def test_a_graph_alone_needs_no_compilation(models: list[AssembledModel], monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that never runs reveals the layers of the compiled one, without chains; a faulty model is refused."""
    request = request_of(models[0], reveal=True)
    compiled = EmulatedNpuBackend({}).load(request)
    monkeypatch.setattr(emulated_npu_backend, "time_model", lambda *_: pytest.fail("the model was compiled"))
    alone = EmulatedNpuBackend({}).load(replace(request, runs=False))
    assert compiled is not None and alone is not None
    assert json.loads(compiled.content)["chains"]
    assert json.loads(alone.content) == {**json.loads(compiled.content), "chains": []}
    with pytest.raises(Refused):
        EmulatedNpuBackend({}).load(replace(request, model=b"no model", runs=False))


def _samples(folder: Path, model: Path) -> dict[str, list[Any]]:
    workspace = Workspace(folder)
    folder.mkdir()
    result = profile(str(model), device="npu01", workspace=workspace, policy=RepeatPolicy(runs=3))
    with Journal(workspace.journal) as journal:
        return {probe: [one.device_ns for one in taken] for probe, taken in journal.samples(result.campaign).items()}


def test_samples_do_not_depend_on_parallelism_or_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A campaign on one core, one on all cores and one with everything cached take the same samples."""
    model, found = build_network(tmp_path / "chain.onnx", widths=(8, 16)), []
    cores = os.sched_getaffinity(0)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "one core"))
    try:
        os.sched_setaffinity(0, {min(cores)})
        found.append(_samples(tmp_path / "0", model))
    finally:
        os.sched_setaffinity(0, cores)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "all cores"))
    found += [_samples(tmp_path / number, model) for number in ("1", "2")]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("sizes", [[3, 4], [-1, 5], ["x"]])
def test_wrong_sizes_of_models_are_refused(start_agent: Callable[[], Any], sizes: list[Any]) -> None:
    """Models that are longer than what was sent are a bad request, and the session continues."""
    agent = start_agent()
    agent.greet("emulated-npu")
    agent.lease()
    fields = {"token": agent.token, "model_bytes": sizes, "sha256": hashlib.sha256(b"models").hexdigest()}
    frame = agent.ask("prepare", b"models", **fields)
    assert (frame.type, frame.fields["code"]) == ("error", "bad-request")
    assert agent.ask("prepare", b"models", **{**fields, "model_bytes": [3, 3]}).type == "prepare"
    assert agent.ask("prepare", b"damage", **fields).fields["code"] == "bad-request"


def test_a_backend_that_prepares_nothing_says_so(start_agent: Callable[[], Any]) -> None:
    """Other backends do not list the word, and refuse the request."""
    agent = start_agent()
    assert "prepare" not in agent.greet("null").fields["reveals"]
    agent.lease()
    fields = {"token": agent.token, "model_bytes": [], "sha256": hashlib.sha256(b"").hexdigest()}
    assert agent.ask("prepare", **fields).fields["code"] == "backend"


def test_compiling_leaves_no_cycles_behind() -> None:
    """What does not fit in the search for chains is freed at once, without the collector of cyclic garbage."""
    model = assemble_network(load_network("builtin:squeezenet")).content
    gc.collect()
    gc.disable()
    try:
        time_model(model, EDGE)
        assert not [one for one in gc.get_objects() if isinstance(one, DoesNotFit)]
    finally:
        gc.enable()
