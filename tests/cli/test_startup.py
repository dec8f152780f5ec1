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
