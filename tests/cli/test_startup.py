"""The command line before any command runs: light imports, choices and completion."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli import arguments

HEAVY = ("numpy", "onnx", "onnxruntime", "pandas", "sklearn", "scipy", "bokeh", "rich", "pydantic", "paramiko")


def test_heavy_packages_are_imported_by_the_commands_that_need_them() -> None:
    """Building the command line, as `harness --help` does, imports none of the slow packages."""
    code = "import sys, harness.cli.app; harness.cli.app.program(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not set(HEAVY) & set(loaded)


def test_an_estimate_of_a_network_that_was_read_before_loads_no_runtime(tmp_path: Path) -> None:
    """A network in the cache whose layers were measured needs neither onnx nor what predictors are learnt with."""
    words = ["harness", "estimate", "builtin:dscnn", "--device", "npu01", "--workspace", str(tmp_path)]
    run = f"import atexit, sys; sys.argv = {words}; atexit.register(lambda: print(*sys.modules))"
    for _ in range(2):
        code = f"{run}; from harness.__main__ import main; main()"
        loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "harness.estimation.network_estimate" in loaded
    assert not {"onnx", "onnxruntime", "pandas", "sklearn", "scipy", "bokeh", "paramiko"} & set(loaded)


@pytest.mark.parametrize(
    ("incomplete", "completed"),
    [("npu", ["npu01", "npu01-blind"]), ("npu01,cpu-", ["npu01,cpu-openvino"]), ("x", [])],
)
def test_devices_complete(
    incomplete: str, completed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shell completes names of devices, also after a comma."""
    monkeypatch.chdir(tmp_path)
    assert arguments.complete_device(incomplete) == completed


def test_presets_complete() -> None:
    """The shell completes names of built-in machines."""
    assert arguments.complete_preset("systolic-3") == ["systolic-32"] and "edge" in arguments.complete_preset("")
