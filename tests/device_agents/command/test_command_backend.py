"""The command backend with a real program in place of a vendor's tool, with and without faults."""

import json
import math
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import onnx
import onnxruntime
import pytest
from load_requests import request_of
from nullbench import Truth, build_network
from onnx import numpy_helper
from processes import runs, wait_until

from device_agents import arrays
from device_agents.backends import Refused, create
from device_agents.backends.command.command_backend import MOST_HANGS
from device_agents.messages import Sample
from harness.network.assemble import AssembledModel, assemble_network
from harness.network.model_references import load_network

REPOSITORY = Path(__file__).resolve().parents[3]
TOOL = REPOSITORY / "tests" / "stand_ins" / "stand_in_tool.py"
WORDS = [sys.executable, "-I", "-S", str(TOOL), "--graph={model}", "--num_runs={runs}"]
AVERAGE = r"pattern:^Timings in us: Init: [0-9.]+, Inference \(avg\): (.+)$"
EACH = "json:$.runs[*].us"
TAIL = "a warning that nobody reads"


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network."""
    return build_network(tmp_path_factory.mktemp("model") / "chain.onnx")


@pytest.fixture(scope="module")
def model(network: Path) -> AssembledModel:
    """The network as it is sent to a device."""
    return assemble_network(load_network(str(network)))


@pytest.fixture(scope="module")
def true_ns(network: Path) -> int:
    """The latency that the stand-in computes for the network."""
    return round(Truth().network_s(network) * 1e9)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The worker's private folder."""
    private = tmp_path / "worker"
    private.mkdir(mode=0o700)
    monkeypatch.chdir(private)
    return private


def options(*further: str, latency: str = AVERAGE, **changes: Any) -> dict[str, Any]:
    """Options of the stand-in, with further arguments."""
    known = {"run": [*WORDS, *further], "latency": latency, "unit": "us", "version": "1", "runs": 4, **changes}
    return {name: value for name, value in known.items() if value is not None}


def loaded(settings: Mapping[str, Any], model: AssembledModel) -> Any:
    """A backend with the model as probe p."""
    backend = create("command", dict(settings))
    backend.load(request_of(model))
    return backend


def test_the_figure_of_the_tool_is_the_sample(model: AssembledModel, folder: Path, true_ns: int) -> None:
    """Samples use the clock of the options; with the device's clock, wall time is that of the call."""
    backend = loaded(options(), model)
    assert (backend.clock, backend.reveals) == ("wall", ())
    assert backend.run("p") == Sample(wall_ns=true_ns)
    backend.unload("p")
    backend = loaded(options(clock="device"), model)
    assert backend.clock == "device"
    sample = backend.run("p")
    assert (sample.device_ns, sample.cpu_ns, sample.preemptions) == (true_ns, None, 0)
    assert sample.wall_ns > 1_000_000  # a process was started
    backend.unload("p")
    with pytest.raises(KeyError):
        backend.run("p")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(("unit", "factor"), [("s", 1e6), ("ms", 1e3), ("ns", 1e-3)])
def test_units(unit: str, factor: float, model: AssembledModel, true_ns: int) -> None:
    """The same figure in another unit is another latency."""
    backend = loaded(options(unit=unit, clock="device"), model)
    assert backend.run("p").device_ns == pytest.approx(true_ns * factor, rel=1e-5, abs=1)


def test_each_run_of_a_list_is_a_sample(model: AssembledModel, tmp_path: Path) -> None:
    """One call serves as many samples as it reports, in its order, from a file as well."""
    counter = tmp_path / "calls"
    further = ["--noise=0.1", f"--counter={counter}"]
    taken = {}
    for where in ("--json", "--export={output}"):
        counter.unlink(missing_ok=True)
        backend = loaded(options(*further, where, latency=EACH), model)
        taken[where] = [backend.run("p").wall_ns for _ in range(9)]
        assert counter.stat().st_size == 3
    first = taken["--json"]
    assert len(set(first[:4])) == 4 and first == [*first[:4], *first[:4], first[0]]
    assert taken["--export={output}"] == first
    last = loaded(options(*further, "--json", latency="json:$['runs'][3].us"), model)
    assert last.run("p").wall_ns == first[3]


def test_longer_lists_lose_their_beginning(model: AssembledModel) -> None:
    """If a tool reports more runs than requested, the last ones count."""
    words = [word.replace("{runs}", "7") for word in WORDS]
    settings = options(latency=EACH)
    settings["run"] = [*words, "--noise=0.1", "--json"]
    many, few = (loaded({**settings, "runs": kept}, model) for kept in (7, 4))
    expected = [many.run("p").wall_ns for _ in range(7)]
    assert [few.run("p").wall_ns for _ in range(4)] == expected[3:]


def test_the_model_is_complete(model: AssembledModel, folder: Path, tmp_path: Path) -> None:
    """The tool gets a complete model file with weights, which no other user can read."""
    kept = tmp_path / "kept.onnx"
    backend = loaded(options(f"--keep={kept}"), model)
    (place,) = folder.iterdir()
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    content = onnx.load(kept)
    onnx.checker.check_model(content)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in content.graph.initializer}
    for spec in model.weights:
        assert numpy.array_equal(weights[spec.name], arrays.make(spec.wire()))
    session = onnxruntime.InferenceSession(kept, providers=["CPUExecutionProvider"])
    (values,) = session.run(None, {spec.name: arrays.make(spec.wire()) for spec in model.inputs})
    assert numpy.isfinite(values).all()
    backend.unload("p")


REFUSED = {
    "nothing": ["matches no line", "delegate not supported"],
    "exit": ["exit code 3", "delegate not supported"],
    "crash": ["SIGABRT", "about to crash"],
    "0": ["latency of 0 us", TAIL],
    "0.0": ["latency of 0 us", TAIL],
    "-12.5": ["latency of -12.5 us", TAIL],
    "nan": ["'nan', which is not a number", TAIL],
    "inf": ["'inf', which is not a number", TAIL],
    "1e400": ["latency of inf us", TAIL],
    "1e12": ["more than 10000 s", TAIL],
    "1e-9": ["less than a nanosecond", TAIL],
    "1e7": ["latency of 10 s in a call that took", "unit", TAIL],
    "1,234.5": ["'1,234.5', which is not a number", TAIL],
    "0x10": ["'0x10', which is not a number", TAIL],
    "1_000": ["'1_000', which is not a number", TAIL],
    "١٢": ["which is not a number", TAIL],
    "twice": ["matches more than one line", TAIL],
    "other unit": ["matches no line", "Timings in ms"],
}
REFUSED_JSON = {
    "nothing": ["not JSON", "delegate not supported"],
    "no json": ["not JSON", "about a millisecond"],
    "short list": ["reported 3 latencies instead of 4", '"us"'],
    "hole": ["no $.runs[3].us", '"ms"'],
    "text": ["$.runs[0].us is not a number"],
    "nan in json": ["latency of nan us"],
    "zero in json": ["latency of 0 us"],
    "no list": ["$.runs is not a list"],
    "key twice": ["key twice"],
    "nested": ["[[["],
}
REFUSED_FILE = {
    "nothing": ["wrote no {output}: No such file", "delegate not supported"],
    "link": ["wrote no {output}: it is not a regular file"],
    "pipe": ["wrote no {output}: it is not a regular file"],
    "folder": ["wrote no {output}: it is not a regular file"],
    "huge file": ["larger than 4 MiB"],
}


@pytest.mark.parametrize(
    ("misbehaviour", "further", "latency", "words"),
    [
        *((kind, [], AVERAGE, words) for kind, words in REFUSED.items()),
        *((kind, ["--json"], EACH, words) for kind, words in REFUSED_JSON.items()),
        *((kind, ["--export={output}"], EACH, words) for kind, words in REFUSED_FILE.items()),
    ],
)
def test_what_is_no_latency_is_refused(
    misbehaviour: str, further: list[str], latency: str, words: list[str], model: AssembledModel, folder: Path
) -> None:
    """The probe is refused with the reason and the end of the tool's output; no file and no sample remain."""
    backend = create("command", options(f"--misbehave={misbehaviour}", *further, latency=latency))
    with pytest.raises(Refused) as caught:
        backend.load(request_of(model))
    assert all(word in str(caught.value) for word in words), caught.value
    assert str(caught.value).isprintable() and len(str(caught.value)) < 700
    assert list(folder.iterdir()) == []
    with pytest.raises(KeyError):
        backend.run("p")


def test_a_tool_that_fails_later_ends_the_worker(model: AssembledModel, tmp_path: Path) -> None:
    """A tool that reported a latency before and then fails ends the worker, with the end of its output."""
    backend = loaded(options("--misbehave=exit", "--at=2", f"--counter={tmp_path / 'calls'}"), model)
    backend.run("p")
    with pytest.raises(SystemExit, match=r"exit code 3.*delegate not supported"):
        backend.run("p")


def test_endless_output_is_cut(model: AssembledModel) -> None:
    """A tool that does not stop printing is killed at a few megabytes, long before its time limit."""
    with pytest.raises(Refused, match=r"printed more than 4 MiB.*still running"):
        loaded(options("--misbehave=endless", timeout_s=90), model)


def test_a_hanging_tool_is_ended_with_its_children(model: AssembledModel, tmp_path: Path) -> None:
    """After the time limit the tool and its children are killed; the error has what it printed."""
    pids = tmp_path / "pids"
    for limit_s in (1, 5, 25, 125):  # on a busy machine a tool may take seconds to begin
        with pytest.raises(Refused, match=f"did not end within {limit_s} s") as refused:
            loaded(options("--misbehave=hang", f"--pids={pids}", timeout_s=limit_s), model)
        if "Inference" in str(refused.value):
            break
    assert "Inference" in str(refused.value)
    wait_until(lambda: not any(runs(int(pid)) for pid in pids.read_text().split()), "the end of the tool")


@pytest.mark.parametrize("further", [{}, {"push": ["true", "{model}"], "remove": ["true", "{model}"]}])
def test_a_tool_that_hangs_again_and_again_ends_the_worker(
    further: dict[str, Any], model: AssembledModel, tmp_path: Path
) -> None:
    """Single probes that hang are refused; the worker ends with the third run, also if models are pushed between."""
    backend = create("command", options("--misbehave=hang", f"--pids={tmp_path / 'pids'}", timeout_s=0.3, **further))
    for _ in range(MOST_HANGS - 1):
        with pytest.raises(Refused, match=r"did not end within 0.3 s"):
            backend.load(request_of(model))
    with pytest.raises(SystemExit, match=r"3 runs hung.*did not end within 0.3 s"):
        backend.load(request_of(model))


def test_what_a_tool_leaves_running_is_ended(model: AssembledModel, tmp_path: Path, true_ns: int) -> None:
    """A child that holds the tool's pipes delays nothing and does not disturb the next call."""
    pids = tmp_path / "pids"
    backend = loaded(options("--misbehave=family", f"--pids={pids}"), model)
    assert backend.run("p").wall_ns == true_ns
    wait_until(lambda: not any(runs(int(pid)) for pid in pids.read_text().split()), "the end of the tool")


def test_a_tool_dies_with_its_worker(network: Path, tmp_path: Path) -> None:
    """When a worker is killed, the running tool and its children end too."""
    pids = tmp_path / "pids"
    program = (
        "import json, sys; from device_agents.backends import create; from device_agents.messages import LoadRequest;"
        "create('command', json.loads(sys.argv[1])).load(LoadRequest('p', open(sys.argv[2], 'rb').read(), [], [], 4))"
    )
    settings = json.dumps(options("--misbehave=hang", f"--pids={pids}"))
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen([sys.executable, "-c", program, settings, str(network)], cwd=tmp_path, env=environment) as it:
        try:
            wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2, "the start of the tool")
            running = [int(pid) for pid in pids.read_text().split()]
            assert all(map(runs, running))
        finally:
            it.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(map(runs, running)), "the end of the tool")


def test_a_call_is_alone(model: AssembledModel, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool gets few variables, empty input, a folder that is removed with its content, and no shell."""
    monkeypatch.setenv("SECRET", "s3cret")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    seen = tmp_path / "seen"
    program = (
        "import json, os, sys; open('junk', 'w').write('x');"
        "facts = dict(environment=dict(os.environ), read=sys.stdin.read(), words=sys.argv[2:], at=os.getcwd());"
        "open(sys.argv[1], 'w').write(json.dumps(facts)); print('Timings in us: Init: 1, Inference (avg): 5')"
    )
    odd = ["$(touch x); `id`", "a b", "{{braces}}", "*", "model: {name}!", ""]
    loaded(options(run=[sys.executable, "-c", program, str(seen), *odd, "{model}"]), model)
    facts = json.loads(seen.read_text())
    private = Path(facts["at"])
    assert set(facts["environment"]) - {"HOME", "USER", "LOGNAME", "LC_CTYPE"} == {
        "PATH",
        "TMPDIR",
        "LC_ALL",
        "ORT_DISABLE_TELEMETRY",
    }
    assert (facts["environment"]["LC_ALL"], facts["environment"]["TMPDIR"]) == ("C", facts["at"])
    assert private.parent == folder and not private.exists()
    assert facts["read"] == ""
    assert facts["words"][:-1] == ["$(touch x); `id`", "a b", "{braces}", "*", "model: probe-0.onnx!", ""]
    model_file = Path(facts["words"][-1])
    assert (model_file.name, model_file.parent.parent) == ("probe-0.onnx", folder)


def test_models_are_pushed_and_removed_once(model: AssembledModel, folder: Path, tmp_path: Path) -> None:
    """Copies share one pushed file; file names are used again; files beside the model are removed with it."""
    there = tmp_path / "phone"
    there.mkdir()
    copy = "import shutil, sys; shutil.copy(*sys.argv[1:3]); open(sys.argv[1] + '.engine', 'w').close()"
    settings = options(
        run=[word.replace("{model}", f"{there}/{{name}}") for word in WORDS],
        push=[sys.executable, "-I", "-S", "-c", copy, "{model}", f"{there}/{{name}}"],
        remove=["rm", f"{there}/{{name}}"],
    )
    backend = create("command", settings)
    other = assemble_network(load_network(str(build_network(tmp_path / "other.onnx", widths=(8, 8)))))
    backend.load(request_of(model, "p"))
    backend.load(request_of(model, "p.2"))
    backend.load(request_of(other, "q"))
    assert sorted(path.name for path in there.iterdir()) == ["probe-0.onnx", "probe-1.onnx"]
    assert backend.run("p") == backend.run("p.2") != backend.run("q")
    backend.unload("p")
    assert backend.run("p.2").wall_ns > 0
    backend.unload("p.2")
    assert [path.name for path in there.iterdir()] == ["probe-1.onnx"]
    backend.load(request_of(model, "r"))
    assert sorted(path.name for path in there.iterdir()) == ["probe-0.onnx", "probe-1.onnx"]
    for probe in ("q", "r"):
        backend.unload(probe)
    assert [*there.iterdir(), *folder.iterdir()] == []
    backend.load(request_of(model, "s"))
    (there / "probe-0.onnx").unlink()
    with pytest.raises(Refused, match="could not be removed: rm failed with exit code 1"):
        backend.unload("s")
    assert list(folder.iterdir()) == []


def test_a_push_that_fails_refuses_the_probe(model: AssembledModel, folder: Path) -> None:
    """A failed push is reported with the end of its output, and the tool is not called."""
    settings = options(push=["ls", "/nowhere/{name}"], run=["false", "{model}"])
    with pytest.raises(Refused, match=r"ls failed with exit code 2.*nowhere/probe-0"):
        loaded(settings, model)
    assert list(folder.iterdir()) == []


def test_other_options_are_another_device() -> None:
    """The fingerprint contains version, arguments and the meaning of the figure, but not the time limit."""
    facts = create("command", options()).fingerprint()
    assert (facts["runtime"], facts["runtime_version"], facts["command"]) == ("command", "1", " ".join(WORDS))
    assert "runs=4,warmup=3,unit=us,clock=wall" in facts["settings"]
    assert create("command", options(timeout_s=7, remove=["true"])).fingerprint() == facts
    changes: list[dict[str, Any]] = [
        {"unit": "ms"},
        {"clock": "device"},
        {"runs": 5},
        {"warmup": 0},
        {"push": ["true", "{model}"]},
        {"latency": AVERAGE.replace("(.+)", "(.*)")},
        {"version": "2"},
    ]
    seen = [json.dumps(create("command", options(**change)).fingerprint(), sort_keys=True) for change in changes]
    assert len({*seen, json.dumps(facts, sort_keys=True)}) == len(changes) + 1
    facts = create("command", options(version=[*WORDS[:4], "--version"])).fingerprint()
    assert facts["runtime_version"] == "stand-in 1.4.2"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"run": None}, "option run"),
        ({"run": []}, "option run"),
        ({"run": "tool --graph={model}"}, "run .* list of texts"),
        ({"run": [sys.executable, 3]}, "run .* list of texts"),
        ({"run": [sys.executable, "\0{model}"]}, "run .* list of texts"),
        ({"run": [sys.executable, "--no-model"]}, r"\{model\}"),
        ({"run": [sys.executable, "{{model}}"]}, r"\{model\}"),
        ({"run": ["no-such-tool-anywhere", "{model}"]}, "'no-such-tool-anywhere' .* nor on PATH"),
        ({"run": ["/no/such/tool", "{model}"]}, "'/no/such/tool' .* nor on PATH"),
        ({"run": ["./tool", "{model}"]}, "'./tool' .* nor on PATH"),
        ({"run": ["{model}"]}, "nor on PATH"),
        ({"run": [sys.executable, "{modle}"]}, r"no placeholder '\{modle\}'"),
        ({"run": [sys.executable, "{model}", "{}"]}, r"no placeholder '\{\}'"),
        ({"run": [sys.executable, "{model}", "{"]}, r"no placeholder '\{'"),
        ({"push": [sys.executable, "{output}"]}, r"push .* no placeholder '\{output\}'"),
        ({"push": ["no-such-tool-anywhere"]}, "push is neither"),
        ({"remove": ["no-such-tool-anywhere"]}, "remove is neither"),
        ({"version": None}, "option version"),
        ({"version": " "}, "printed no version"),
        ({"version": ["false"]}, "does not report its version: false failed with exit code 1"),
        ({"version": ["true"]}, "printed no version"),
        ({"version": 3}, "list of texts"),
        ({"latency": None}, "option latency"),
        ({"latency": "xpath://a"}, "json:PATH or pattern"),
        ({"latency": "pattern:latency ([0-9]+)"}, "must begin with"),
        ({"latency": r"pattern:^costs ([0-9]+)\$"}, "and end with"),
        ({"latency": "pattern:^latency [0-9]+$"}, "one group.*has 0"),
        ({"latency": "pattern:^([a-z]+) ([0-9]+)$"}, "one group.*has 2"),
        ({"latency": "pattern:^([0-9]+$"}, "not a valid regular expression"),
        ({"latency": "pattern:^a)|(b$"}, "not a valid regular expression"),
        ({"latency": "json:runs[0]"}, r"must begin with \$"),
        ({"latency": "json:$.runs[-1]"}, r"at '\[-1\]'"),
        ({"latency": "json:$..us"}, "at '..us'"),
        ({"latency": "json:$.a[*].b[*]"}, r"one \[\*\]"),
        ({"unit": None}, "unit .* one of s, ms, us, ns"),
        ({"unit": "min"}, "unit .* one of s, ms, us, ns"),
        ({"clock": "cpu"}, "clock .* one of wall, device"),
        ({"runs": 0}, "runs .* whole number"),
        ({"runs": 2.5}, "runs .* whole number"),
        ({"warmup": -1}, "warmup .* whole number"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": 1000}, "timeout_s"),
        ({"timeout_s": math.nan}, "timeout_s"),
        ({"colour": "red"}, "no option 'colour'"),
    ],
)
def test_wrong_options_are_refused(changes: dict[str, Any], named: str) -> None:
    """A missing, unknown or wrong option is named when the session opens, before any measurement."""
    with pytest.raises(Refused, match=named):
        create("command", options(**changes))
