"""Estimates of whole networks from a table, with intervals and coverage."""

import dataclasses
import math
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from nullbench import Bench, build_network

from harness import estimate
from harness.errors import LutMismatch, LutNotFound
from harness.estimation.network_estimate import NetworkEstimate, estimate_network
from harness.latency.overhead import COLUMNS, Coefficient, row_of
from harness.lut.table import Z_95, Lut
from harness.measure.policy import RepeatPolicy
from harness.network.model_references import load_network
from harness.probe.overhead_terms import OverheadTerms

# Estimates, and prints the kinds of processes and connections made meanwhile.
WATCHED = """
import sys
from pathlib import Path
seen = set()
watched = {"subprocess.Popen", "os.posix_spawn", "os.exec", "socket.connect", "sqlite3.connect"}
sys.addaudithook(lambda event, arguments: event in watched and seen.add(event))
from harness import estimate
from harness.workspace import Workspace
(found,) = estimate([sys.argv[1]], device="bench", workspace=Workspace(Path(sys.argv[2])))
print(found.latency_s, sorted(seen))
"""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Return a workspace with a null device and a small network, for all tests."""
    return Bench(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def table(bench: Bench) -> Lut:
    """Return a table of the small network."""
    bench.profile(policy=RepeatPolicy(runs=10))
    return bench.build()


def of(path: Path, table: Lut) -> NetworkEstimate:
    """Return the estimate of one file."""
    return estimate_network(load_network(str(path)), table)


def test_the_estimate_is_the_sum_of_its_parts(bench: Bench, table: Lut) -> None:
    """An estimate is the sum of its layers' entries and the overhead at the network's own sizes (S1.8)."""
    (found,) = estimate([str(bench.model)], device=table.device, workspace=bench.workspace)
    assert found.latency_s == pytest.approx(sum(layer.remainder_s or 0.0 for layer in found.layers) + found.overhead_s)
    terms = OverheadTerms(4 * 8 * 16 * 16, 4 * 64)
    assert found.overhead_s == pytest.approx(table.overhead.of(row_of(terms))[0])
    assert found.latency_s == found.covered_latency_s
    assert found.coverage == {"measured": 6, "interpolated": 0, "extrapolated": 0, "unknown": 0}
    assert found.interval_s is not None
    assert found.interval_s[0] < found.latency_s < found.interval_s[1]
    for layer in found.layers:
        assert layer.source == "measured"
        assert layer.latency_s in {entry.latency_s for entry in table.entries if entry.key == layer.key}


@pytest.mark.parametrize(("share", "more"), [(0.5, 0.0), (1.0, 0.0), (3.0, 2.0)])
def test_no_network_is_faster_than_the_transfers_of_its_inputs_and_outputs(
    bench: Bench, table: Lut, share: float, more: float
) -> None:
    """Loading inputs and storing outputs lengthens an estimate by what its layers do not hide."""
    plain = of(bench.model, table)
    layers_s = plain.covered_latency_s - plain.overhead_s
    input_bytes, output_bytes = 4 * 8 * 16 * 16, 4 * 64
    rates = {
        "loaded_bytes": Coefficient(0.75 * share * layers_s / input_bytes, 0.0, 0.0, 0.0),
        "stored_bytes": Coefficient(0.25 * share * layers_s / output_bytes, 0.0, 0.0, 0.0),
    }
    overhead = dataclasses.replace(table.overhead, coefficients=table.overhead.coefficients | rates)
    found = of(bench.model, dataclasses.replace(table, overhead=overhead))
    assert found.covered_latency_s == pytest.approx(plain.covered_latency_s + more * layers_s)


def test_the_estimate_is_near_the_truth(bench: Bench, table: Lut) -> None:
    """The true time is within twice the interval, whose half width is below a tenth of the estimate."""
    found = of(bench.model, table)
    assert found.latency_s is not None
    assert found.interval_s is not None
    half_s = (found.interval_s[1] - found.interval_s[0]) / 2
    assert abs(found.latency_s - bench.truth.network_s(bench.model)) < 2 * half_s
    assert half_s < 0.1 * found.latency_s


def test_a_network_that_was_never_profiled_is_estimated_from_its_layers(bench: Bench, table: Lut) -> None:
    """A network of measured layers that was never measured itself is estimated within 5 %."""
    deep = build_network(bench.root / "deep.onnx", widths=(8, 32, 32, 32, 32, 32, 32))
    found = of(deep, table)
    assert found.latency_s == pytest.approx(bench.truth.network_s(deep), rel=0.05)
    assert found.coverage["measured"] == len(found.layers) == 9


def test_errors_of_repeated_layers_add_up_straight(bench: Bench, table: Lut) -> None:
    """The error of a layer that occurs n times counts n times; errors of different layers are independent."""
    exact = tuple(dataclasses.replace(entry, remainder_stderr_s=0.0) for entry in table.entries)
    key = next(entry.key for entry in table.entries if "32,32,3,3" in entry.signature)
    one = tuple(dataclasses.replace(entry, remainder_stderr_s=1e-5 if entry.key == key else 0.0) for entry in exact)
    columns = len(COLUMNS)
    sure = dataclasses.replace(table.overhead, covariance=((0.0,) * columns,) * columns, scatter=0.0, drift=0.0)
    blank = {"overhead": sure, "sum_error": 0.0, "correlations": b""}

    def half_s(repeats: int, entries: tuple[object, ...]) -> float:
        path = build_network(bench.root / f"{repeats}.onnx", widths=(8, *[32] * (repeats + 1)))
        found = of(path, dataclasses.replace(table, entries=entries, **blank))
        assert found.interval_s is not None
        return (found.interval_s[1] - found.interval_s[0]) / 2

    for repeats in (1, 2, 5):
        assert half_s(repeats, exact) == pytest.approx(0.0, abs=1e-12)
        assert half_s(repeats, one) == pytest.approx(Z_95 * repeats * 1e-5)
    both = tuple(dataclasses.replace(entry, remainder_stderr_s=1e-5 if "Conv" in entry.op else 0.0) for entry in exact)
    assert half_s(3, both) == pytest.approx(Z_95 * 1e-5 * math.sqrt(3**2 + 1))


def test_the_error_of_sums_is_that_of_the_network_if_its_windows_showed_one(bench: Bench, table: Lut) -> None:
    """A network whose windows do not add up has a wide interval; the other networks of the table do not."""
    network = load_network(str(bench.model))

    def width_s(errors: Mapping[str, float]) -> float:
        found = estimate_network(network, dataclasses.replace(table, sum_error=0.01, network_errors=errors))
        assert found.interval_s is not None and found.latency_s is not None
        return (found.interval_s[1] - found.interval_s[0]) / found.latency_s

    of_others = width_s({"0" * 16: 0.3})
    assert width_s({}) == of_others < 0.2
    assert width_s({network.sha256[:16]: 0.3}) > 0.6


def test_a_sum_adds_what_was_measured_and_not_what_is_shown(bench: Bench, table: Lut) -> None:
    """Layers below the resolution are shown with positive latencies, but a negative difference lowers the sum."""
    shown = [dataclasses.replace(entry, latency_s=1e-7, resolved=False) for entry in table.entries]
    for remainder_s in (2e-8, -2e-8):
        entries = tuple(dataclasses.replace(entry, remainder_s=remainder_s) for entry in shown)
        found = of(bench.model, dataclasses.replace(table, entries=entries))
        assert found.latency_s == pytest.approx(max(0.0, 6 * remainder_s) + found.overhead_s)
        assert {layer.latency_s for layer in found.layers} == {1e-7}
    mixed = (
        dataclasses.replace(shown[0], remainder_s=5e-8),
        *(dataclasses.replace(one, remainder_s=-5e-9) for one in shown[1:]),
    )
    found = of(bench.model, dataclasses.replace(table, entries=mixed))
    assert found.latency_s == pytest.approx(5e-8 - (len(found.layers) - 1) * 5e-9 + found.overhead_s)


def test_unknown_layers_leave_the_total_open(bench: Bench, table: Lut) -> None:
    """A layer that the table lacks makes the total None; it is listed, and the sum of the others is given."""
    wide = build_network(bench.root / "wide.onnx", widths=(8, 32, 32, 40))
    found = of(wide, table)
    assert found.latency_s is None
    assert found.interval_s is None
    assert {layer.name for layer in found.unknown} == {"conv2", "pool", "flatten", "classifier"}
    assert found.coverage == {"measured": 2, "interpolated": 0, "extrapolated": 0, "unknown": 4}
    assert all(layer.latency_s is None and layer.stderr_s is None for layer in found.unknown)
    known_s = sum(layer.remainder_s or 0.0 for layer in found.layers)
    assert found.covered_latency_s == pytest.approx(known_s + found.overhead_s)
    empty = of(bench.model, dataclasses.replace(table, entries=()))
    assert (empty.latency_s, empty.coverage["unknown"]) == (None, 6)
    assert empty.covered_latency_s == pytest.approx(empty.overhead_s)


def test_an_estimate_needs_no_device(bench: Bench, table: Lut, tmp_path: Path) -> None:
    """An estimate starts no other program, makes no connection, opens no journal, and needs no devices.toml."""
    shutil.copytree(bench.workspace.lut, tmp_path / "lut")
    command = [sys.executable, "-c", WATCHED, str(bench.model), str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    latency, _, seen = ran.stdout.strip().partition(" ")
    assert float(latency) == of(bench.model, table).latency_s
    assert seen == "[]"


def test_several_networks_keep_their_order(bench: Bench, table: Lut) -> None:
    """Estimates are in the order of the networks, from the newest table or the given one."""
    small = build_network(bench.root / "small.onnx", widths=(8, 32))
    names = [str(bench.model), str(small), str(bench.model)]
    newest = estimate(names, device=table.device, workspace=bench.workspace)
    assert [one.name for one in newest] == ["chain", "small", "chain"]
    assert newest == estimate(names, lut=table.path)
    assert newest[0] == newest[2]


def test_a_table_of_another_device_is_refused(bench: Bench, table: Lut) -> None:
    """A table of another device is refused, and so is a device without a table."""
    with pytest.raises(LutMismatch):
        estimate([str(bench.model)], device="cpu01", lut=table.path)
    with pytest.raises(LutNotFound):
        estimate([str(bench.model)], device="null01", workspace=bench.workspace)
