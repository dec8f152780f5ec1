"""Several threads of ONNX Runtime: the sessions of a process share one pool."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from nullbench import build_network

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, os, sys
from load_requests import request_of
from harness.network.assemble import assemble_network
from harness.network.model_references import load_network
import onnxruntime
if sys.argv[2] == "old":
    del onnxruntime.set_global_thread_pool_sizes
from device_agents.backends import create
model = assemble_network(load_network(sys.argv[1]))
backend = create("onnxruntime", {"threads": 3})
counts = []
for number in range(4):
    backend.load(request_of(model, str(number)))
    counts.append(len(os.listdir("/proc/self/task")))
facts = backend.fingerprint()["settings"]
runs = [backend.run(str(number)).wall_ns for number in range(4)]
print(json.dumps({"counts": counts, "settings": facts, "runs": runs, "clock": backend.clock}))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts threads in /proc")
@pytest.mark.parametrize(("release", "pool", "more"), [("present", "shared", 0), ("old", "own", 2)])
def test_sessions_share_one_pool(tmp_path: Path, release: str, pool: str, more: int) -> None:
    """Another session adds no thread; a release without a shared pool adds one pool per session. The clock is wall."""
    path = build_network(tmp_path / "chain.onnx")
    command = [sys.executable, "-c", PROGRAM, str(path), release]
    folders = os.pathsep.join(map(str, (REPOSITORY, REPOSITORY / "tests")))
    environment = {**os.environ, "PYTHONPATH": folders, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert [after - before for before, after in zip(found["counts"], found["counts"][1:], strict=False)] == [more] * 3
    assert f"threads=3,pool={pool}," in found["settings"]
    assert found["clock"] == "wall" and min(found["runs"]) > 0
