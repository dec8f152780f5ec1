"""docs/new_backend.md: the backend of the page, added to a copy of the source tree, measures a network."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "new_backend.md").read_text(encoding="utf-8")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the packages with the module and the line of the page, which takes a busy machine as it is."""
    module, line = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert sum(bool(text.strip()) for text in module.splitlines()) <= 40
    for package in ("harness", "device_agents"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "published"))
    backends = tmp_path / "device_agents" / "backends"
    (backends / "plain.py").write_text(module)
    start = "BACKENDS: Mapping[str, Registration] = {\n"
    _replace(backends / "__init__.py", start, start + line)
    _replace(tmp_path / "harness" / "settings.py", "MOST_DRIFT = 0.5", "MOST_DRIFT = 1e6")
    _replace(tmp_path / "harness" / "fleet" / "health.py", '"cpu": 0.25', '"cpu": 1e6')
    return tmp_path


def _replace(path: Path, before: str, after: str) -> None:
    content = path.read_text()
    assert content.count(before) == 1
    path.write_text(content.replace(before, after))


def _small_network(path: Path) -> None:
    weights = numpy_helper.from_array(numpy.ones((8, 3, 3, 3), numpy.float32), "w")
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]), helper.make_node("Relu", ["a"], ["y"])]
    shapes = (("x", [1, 3, 8, 8]), ("y", [1, 8, 8, 8]))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes]
    graph = helper.make_graph(nodes, "small", values[:1], values[1:], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def test_the_backend_of_the_page_measures(tree: Path) -> None:
    """After one module and one line, the commands of the page check the device, profile, build and estimate."""
    workspace = tree / "workspace"
    workspace.mkdir()
    (workspace / "devices.toml").write_text("".join(re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)))
    _small_network(workspace / "model.onnx")
    (commands,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    printed = ""
    for command in commands.splitlines():
        words = [sys.executable, "-m", *command.split(), *(["--runs", "15"] if "profile" in command else []), "--json"]
        done = subprocess.run(words, cwd=workspace, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        printed = done.stdout
    (network,) = json.loads(printed)["networks"]
    assert network["coverage"]["measured"] == len(network["layers"]) > 0 and network["latency_s"] > 0
    (manifest,) = workspace.glob("lut/unoptimised/*/manifest.json")
    assert json.loads(manifest.read_text())["fingerprint"]["runtime"] == "plain"
