"""Arm's compiler Vela beside the emulated Ethos-U55 on the same topologies: a part of docs/performance.md."""

import csv
import math
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path

import onnx

from benchmarks.generated_page import Section, signed, table
from benchmarks.parts import harness_json
from benchmarks.performance.measuring import Run, in_turns, process, spread
from benchmarks.performance.page import reached
from benchmarks.performance.peers.environment import environment_with
from benchmarks.performance.peers.quantised import quantised
from harness.network.model_references import model_path

REQUIREMENTS = ("ethos-u-vela==5.2.0",)
PRESET = "ethos-u55-256"
SETTINGS = (
    *("--accelerator-config", PRESET, "--config", "Arm/vela.ini"),
    *("--system-config", "Ethos_U55_High_End_Embedded", "--memory-mode", "Shared_Sram"),
)
NETWORKS, QUICK_NETWORKS = ("dscnn", "mobilenetv2", "resnet18"), ("dscnn",)


def vela_section(run: Run) -> Section:
    """Compile networks with both in turns, and compare times and cycles."""
    programs = environment_with(run.folder("vela"), REQUIREMENTS)
    rows, ratios, errors = [], [], []
    for name in QUICK_NETWORKS if run.quick else NETWORKS:
        with model_path(f"builtin:{name}") as path:
            content = quantised(onnx.load(path))
        file = run.folder("vela-files") / f"{name}.tflite"
        file.write_bytes(content)
        theirs = [str(programs / "vela"), str(file), *SETTINGS, "--output-dir", str(file.parent)]
        words = ("npu", "run", f"builtin:{name}", "--preset", PRESET)
        ours = [sys.executable, "-m", "harness", *words, "--json"]
        uncached = partial(process, HARNESS_CACHE_DIR="")
        found = in_turns({"theirs": process(theirs), "ours": uncached(ours)}, run.repeats)
        cpu_s = {key: [one.cpu_s for one in times] for key, times in found.items()}
        cycles, expected = harness_json(*words)["cycles"], _their_cycles(file)
        ratios.append(statistics.median(cpu_s["theirs"]) / statistics.median(cpu_s["ours"]))
        errors.append(cycles / expected - 1)
        times = (spread(cpu_s["theirs"]), spread(cpu_s["ours"]), f"{ratios[-1]:.2f}")
        rows.append((name, *times, f"{expected:,.0f}", f"{cycles:,.0f}", signed(errors[-1])))
    header = ("network", "Vela, CPU s", "ours, CPU s", "ratio", "Vela, cycles", "ours, cycles", "difference")
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    text = (
        f"{REQUIREMENTS[0]} with its configuration `Ethos_U55_High_End_Embedded`, and `harness npu run --preset "
        f"{PRESET}`, as processes in turns. Both estimate cycles and compute no values. The int8 files hold the "
        f"topology and the weights of the ONNX networks.\n\n{table(header, rows)}"
    )
    figure = f"{mean:.2f} (geometric mean); cycles differ by {', '.join(map(signed, errors))}"
    return Section(text, (reached("Vela: CPU time of compiling, theirs over ours", figure, None),))


def _their_cycles(file: Path) -> float:
    """Return the cycles of a summary that Vela wrote; raises SubprocessError if there is none."""
    found = sorted(file.parent.glob(f"{file.stem}_summary_*.csv"))
    if not found:
        raise subprocess.SubprocessError(f"Vela wrote no summary of {file.name}")
    with found[0].open(encoding="utf-8", newline="") as lines:
        (row,) = csv.DictReader(lines)
    return float(row["cycles_total"])
