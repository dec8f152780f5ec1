"""Execution providers of ONNX Runtime: how they are selected, what falls back to the CPU, and memory of their own.

The package from the index has one provider beside the CPU, Azure, which starts everywhere and executes no node of these
networks. Lists of other providers are made up.
"""

from pathlib import Path
from typing import Any

import onnxruntime
import pytest
from load_requests import request_of
from nullbench import build_network
from opened_run import open_run

from device_agents.backends import HasOracle, Refused, ReportsLoading, create
from device_agents.backends.onnxruntime import session_settings
from device_agents.backends.onnxruntime.session_settings import Provider, read_provider
from device_agents.backends.option_reader import OptionReader
from harness import ProfileRequest, RepeatPolicy, build_lut, profile, validate
from harness.device.inventory import load_inventory
from harness.errors import UnsupportedNetwork
from harness.measure.profiling import profile_networks
from harness.network.assemble import AssembledModel
from harness.workspace import Workspace

AZURE = "AzureExecutionProvider"
needs_azure = pytest.mark.skipif(
    AZURE not in onnxruntime.get_available_providers(), reason="this build has no second provider"
)


def offer(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let the runtime report these providers beside the CPU."""
    found = [f"{name}ExecutionProvider" for name in (*names, "CPU")]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: found)


def selected(**options: Any) -> Provider:
    """The provider that options select."""
    return read_provider(OptionReader("onnxruntime", options, options.keys()))


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("CUDA", "CUDAExecutionProvider"),
        ("cuda", "CUDAExecutionProvider"),
        ("TensorRT", "TensorrtExecutionProvider"),
        ("TensorrtExecutionProvider", "TensorrtExecutionProvider"),
        ("DirectML", "DmlExecutionProvider"),
        ("dml", "DmlExecutionProvider"),
        ("CoreML", "CoreMLExecutionProvider"),
        ("xnnpack", "XnnpackExecutionProvider"),
        ("CPU", "CPUExecutionProvider"),
    ],
)
def test_short_names_select_providers(asked: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider is selected by its name with or without the ending, in any case, or by the name people use."""
    offer(monkeypatch, "Tensorrt", "CUDA", "Dml", "CoreML", "Xnnpack")
    assert selected(provider=asked).name == found


@pytest.mark.parametrize("asked", ["CUDA", "NoSuchProvider", "", 7])
def test_a_provider_that_this_build_lacks_is_refused_with_the_list(asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal lists what the build has; a name that is no text is refused by the option's name."""
    offer(monkeypatch, "QNN", "OpenVINO")
    with pytest.raises(Refused, match="CPU, OpenVINO, QNN" if asked in ("CUDA", "NoSuchProvider") else "provider"):
        selected(provider=asked)


@pytest.mark.parametrize(
    "options",
    [
        {"provider": "QNN", "allow_fallback": 1},
        {"provider": "QNN", "provider_options": "device_id=0"},
        {"provider": "QNN", "provider_options": {"device_id": [0]}},
        {"provider": "CPU", "provider_options": {"device_id": 0}},
    ],
)
def test_wrong_options_of_a_provider_are_refused(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of another type are refused, and so are options of a provider where none is selected."""
    offer(monkeypatch, "QNN")
    with pytest.raises(Refused, match=r"allow_fallback|provider_options"):
        selected(**options)


def test_memory_of_the_device_is_known() -> None:
    """CUDA and TensorRT compute in memory of their own, on the device that their options name; OpenVINO does not."""
    trt = Provider("TensorrtExecutionProvider", {"device_id": "1"})
    assert (trt.memory, trt.device_id) == ("cuda", 1)
    assert (Provider("CUDAExecutionProvider").memory, Provider("CUDAExecutionProvider").device_id) == ("cuda", 0)
    assert Provider("OpenVINOExecutionProvider").memory is None


@pytest.mark.usefixtures("folder")
def test_a_provider_that_does_not_start_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime leaves out a provider whose libraries are missing; measuring the CPU in its place is refused."""
    offer(monkeypatch, "CUDA")
    with pytest.warns(UserWarning, match="CUDA"), pytest.raises(Refused, match="CUDA does not start here"):
        create("onnxruntime", {"provider": "CUDA"})


@needs_azure
def test_nodes_that_fall_back_are_refused_by_name(model: AssembledModel, folder: Path) -> None:
    """A provider that executes none of the network's nodes is refused, with their names, and leaves no file."""
    backend = create("onnxruntime", {"provider": "azure"})
    with pytest.raises(Refused, match=r"Azure does not execute .*: n0.*allow_fallback") as refused:
        backend.load(request_of(model))
    named = set(str(refused.value).partition(": ")[2].partition(";")[0].replace(",", " ").split())
    assert len(named & set(model.names.nodes)) >= 5  # convolutions, pooling, classifier
    assert list(folder.iterdir()) == []
    with pytest.raises(KeyError):
        backend.run("p")


@needs_azure
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("memory", [None, "cpu"])
def test_allowed_fallback_is_measured_on_the_wall_clock(
    memory: str | None, model: AssembledModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With allow_fallback the network runs, from arrays of the host or bound to memory of the device."""
    if memory:
        monkeypatch.setitem(session_settings._MEMORY, AZURE, memory)
    runs: list[str] = []
    for name in ("run", "run_with_iobinding"):
        real = getattr(onnxruntime.InferenceSession, name)

        def counted(self: Any, *given: Any, _name: str = name, _real: Any = real, **named: Any) -> Any:
            runs.append(_name)
            return _real(self, *given, **named)

        monkeypatch.setattr(onnxruntime.InferenceSession, name, counted)
    backend = create("onnxruntime", {"provider": "Azure", "allow_fallback": True})
    backend.load(request_of(model))
    sample = backend.run("p")
    assert (backend.clock, backend.reveals, isinstance(backend, HasOracle)) == ("wall", ("placement",), False)
    assert sample.wall_ns > 0 and sample.cpu_ns is None and sample.device_ns is None
    assert set(runs) == {"run_with_iobinding" if memory else "run"}
    assert isinstance(backend, ReportsLoading)
    report = backend.load_report("p")
    assert (report.compile_s or 0) > 0 and {"n1"} < set(report.on_cpu) <= set(model.names.nodes)
    assert len(runs) == 3  # once to see what falls back, once to warm up, once timed


_LONG = {"a": "x" * 500}
_MORE: tuple[dict[str, Any], ...] = (
    {},
    {"provider_options": {"a": 1}},
    {"provider_options": _LONG},
    {"allow_fallback": True},
)


@needs_azure
@pytest.mark.usefixtures("folder")
def test_the_fingerprint_names_provider_options_and_build() -> None:
    """Another option, another permission to fall back or another provider is another device."""
    facts = [create("onnxruntime", {"provider": "Azure", **more}).fingerprint() for more in _MORE]
    facts.append(create("onnxruntime", {}).fingerprint())
    assert len({str(sorted(one.items())) for one in facts}) == len(facts)
    assert "provider=Azure" in facts[0]["settings"] and facts[1]["provider_options"] == "a=1"
    assert facts[0]["runtime_version"] == onnxruntime.__version__ and facts[0]["build"].startswith("onnxruntime")
    assert len(facts[2]["provider_options"]) < 600  # what a host keeps of a fact


@needs_azure
def test_profile_names_fallen_nodes_as_the_network_does(tmp_path: Path) -> None:
    """Over the wire, the error lists the file's own nodes and the option that permits the fallback."""
    path = build_network(tmp_path / "chain.onnx")
    (tmp_path / "devices.toml").write_text(
        '[devices.azure.options]\nprovider = "Azure"\nprovider_options = {anything = "1", other = true}\n'
    )
    with pytest.raises(UnsupportedNetwork, match=r"chain\.onnx: The device cannot run it") as refused:
        profile([str(path)], device="azure", workspace=Workspace(tmp_path))
    assert all(name in refused.value.why for name in ("conv0", "conv2", "pool", "classifier", "allow_fallback = true"))


@needs_azure
def test_validate_lists_what_runs_on_the_cpu(tmp_path: Path) -> None:
    """With fallback, the main job runs on the wall clock, and compile time and fallen nodes are reported apart."""
    path = str(build_network(tmp_path / "chain.onnx", widths=(8, 32, 32), edge=14))
    text = (
        '[devices.azure]\ngolden_ms = [1e-3, 1e3]\n[devices.azure.options]\nprovider = "Azure"\nallow_fallback = true\n'
    )
    (tmp_path / "devices.toml").write_text(text)
    place, policy = Workspace(tmp_path), RepeatPolicy(runs=15)
    request = ProfileRequest("azure", (path,), policy=policy)
    with open_run(load_inventory(place.devices)["azure"], place) as run:  # on the wall clock its speed is not steady
        profile_networks(run, request.networks(), request)
    build_lut("azure", workspace=place)
    result = validate([path], device="azure", workspace=place, policy=policy, processes=1)
    (network,) = result.networks
    assert result.clock == "wall" and network.compile_s is not None and network.compile_s > 0
    assert {"pool", "classifier"} < set(network.on_cpu)
