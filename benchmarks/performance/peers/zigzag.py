"""ZigZag's search for mappings beside our compiler, on one network and like machines: a part of docs/performance.md."""

import json
import signal
import subprocess
from pathlib import Path

import onnx

from benchmarks.generated_page import Section, table
from benchmarks.performance.measuring import Run, Took, cpu, in_turns, spread, timed
from benchmarks.performance.page import reached
from benchmarks.performance.peers.environment import environment_with
from device_agents.emulated_npu.compiler.compiled import Compiled
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.machine import load_preset
from device_agents.emulated_npu.reports.accounting import useful_macs
from device_agents.emulated_npu.timing.simulation import simulate_program
from harness.network.model_references import model_path
from harness.npu.sweep.machine_parameters import ParameterValue, changed

REQUIREMENTS = ("zigzag-dse==3.9.1", "six==1.17.0")
"""The package imports `six`, which it does not list."""
NETWORK, QUICK_NETWORK = "resnet18", "dscnn"
LIMIT_S = 150.0
ARRAY = 32
MACHINE: dict[str, ParameterValue] = {
    "data_type": "int8",
    "mfu.rows": ARRAY,
    "mfu.columns": ARRAY,
    "nb_bytes": 2 << 20,
    "sb_bytes": 128 << 10,
    "llc.bytes": 0,
    "ddr.bytes_per_s": 8_000_000_000,
}
"""As ZigZag's `tpu_like`: 128 bytes of weights for each multiplier, 2 MiB of SRAM, 64 bits of DRAM in a cycle."""
_SCRIPT = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[3]), int(sys.argv[3])))
from importlib.resources import files
from zigzag.api import get_hardware_performance_zigzag
inputs = files("zigzag") / "inputs"
_, cycles, _ = get_hardware_performance_zigzag(
    sys.argv[1], str(inputs / "hardware/tpu_like.yaml"), str(inputs / "mapping/tpu_like.yaml"), opt="latency",
    dump_folder=sys.argv[2], loma_show_progress_bar=False)
with open(sys.argv[2] + "/cycles.json", "w") as file:
    json.dump(float(cycles), file)
"""


def zigzag_section(run: Run) -> Section:
    """Let ZigZag map a network for a limited time, and compile it for a like machine."""
    programs = environment_with(run.folder("zigzag"), REQUIREMENTS)
    name, folder = QUICK_NETWORK if run.quick else NETWORK, run.folder("zigzag-files")
    file = folder / f"{name}.onnx"
    with model_path(f"builtin:{name}") as path:
        onnx.save(onnx.shape_inference.infer_shapes(onnx.load(path)), file)
    took, theirs = _theirs(programs, file)
    machine, compiled = changed(load_preset("edge"), MACHINE), list[Compiled]()
    found = in_turns({"": lambda: compiled.append(compile_model(file.read_bytes(), machine))}, run.repeats)[""]
    cycles = simulate_program(compiled[0].program, machine).makespan_ps * machine.clock_hz / 1e12
    least = sum(useful_macs(compiled[0]).values()) / ARRAY**2
    ours_s = sorted(cpu(found))[len(found) // 2]
    shown = "–" if theirs is None else f"{theirs:,.0f} ({theirs / least:.2f})"
    rows = (
        ("ZigZag, `loma`", f"{took.cpu_s:.3g}" if theirs else f"stopped after {took.cpu_s:.0f}", shown),
        ("`compile` and `simulate`", spread(cpu(found)), f"{cycles:,.0f} ({cycles / least:.2f})"),
    )
    text = (
        f"{REQUIREMENTS[0]} on its machine `tpu_like` and our compiler on `edge` with the same array, memories, "
        f"bandwidth and type, for {name}. ZigZag is stopped after {LIMIT_S:.0f} s of CPU time. The ratio is to the "
        f"cycles of all multiply-adds at the peak of the array.\n\n"
        f"{table(('tool', 'CPU s', 'cycles (ratio to the least)'), rows)}"
    )
    more = "" if theirs else "more than "
    target = reached("ZigZag: CPU time for ResNet-18, theirs over ours", f"{more}{took.cpu_s / ours_s:.0f}", None)
    return Section(text, (target,))


def _theirs(programs: Path, file: Path) -> tuple[Took, float | None]:
    """Return the time that ZigZag took and its cycles; None if it was stopped at the limit."""
    folder = file.parent / file.stem
    folder.mkdir(exist_ok=True)
    command = [str(programs / "python"), "-c", _SCRIPT, str(file), str(folder), f"{LIMIT_S:.0f}"]
    ended: list[int] = []

    def task() -> None:
        with (folder / "output.txt").open("wb") as log:
            ended.append(subprocess.run(command, stdout=log, stderr=log, cwd=folder, check=False).returncode)

    took = timed(task)
    if ended[0] in (-signal.SIGXCPU, -signal.SIGKILL):
        return took, None
    if ended[0]:
        raise subprocess.CalledProcessError(ended[0], "zigzag")
    return took, json.loads((folder / "cycles.json").read_text(encoding="utf-8"))
