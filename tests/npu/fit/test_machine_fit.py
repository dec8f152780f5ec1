"""The fit of a machine to layers whose latencies come from known numbers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from known_machine import KnownMachine, samples, varied_layers

from device_agents.emulated_npu.machine import load_preset, parse_machine, preset_names, read_machine
from harness import open_lut
from harness.errors import MeasurementError
from harness.npu.fit import array_search
from harness.npu.fit.fitted_machine import FittedMachine, machine_of, machine_text
from harness.npu.fit.layer_samples import PRODUCTS, samples_of
from harness.npu.fit.machine_fit import MachineFit, Parameter, fit_machine
from harness.npu.fit.multiplier_array import MultiplierArray, candidates

LAYERS = list(varied_layers(140, seed=3))
MACHINES = (
    KnownMachine(rows=16, columns=64, clock_hz=4e8, lanes=32, bytes_per_s=3e9, start_s=1e-5),
    KnownMachine(rows=8, columns=8, clock_hz=2e9, lanes=16, bytes_per_s=4e10, start_s=5e-7, overlap=0.0),
)


def _try_few_arrays(patch: pytest.MonkeyPatch) -> None:
    """Let fits try 61 arrays in place of 1,326: those of the machines, and all neighbours of the first one's."""
    near_sides = (28, 32, 40), (14, 16, 20)
    few = tuple(
        one
        for one in candidates()
        if {one.rows, one.columns} <= {1, 8, 16, 32, 64} or (one.rows in near_sides[0] and one.columns in near_sides[1])
    )
    assert len(few) == 61
    patch.setattr(array_search, "candidates", lambda: few)


@pytest.fixture
def few_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the fits of a test try few arrays."""
    _try_few_arrays(monkeypatch)


@pytest.fixture(scope="module", params=MACHINES, ids=lambda one: f"{one.rows}x{one.columns}")
def fitted(request: pytest.FixtureRequest) -> tuple[KnownMachine, MachineFit]:
    """A machine and its fit, that of the first machine to all arrays."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param is not MACHINES[0]:
            _try_few_arrays(patch)
        return request.param, fit_machine(samples(LAYERS, request.param))


def near(parameter: Parameter | None, truth: float) -> bool:
    """Whether a parameter is identified, within 5 % of the truth, and between the ends of its interval."""
    assert parameter is not None and parameter.value is not None, parameter
    assert parameter.low is not None and parameter.high is not None
    assert parameter.low <= parameter.value <= parameter.high
    return abs(parameter.value / truth - 1) < 0.05


def named(fit: MachineFit, name: str) -> Parameter:
    """Return a parameter by its name."""
    return next(one for one in fit.parameters if one.name == name)


def test_known_numbers_are_found(fitted: tuple[KnownMachine, MachineFit]) -> None:
    """Rates, bandwidth and start-up come out within 5 % of the truth, the overlap within a tenth."""
    known, fit = fitted
    peak = known.clock_hz * known.rows * known.columns
    assert near(named(fit, PRODUCTS), peak)
    assert near(named(fit, "move/map/simple"), known.clock_hz * known.lanes)
    assert near(fit.weights, known.bytes_per_s)
    assert near(fit.start, known.start_s)
    assert fit.overlap.value == pytest.approx(known.overlap, abs=0.1)


def test_the_array_shows_in_the_steps(fitted: tuple[KnownMachine, MachineFit]) -> None:
    """Channels of all sizes show rows, columns and what fills the rows."""
    known, fit = fitted
    assert fit.array_identified
    assert fit.array == MultiplierArray(known.rows, known.columns, "none")


def test_channels_that_fill_every_array_show_none() -> None:
    """Where all channels are multiples of 64, smaller arrays explain as much, and none is named."""
    fit = fit_machine(samples(list(varied_layers(120, seed=5, multiple=64)), KnownMachine()))
    assert not fit.array_identified
    assert len(fit.arrays) > 1


@pytest.mark.usefixtures("few_arrays")
def test_what_no_layer_shows_is_not_a_number() -> None:
    """Without layers that wait for memory the bandwidth is unknown, with the reason; features on chip are unknown."""
    layers = [layer for layer in LAYERS if layer.rows > 100]
    fit = fit_machine(samples(layers, KnownMachine(bytes_per_s=1e13)))
    for parameter in (fit.weights, fit.features, fit.access):
        assert parameter.value is None and parameter.why, parameter
    assert fit.peak(PRODUCTS) is not None


@pytest.mark.usefixtures("few_arrays")
def test_disturbed_layers_are_residuals() -> None:
    """Layers that take three times as long change no rate by more than 5 %, and are listed as the worst."""
    clean = samples(LAYERS, KnownMachine())
    slow = np.argsort(-clean.layers.latency_s)[:6]
    latency_s = clean.layers.latency_s.copy()
    latency_s[slow] *= 3
    fit = fit_machine(replace(clean, layers=replace(clean.layers, latency_s=latency_s)))
    assert near(named(fit, PRODUCTS), 512e9) and near(fit.weights, 1e10)
    assert {one.label for one in fit.worst} >= {clean.layers.labels[at] for at in slow}


@pytest.mark.usefixtures("few_arrays")
def test_too_few_layers_of_a_class_are_named() -> None:
    """A class of few layers has no rate and stands among the residuals as not fitted."""
    kept = [layer for layer in LAYERS if layer.operator.startswith("mac/conv")]
    few = [layer for layer in LAYERS if layer.operator.startswith("move")][:2]
    fit = fit_machine(samples([*kept, *few], KnownMachine()))
    (row,) = [one for one in fit.classes if one.name == "move/map/simple"]
    assert (row.layers, row.fitted) == (2, False)
    assert all(one.name != "move/map/simple" for one in fit.peaks)


def test_layers_that_take_no_time_show_no_rate(tmp_path: Path) -> None:
    """Views on a device take 0 s without any error, which no other layer's error can be compared with."""
    table = open_lut("npu01", workspace=tmp_path)  # the published one
    assert any(entry.remainder_stderr_s == 0 for entry in table.entries)
    assert min(samples_of(table).stderr_s) > 0


def test_samples_without_classes_are_refused() -> None:
    """Samples that identify nothing end in an error with the exit code of measurements without a result."""
    with pytest.raises(MeasurementError, match="identify no rate"):
        fit_machine(samples(LAYERS[:5], KnownMachine()))


@pytest.mark.parametrize("name", preset_names())
def test_the_file_is_a_machine(name: str, fitted: tuple[KnownMachine, MachineFit], tmp_path: Path) -> None:
    """The file of a fit reads as the machine that was fitted, with the fitted clock, array, memory and host.

    The array is the fitted one alone, whatever pixels and steps the preset's has.
    """
    known, fit = fitted
    found = machine_of(fit, load_preset(name), "known")
    path = tmp_path / "known.toml"
    path.write_text(machine_text(found, "A fit."), encoding="utf-8")
    machine = read_machine(path)
    assert machine == found.machine
    assert (machine.mfu.rows, machine.mfu.columns, machine.vfu.lanes) == (known.rows, known.columns, known.lanes)
    assert (machine.mfu.multipliers, machine.mfu.step_cycles) == (known.rows * known.columns, 1)
    assert machine.clock_hz == pytest.approx(known.clock_hz, rel=0.05)
    assert machine.ddr.bytes_per_s == pytest.approx(known.bytes_per_s, rel=0.05)
    assert machine.ddr.latency_ns == load_preset(name).ddr.latency_ns
    assert machine.host.driver_s + 2 * machine.host.dma_setup_s == pytest.approx(7e-5)
    for key in ("clock_hz", "mfu.rows", "ddr.bytes_per_s", "host.driver_s"):
        assert key in found.fitted
    assert "ddr.latency_ns" not in found.fitted


@pytest.mark.parametrize("name", preset_names())
def test_every_machine_survives_its_file(name: str) -> None:
    """The text of a machine's file describes the same machine, for every preset."""
    preset = load_preset(name)
    assert parse_machine(machine_text(FittedMachine(preset, name, {}), "A preset."), name) == preset
