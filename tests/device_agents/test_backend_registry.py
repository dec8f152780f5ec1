"""Backends are registered in one line; agent and host learn the rest from the backend itself, and check its options."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
from in_process import InProcessSession

from device_agents.backends import BACKENDS, Refused, Registration, create, option_reader
from device_agents.backends.null import NullBackend
from device_agents.backends.option_reader import MOST_THREADS, MOST_THREADS_PER_CORE, OptionReader
from device_agents.emulated_npu.machine import preset_text
from device_agents.fingerprint import available_cores
from harness.device.inventory import load_inventory
from harness.device.session import LoadRequest, Visit

INPUT = {"name": "x", "shape": [1000], "dtype": "float32", "distribution": "normal", "seed": 1}


class StubBackend(NullBackend):
    """A backend that reveals nothing."""

    name = "stub"
    reveals = ()


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """One module `stub` and one line of BACKENDS."""
    module = ModuleType("device_agents.backends.stub")
    module.StubBackend = StubBackend  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(BACKENDS, "stub", Registration("stub.StubBackend", virtual=True))  # type: ignore[arg-type]


@pytest.mark.usefixtures("registered")
def test_one_line_registers_a_backend(tmp_path: Path) -> None:
    """A registered backend can be named in devices.toml, and a session reports its clock, reveals and samples."""
    devices = tmp_path / "devices.toml"
    devices.write_text('[devices.board]\nbackend = "stub"\n')
    device = load_inventory(devices)["board"]
    assert (device.backend, device.resource) == ("stub", "board")
    session = InProcessSession(create(device.backend, {"c_s": 1e-3, "a_s_per_byte": 0, "b_s_per_byte": 0}))
    assert (session.hello.backend, session.hello.clock, session.hello.reveals) == ("stub", "device", ())
    assert session.put(LoadRequest("p", b"", (), (INPUT,), 4)) is None
    (((series,), _),) = session.run([Visit("p", 0, 1)])
    assert series.samples[0].device_ns == 1_000_000


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "emulated-npu", "null"])
def test_registered_backends_report_clock_and_reveals(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each backend is created by its registered name and reports a clock and reveals that the protocol knows."""
    monkeypatch.chdir(tmp_path)
    backend = create(name, {})
    assert backend.name == name
    assert backend.clock in ("cpu", "wall", "device")
    assert set(backend.reveals) <= {"fusion", "chains", "unfused", "kept", "placement"}


@pytest.mark.parametrize("name", list(BACKENDS))
def test_unknown_option_is_refused_with_the_known_ones(name: str) -> None:
    """Each backend refuses an option that it does not know, and lists those that it knows."""
    with pytest.raises(Refused, match=rf"the {name} backend has no option 'colour'; it has \w+"):
        create(name, {"colour": "red"})


def test_an_emulated_device_may_have_a_machine_of_its_own() -> None:
    """The option `machine` holds the text of a machine file; a wrong one is refused with the key."""
    own = create("emulated-npu", {"machine": preset_text("nvdla-64")})
    assert own.fingerprint() != create("emulated-npu", {}).fingerprint()
    for options, reason in (
        ({"machine": preset_text("edge").replace("clock_hz", "clock")}, "clock is not a key"),
        ({"machine": preset_text("edge"), "preset": "edge"}, "without the option preset"),
        ({"machine": 3}, "text of a machine file"),
    ):
        with pytest.raises(Refused, match=reason):
            create("emulated-npu", options)


def test_unknown_backend_is_refused_with_the_known_ones() -> None:
    """An unknown backend is refused with the names of all backends."""
    with pytest.raises(Refused, match="no backend 'abacus'; it has onnxruntime, openvino, emulated-npu, null, command"):
        create("abacus", {})


CORES = available_cores()


@pytest.mark.parametrize("threads", [0, -1, MOST_THREADS + 1, 1_000_000, 2**63, True, 2.0, "2"])
def test_numbers_that_no_device_takes_are_refused(threads: object) -> None:
    """A number of threads outside 1 to 1,024, or of another type, is refused with these bounds."""
    with pytest.raises(Refused, match="threads of the onnxruntime backend must be a whole number from 1 to 1024"):
        OptionReader("onnxruntime", {"threads": threads}, {"threads"}).threads()


def test_threads_are_limited_by_the_cores_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device takes four threads for each core that it may use, and refuses more with the greatest number."""
    most = MOST_THREADS_PER_CORE * CORES
    assert OptionReader("openvino", {"threads": most}, {"threads"}).threads() == most
    monkeypatch.setattr(option_reader, "available_cores", lambda: 6)
    assert OptionReader("openvino", {"threads": 24}, {"threads"}).threads() == 24
    with pytest.raises(Refused, match="must be at most 24, 4 for each core of this device"):
        OptionReader("openvino", {"threads": 25}, {"threads"}).threads()
