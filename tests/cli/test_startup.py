"""The command line before any command runs: light imports, choices and completion."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli.app import main
from harness.lut.table_choice import PUBLISHED, table_folders


def test_an_estimate_of_a_network_that_was_read_before_loads_no_runtime(tmp_path: Path) -> None:
    """A network in the cache whose layers were measured needs neither onnx nor what predictors are learnt with."""
    words = ["harness", "estimate", "builtin:dscnn", "--device", "npu01", "--workspace", str(tmp_path)]
    run = f"import atexit, sys; sys.argv = {words}; atexit.register(lambda: print(*sys.modules))"
    for _ in range(2):
        code = f"{run}; from harness.__main__ import main; main()"
        loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "harness.estimation.network_estimate" in loaded
    assert not {"onnx", "onnxruntime", "pandas", "sklearn", "scipy", "bokeh", "paramiko"} & set(loaded)


@pytest.mark.parametrize(("module", "slow"), [("harness.device.session", "paramiko"), ("harness.cli.app", "numpy")])
def test_a_module_loads_nothing_slow_that_it_does_not_need(module: str, slow: str) -> None:
    """A session with this machine needs no SSH, and the texts of the command line no arrays."""
    program = f"import sys, {module}; sys.exit('{slow}' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("profile --device npu01,cpu-", {"npu01,cpu-openvino"}),
        ("benchmark --device x", set()),
        ("worker tcp://head:8786 --device null", {"null01"}),
        ("devices check nu", {"null01"}),
        ("agent install nu", {"null01"}),
        ("nightly accept --device nu", {"null01"}),
        ("estimate builtin:resnet5", {"builtin:resnet50"}),
        ("report builtin:resnet5", {"builtin:resnet50"}),
        ("npu compile builtin:resnet5", {"builtin:resnet50"}),
        ("npu run --preset systolic-3", {"systolic-32"}),
        ("npu sweep --preset systolic-3", {"systolic-32"}),
        ("lut show npu", {"npu01/TABLE"}),
        ("estimate --lut npu", {"npu01/TABLE"}),
        ("report --lut npu", {"npu01/TABLE"}),
        ("compare npu", {"npu01", "npu01/TABLE"}),
    ],
)
def test_the_shell_completes_names(
    words: str,
    expected: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In an empty folder, bash completes devices, networks, machines, and tables that are part of the package."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("_HARNESS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"harness {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    with pytest.raises(SystemExit):
        main([])
    (table,) = table_folders(PUBLISHED, "npu01")
    assert set(capsys.readouterr().out.split()) == {name.replace("TABLE", table.name) for name in expected}
