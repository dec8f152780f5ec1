"""The runtimes behind the agent: real ONNX Runtime and OpenVINO on a small network."""

import gc
import os
import subprocess
import sys
import time
import tracemalloc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import onnxruntime
import pytest
from load_requests import request_of

from device_agents import arrays
from device_agents.backends import HasOracle, Refused, create
from device_agents.backends.openvino.openvino_backend import openvino
from harness.network.assemble import AssembledModel, ModelBuilder
from harness.network.network import TensorType

REPOSITORY = Path(__file__).resolve().parents[2]
RUNTIMES = ("onnxruntime", "openvino")


@pytest.mark.parametrize("name", RUNTIMES)
def test_one_thread_is_timed_by_its_own_clock(
    name: str, model: AssembledModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread has CPU time, a pool has none that could be trusted; both have wall time."""
    monkeypatch.delattr(onnxruntime, "set_global_thread_pool_sizes")  # all sessions of this process would share it
    for threads, clock in ((1, "cpu"), (2, "wall")):
        backend = create(name, {"threads": threads})
        backend.load(request_of(model))
        sample = backend.run("p")
        assert (backend.clock, sample.cpu_ns is None) == (clock, clock == "wall")
        assert sample.wall_ns > 0 and sample.device_ns is None
        backend.unload("p")
        with pytest.raises(KeyError):
            backend.run("p")


def test_a_run_whose_clock_stood_still_is_no_sample(model: AssembledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a run is repeated; a clock that never advances is an error, not an endless loop."""
    backend = create("onnxruntime", {})
    backend.load(request_of(model))
    readings = iter([5, 5, 7, 7, 10, 30])
    with monkeypatch.context() as patched:
        patched.setattr(time, "thread_time_ns", lambda: next(readings))
        assert backend.run("p").cpu_ns == 20
        patched.setattr(time, "thread_time_ns", lambda: 5)
        with pytest.raises(Refused, match="stood still"):
            backend.run("p")


@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize("options", [{"threads": 0}, {"threads": "many"}, {"threads": True}])
def test_wrong_options_are_refused(name: str, options: dict[str, Any]) -> None:
    """A thread count that is out of range or not a number is refused with its name."""
    with pytest.raises(Refused, match=f"{name}|threads"):
        create(name, options)


def test_fingerprint_of_openvino_has_its_settings() -> None:
    """Version, threads and 32-bit floats are part of the fingerprint."""
    facts = create("openvino", {"threads": 2}).fingerprint()
    assert facts["runtime"] == "openvino" and facts["runtime_version"][:2] == "20"
    assert "threads=2" in facts["settings"] and "precision=f32" in facts["settings"]


def relu_of(size: int) -> AssembledModel:
    """Return a network of one operator with an input and an output of so many bytes."""
    builder = ModelBuilder(13)
    kind = TensorType("float32", (1, size // 4))
    return builder.build([builder.operator("Relu", [builder.input(kind)], kind)])


def test_openvino_reads_the_inputs_of_each_loaded_probe_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe with a larger input has another array; that of the first probe lives as long as this one is loaded."""
    made: list[weakref.ref[Any]] = []
    real = arrays.make

    def make(spec: dict[str, Any]) -> Any:
        value = real(spec)
        made.append(weakref.ref(value if value.base is None else value.base))  # what holds the memory
        return value

    monkeypatch.setattr(arrays, "make", make)
    backend = create("openvino", {})
    for name, size in (("small", 1 << 12), ("large", 1 << 22)):
        backend.load(replace(request_of(relu_of(size)), probe=name))
    gc.collect()
    assert [one() is not None for one in made] == [True, True]
    backend.unload("small")
    gc.collect()
    assert [one() is not None for one in made] == [False, True]


def test_openvino_copies_no_results() -> None:
    """A run allocates no memory of the size of its output: what that takes depends on other probes of the process."""
    backend = create("openvino", {})
    backend.load(request_of(relu_of(1 << 22)))
    tracemalloc.start()
    backend.run("p")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_an_openvino_device_that_is_not_here_is_refused_with_the_list() -> None:
    """The refusal lists what OpenVINO finds; a device that spreads networks over others is not one device."""
    for device in ("NPU", "AUTO", "HETERO:NPU,CPU", "cpu", ""):
        with pytest.raises(Refused, match="device"):
            create("openvino", {"device": device})
    with pytest.raises(Refused, match=r"finds here: .*CPU.*it is 'NPU'"):
        create("openvino", {"device": "NPU"})


class _CoreWithGpu:
    """OpenVINO's core with a stand-in for a graphics processor that has 16-bit floats only; the CPU executes for it."""

    compiled: ClassVar[list[tuple[str, dict[str, Any]]]] = []

    def __init__(self) -> None:
        self._real = openvino.Core()
        self.available_devices = ["CPU", "GPU.0"]

    def get_property(self, device: str, name: str) -> Any:
        """The properties that the backend reads."""
        assert device == "GPU"
        return {"OPTIMIZATION_CAPABILITIES": ["FP16", "INT8"], "FULL_DEVICE_NAME": "Stand-in (iGPU)"}[name]

    def read_model(self, model: bytes) -> Any:
        """Read a model."""
        return self._real.read_model(model)

    def compile_model(self, model: Any, device: str, settings: dict[str, Any]) -> Any:
        """Compile for the CPU."""
        self.compiled.append((device, settings))
        return self._real.compile_model(model, "CPU", {})


def test_an_openvino_device_beside_the_cpu(model: AssembledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets no settings of the CPU, the floats that it has, wall time, and its full name in the fingerprint."""
    real = openvino.Core
    with monkeypatch.context() as patch:
        core = _CoreWithGpu()
        patch.setattr(openvino, "Core", lambda: core)
        backend = create("openvino", {"device": "GPU"})
    assert openvino.Core is real
    backend.load(request_of(model, reveal=True))
    assert core.compiled == [("GPU", {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f16"})]
    sample, facts = backend.run("p"), backend.fingerprint()
    assert (backend.clock, backend.reveals, sample.cpu_ns) == ("wall", ("placement",), None)
    assert not isinstance(backend, HasOracle) and sample.wall_ns > 0
    assert "device=GPU" in facts["settings"] and "precision=f16" in facts["settings"]
    assert facts["device"] == "Stand-in (iGPU)"


@pytest.mark.parametrize("name", RUNTIMES)
def test_an_input_that_nothing_reads_is_no_obstacle(name: str) -> None:
    """A model runs with an input that no operator reads, as that of a Shape whose result is known."""
    builder, kind = ModelBuilder(13), TensorType("float32", (2, 3))
    builder.input(kind)
    model = builder.build([builder.operator("Relu", [builder.input(kind)], kind)])
    backend = create(name, {})
    backend.load(request_of(model))
    assert backend.run("p").wall_ns > 0


@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize("content", [b"", b"no model", b"\x3a\x02\x0a"])
def test_broken_models_are_refused(name: str, content: bytes, model: AssembledModel, folder: Path) -> None:
    """Bytes that are not a model are refused by the runtime, and no file remains."""
    with pytest.raises(Refused):
        create(name, {}).load(replace(request_of(model), model=content))
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", RUNTIMES)
def test_oracle_reports_the_runtime_s_own_profile(name: str, model: AssembledModel, folder: Path) -> None:
    """Layers add up, most of the time is in convolutions, nodes are those that were sent, no file is left."""
    backend = create(name, {})
    assert isinstance(backend, HasOracle)
    backend.load(request_of(model))
    truth = backend.oracle("p")
    assert truth.overhead is None
    assert sum(layer.latency_s for layer in truth.layers) == pytest.approx(truth.makespan_s)
    touched = {node for layer in truth.layers for node in layer.nodes}
    assert touched <= set(model.names.nodes)
    assert len(touched) >= 5  # three convolutions, the pooling layer, the classifier
    assert list(folder.iterdir()) == []
    assert backend.run("p").wall_ns > 0


def test_openvino_sends_no_telemetry(tmp_path: Path) -> None:
    """The backend leaves no file in the home folder, and nothing that could report is loaded."""
    program = (
        "import sys; from device_agents.backends import create; create('openvino', {});"
        "print([name for name in sys.modules if name.startswith('openvino_telemetry') and sys.modules[name]])"
    )
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert list(tmp_path.iterdir()) == []
