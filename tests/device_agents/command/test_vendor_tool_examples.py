"""The devices that docs/vendor_tools.md shows find the latencies of its samples of output."""

import os
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
from load_requests import request_of
from nullbench import build_network

from device_agents.backends import create
from harness.network.assemble import AssembledModel, assemble_network
from harness.network.model_references import load_network

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "vendor_tools.md"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AssembledModel:
    """A small network as it is sent to a device, with the folder of the worker as the current one."""
    (tmp_path / "worker").mkdir(mode=0o700)
    monkeypatch.chdir(tmp_path / "worker")
    return assemble_network(load_network(str(build_network(tmp_path / "chain.onnx"))))


def _examples() -> list[Any]:
    """The devices that docs/vendor_tools.md shows, each with a sample of output and its latencies."""
    text = DOCUMENT.read_text()
    found = re.findall(
        r"```toml\n(\[devices\.[^`]+)```.*?```(?:text|json)\n([^`]+)```\s+Latency: ([0-9., ]+) ms", text, re.DOTALL
    )
    devices = [(next(iter(tomllib.loads(table)["devices"].items())), *rest) for table, *rest in found]
    return [pytest.param(device, output, latencies, id=name) for (name, device), output, latencies in devices]


@pytest.mark.parametrize(("device", "output", "latencies"), _examples())
def test_examples_of_the_documentation_hold(
    device: dict[str, Any],
    output: str,
    latencies: str,
    model: AssembledModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each example is a valid device whose rule finds the listed latencies in the sample of output."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (tmp_path / "output").write_text(output)
    script = f"""#!/bin/sh
sleep 0.3
for word; do case $word in --exportTimes=*) exec cat {tmp_path}/output > "${{word#*=}}";; esac; done
exec cat {tmp_path}/output
"""
    settings = dict(device["options"])
    for option in ("run", "push", "remove", "version"):
        if isinstance(settings.get(option), list) and shutil.which(settings[option][0]) is None:
            (programs / settings[option][0]).write_text(script)
            (programs / settings[option][0]).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    expected = [round(float(one) * 1e6) for one in latencies.split(",")]
    if len(expected) > 1:
        settings["runs"] = len(expected)
    backend = create("command", settings)
    backend.load(request_of(model))
    assert device["backend"] == "command"
    assert [backend.run("p").wall_ns for _ in expected] == expected


def test_all_three_tools_are_documented() -> None:
    """The examples are those of ONNX Runtime, TensorFlow Lite and TensorRT."""
    words = " ".join(" ".join(example.values[0]["options"]["run"]) for example in _examples())
    assert all(tool in words for tool in ("onnxruntime_perf_test", "benchmark_model", "trtexec"))
