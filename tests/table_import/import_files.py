"""Files of latencies and mappings for the tests of imports."""

import csv
import json
import lzma
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from command_line import Harness, Outcome

HEADER = ("kind", "n", "c", "h", "w", "k", "size", "stride", "ms", "std")
ROW = ("conv", "1", "16", "28", "28", "32", "3", "1", "0.5", "0.05")
V100 = Path(__file__).resolve().parents[1] / "predictor" / "data" / "v100_conv_fp16.txt.xz"
V100_COLUMNS = ("kind", "batch", "c", "h", "w", "k", "size", "stride", "elementwise", "ms")

CONVOLUTION: dict[str, Any] = {
    "op": "Conv",
    "input": ["$n", "$c", "$h", "$w"],
    "channels_out": "$k",
    "kernel": "$size",
    "stride": "$stride",
    "padding": "half",
}
MAPPING: dict[str, Any] = {
    "device": "board",
    "unit": "ms",
    "latency": "$ms",
    "statistic": "mean",
    "provenance": {"tool": "a tool"},
    "uncertainty": {"relative": 0.02},
    "operator": [CONVOLUTION],
}


def toml(value: Any) -> str:
    """Return a value as TOML."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(name)} = {toml(one)}" for name, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value, ensure_ascii=True)


def write_mapping(folder: Path, **changed: Any) -> Path:
    """Write the mapping with some keys changed; a key that is None is left out."""
    path = folder / "mapping.toml"
    content = {name: value for name, value in {**MAPPING, **changed}.items() if value is not None}
    path.write_text("".join(f"{name} = {toml(value)}\n" for name, value in content.items()), encoding="utf-8")
    return path


def write_rows(folder: Path, rows: Sequence[Sequence[object]], header: Sequence[str] = HEADER) -> Path:
    """Write rows as CSV."""
    path = folder / "latencies.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows] if header else rows)
    return path


def row(**changed: object) -> list[object]:
    """Return a row of a convolution with some cells changed."""
    return [changed.get(name, cell) for name, cell in zip(HEADER, ROW, strict=True)]


def run_import(harness: Harness, rows: Sequence[Sequence[object]], *options: str, **changed: Any) -> Outcome:
    """Run the command on rows under a mapping with some keys changed."""
    folder = harness.workspace
    header = changed.pop("header", HEADER)
    file, mapping = write_rows(folder, rows, header), write_mapping(folder, **changed)
    return harness("lut", "import", file, "--mapping", mapping, *options)


def v100_rows(count: int) -> list[list[str]]:
    """Return every so-many-th row of the V100 data, `count` of them, with the kind first."""
    with lzma.open(V100, "rt", encoding="ascii") as lines:
        rows = [line.strip().lstrip("{").replace("} ", ",").split(",") for line in lines]
    return rows[:: len(rows) // count][:count]


def v100_mapping() -> dict[str, Any]:
    """Return the mapping of the V100 data."""
    shape = {"input": ["$batch", "$c", "$h", "$w"], "kernel": "$size", "stride": "$stride", "padding": "half"}
    both = {"op": "Conv", "dtype": "float16", **shape}
    source = "github.com/alibaba/lightweight-neural-architecture-search, op_profiler/V100/conv_data.out.fp16"
    return {
        "device": "v100",
        "statistic": "not stated",
        "clock": "device",
        "not_measured": [-1],
        "provenance": {"tool": "TensorRT", "hardware": "NVIDIA V100", "licence": "Apache-2.0", "source": source},
        "operator": [
            {**both, "where": {"kind": "Regular"}, "channels_out": "$k", "residual": "$elementwise"},
            {**both, "where": {"kind": "Depthwise"}, "groups": "depthwise"},
        ],
    }
