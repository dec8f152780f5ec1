"""`harness npu fit` on emulated devices whose machine is known: the fit, its file, and the errors without samples."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from npu_command import Npu

from device_agents.emulated_npu.machine import Machine, load_preset, read_machine
from harness import ProfileRequest, SpaceRequest, Workspace, build_lut, profile_request
from harness.measure.progress import Observer
from harness.npu.fit.fitted_machine import FittedMachine, machine_of, machine_text
from harness.npu.fit.layer_samples import PRODUCTS
from harness.npu.fit.machine_fit import DeviceSamples, MachineFit, Parameter, fit_machine
from harness.npu.sweep.machine_parameters import ParameterValue, changed
from harness.predictor.roofline.device_tiling import DeviceTiling

OTHERS: tuple[Mapping[str, ParameterValue], ...] = (
    {"clock_hz": 400_000_000, "mfu.rows": 16, "mfu.columns": 64, "ddr.bytes_per_s": 4e9, "vfu.lanes": 128},
    {"clock_hz": 1_500_000_000, "mfu.rows": 8, "mfu.columns": 16, "ddr.bytes_per_s": 3e10, "ddr.latency_ns": 250},
    {"clock_hz": 700_000_000, "mfu.rows": 48, "mfu.columns": 24, "mfu.packing": "none", "host.driver_s": 2e-4},
)
SMALL = """
[[layers]]
op = "Conv"
share = 4.0
channels_in = {low = 24, high = 160, multiple_of = 4}
channels_out = {low = 24, high = 160, multiple_of = 4}
size = [20, 28]
kernel = [1, 3]

[[layers]]
op = "Gemm"
rows = 1
depth = {low = 256, high = 2048, multiple_of = 4}
columns = {low = 128, high = 1024}
"""


def measured(machine: Machine, folder: Path, space: str, layers: int) -> Workspace:
    """Return a workspace with a table of an emulated device, called `own`, with this machine."""
    workspace = Workspace(folder)
    text = machine_text(FittedMachine(machine, machine.name, {}), "A machine of a test.")
    device = f"[devices.own]\nbackend = 'emulated-npu'\n[devices.own.options]\nmachine = '''{text}'''\n"
    workspace.devices.write_text(device, encoding="utf-8")
    profile_request(ProfileRequest(device="own", space=SpaceRequest(space, count=layers)), workspace=workspace)
    with pytest.MonkeyPatch.context() as patch:  # a fit reads samples; the search for the predictor's tiling takes long
        patch.setattr("harness.predictor.fit.find_tiling", lambda *_: DeviceTiling(1, 1, 1))
        build_lut("own", workspace=workspace)
    return workspace


def near(parameter: Parameter | None, truth: float) -> bool:
    """Whether a parameter is identified and within 5 % of the truth."""
    assert parameter is not None and parameter.value is not None, parameter
    return math.isclose(parameter.value, truth, rel_tol=0.05)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> tuple[Machine, Workspace]:
    """A machine that is no preset, and the workspace in which a device with it was measured."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "small.toml").write_text(SMALL, encoding="utf-8")
    machine = changed(load_preset("edge"), {**OTHERS[0], "host.driver_s": 9e-5})
    return machine, measured(machine, folder, str(folder / "small.toml"), 24)


def test_the_file_of_a_fit_is_a_machine_like_the_device(
    npu: Npu, own: tuple[Machine, Workspace], network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bandwidth and host are within 5 % of the device's, clock times multipliers within 10 %; `npu run` takes the file.

    The preset changes nothing of what is fitted: a fit is not given it, and one fit serves both commands. The
    compiler overlaps some loads of weights with computation, which the model of the fit does not know.
    """
    truth, workspace = own
    file, other = tmp_path / "own.toml", tmp_path / "other.toml"
    words = ("fit", "--device", "own", "--workspace", workspace.root)
    fits: list[MachineFit] = []
    given: list[DeviceSamples] = []

    def fit_once(samples: DeviceSamples, _observe: Observer) -> MachineFit:
        given.append(samples)
        fits.extend([] if fits else [fit_machine(samples)])
        return fits[0]

    monkeypatch.setattr("harness.npu.fit.machine_fit.fit_machine", fit_once)
    found = npu(*words, "--output", file, "--json").data
    text = npu(*words, "--output", other, "--preset", "nvdla-256").assert_ok().stdout
    first, second = map(asdict, given)
    np.testing.assert_equal(second, first)
    machine = read_machine(file)
    assert _peak(machine) == pytest.approx(_peak(truth), rel=0.1)
    assert machine.ddr.bytes_per_s == pytest.approx(truth.ddr.bytes_per_s, rel=0.05)
    assert machine.host.driver_s == pytest.approx(truth.host.driver_s, rel=0.05)
    assert machine.nb_bytes == load_preset("edge").nb_bytes
    assert npu("run", network, "--machine", file, "--no-values", "--json").data["machine"] == "own"
    assert found["machine"] == str(file) and found["device"] == "own" and found["preset"] == "edge"
    assert "clock_hz" in found["fitted_keys"] and "nb_bytes" not in found["fitted_keys"]
    for parameter in found["parameters"]:
        assert parameter["name"] in text
        assert parameter["identified"] == (parameter["value"] is not None) == (parameter["why"] is None)
    for one in found["classes"]:
        assert one["name"] in text and one["layers"] > 0
    assert "not identified" in text, "features that stay on chip show no bandwidth"
    elsewhere = read_machine(other)
    assert elsewhere.nb_bytes == load_preset("nvdla-256").nb_bytes != machine.nb_bytes
    assert _peak(elsewhere) == pytest.approx(_peak(machine), rel=1e-5)
    assert elsewhere.ddr.bytes_per_s == machine.ddr.bytes_per_s
    assert _host(elsewhere) == pytest.approx(_host(machine), rel=1e-9)


def _peak(machine: Machine) -> int:
    return machine.clock_hz * machine.mfu.rows * machine.mfu.columns


def _host(machine: Machine) -> tuple[float, float, float]:
    """What latencies show of a host: seconds of a call, and of a byte of an input and of an output."""
    host = machine.host
    byte_s = 1 / host.dma_bytes_per_s
    call_s = host.driver_s + 2 * host.dma_setup_s
    return call_s, host.preprocess_s_per_byte + byte_s, host.postprocess_s_per_byte + byte_s


def test_wrong_inputs(npu: Npu, own: tuple[Machine, Workspace], tmp_path: Path) -> None:
    """A device without a table, unknown names, and a folder that does not exist are errors with a next step."""
    own_folder = ("--workspace", own[1].root)
    npu.refuses(
        3, "fit", "--device", "npu01-blind", "--workspace", tmp_path, mentions=("There is no table for", "profile")
    )
    npu.refuses(3, "fit", "--device", "npu02", *own_folder, mentions=("no device 'npu02'",))
    npu.refuses(3, "fit", "--device", "own", "--workspace", tmp_path / "absent", mentions=("not a folder",))
    npu.refuses(3, "fit", "--device", "own", *own_folder, "--preset", "egde", mentions=("Did you mean edge",))
    absent = tmp_path / "absent" / "m.toml"
    npu.refuses(3, "fit", "--device", "own", *own_folder, "--output", absent, mentions=("no such folder",))
    npu.misuses("fit", "--machine", "m.toml", mentions=("--machine",))


def test_too_few_layers(npu: Npu, network: Path, tmp_path: Path) -> None:
    """A table of few layers does not cover a machine: exit code 6, with the number and the next step."""
    workspace = Workspace(tmp_path)
    profile_request(ProfileRequest(device="npu01", models=(str(network),)), workspace=workspace)
    build_lut("npu01", workspace=workspace)
    words = ("fit", "--device", "npu01", "--workspace", tmp_path)
    npu.refuses(6, *words, mentions=("too few layers", "at least 12 are required", "builtin:machine"))


@pytest.mark.long
@pytest.mark.parametrize("settings", OTHERS, ids=lambda one: f"{one['mfu.rows']}x{one['mfu.columns']}")
def test_machines_are_found_blind(settings: Mapping[str, ParameterValue], tmp_path: Path) -> None:
    """Of a machine that is no preset, all that layers of `builtin:machine` identify is within 5 % of the truth."""
    truth = changed(load_preset("edge"), settings)
    workspace = measured(truth, tmp_path, "builtin:machine", 40)
    fit = fit_machine(DeviceSamples.of(build_lut("own", workspace=workspace)))
    by_name = {one.name: one for one in fit.parameters}
    assert near(by_name[PRODUCTS], truth.clock_hz * truth.mfu.rows * truth.mfu.columns)
    assert near(by_name["mac/conv/depthwise"], truth.clock_hz * truth.vfu.lanes)
    assert near(fit.weights, truth.ddr.bytes_per_s)
    assert near(fit.call, truth.host.driver_s + 2 * truth.host.dma_setup_s)
    assert near(fit.input_byte, truth.host.preprocess_s_per_byte + 1 / truth.host.dma_bytes_per_s)
    assert near(fit.output_byte, truth.host.postprocess_s_per_byte + 1 / truth.host.dma_bytes_per_s)
    arrays = {(one.rows, one.columns) for one in fit.arrays}
    assert (truth.mfu.rows, truth.mfu.columns) in arrays and fit.array_identified == (len(arrays) == 1)
    found = machine_of(fit, load_preset("edge"), "own").machine
    multipliers = truth.mfu.rows * truth.mfu.columns
    assert found.clock_hz * found.mfu.rows * found.mfu.columns == pytest.approx(truth.clock_hz * multipliers, rel=0.05)
