"""The options of the `harness npu` commands, each declared once. Importing this module loads neither numpy nor onnx."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from device_agents.emulated_npu.compiler.options import DEFAULT, Options, changed, flag, option
from harness.errors import UsageError
from harness.text import printable

if TYPE_CHECKING:
    from device_agents.emulated_npu.machine import Machine

__all__ = [
    "DEFAULT",
    "MachineChoice",
    "Options",
    "PipelineOptions",
    "RunOptions",
    "SplitOptions",
    "changed",
    "preset_names",
]

DEFAULT_PRESET = "edge"

RowSort = Literal["order", "cycles", "macs", "bytes", "name"]
"""The order of a table's layers: as they run, the largest first, or by name."""

PartitionMethod = Literal["both", "balanced", "score", "absolute"]

_NO_VALUES = "Time the program only; do not compute the network's outputs or compare them with ONNX Runtime's."


def _cycle_budget() -> Any:
    return option(
        None, "Stop with an error if the program takes more cycles than this.", metavar="CYCLES", min=1, max=10**15
    )


def preset_names() -> list[str]:
    """Return the names of the built-in machines."""
    from device_agents.emulated_npu import machine

    return list(machine.preset_names())


def named_files(flag: str, texts: Sequence[str], example: str) -> Iterator[tuple[str, Path]]:
    """Yield name and file of each NAME=FILE of an option; raises UsageError for other texts."""
    for text in texts:
        name, equals, file = text.rpartition("=")
        if not (name and equals and file):
            what = f"{flag} {printable(text, 80)} is not NAME=FILE{Path(example).suffix}"
            raise UsageError(what, next_step=f"Give {flag} {example}")
        yield name, Path(file)


@dataclass(frozen=True)
class MachineChoice:
    """A machine by the name of a preset or by its file."""

    preset: str | None = option(
        None, "Built-in machine: edge (default), nvdla-256, systolic-32, …", metavar="NAME", completion=preset_names
    )
    machine: Path | None = option(None, "TOML file of your own machine, instead of --preset.", metavar="FILE")

    def load(self, default: str = DEFAULT_PRESET) -> Machine:
        """Return the machine; raises UsageError if both are given, InputError if it is invalid."""
        from device_agents.emulated_npu.machine import load_preset, read_machine
        from harness.npu.error_translation import errors_of_user

        if self.preset is not None and self.machine is not None:
            raise UsageError("--preset and --machine exclude each other", next_step="Give one of them")
        with errors_of_user():
            if self.machine is not None:
                return read_machine(self.machine)
            return load_preset(default if self.preset is None else self.preset)


@dataclass(frozen=True)
class RunOptions:
    """The results of a run on one core in addition to its time."""

    values: bool = option(True, _NO_VALUES)
    marginal: bool = option(False, "Add each layer's marginal latency: how much faster the run is without it.")
    compare_reorder: bool = option(
        False, "Compile once more without reordering and report how many cycles reordering saves."
    )

    cycle_budget: int | None = _cycle_budget()
    input: tuple[str, ...] = option(
        (),
        "Values of an input from a .npy file; may be repeated. The network then has the weights of its file.",
        metavar="NAME=FILE.npy",
    )
    output_dir: Path | None = option(
        None,
        "Write each output to a .npy file in this folder. The network then has the weights of its file.",
        metavar="DIR",
    )

    image: Path | None = option(
        None,
        "Constants of a program file, as `harness npu compile --image` writes them; the program then computes values.",
        metavar="FILE.bin",
    )

    @property
    def own_data(self) -> bool:
        """Whether the network runs with the weights of its file."""
        return bool(self.input) or self.output_dir is not None

    def check(self, compiler: Options) -> None:
        """Raise UsageError if these options contradict those of the compiler."""
        if self.compare_reorder and not compiler.reorder:
            raise UsageError("--compare-reorder contradicts --no-reorder", next_step="Omit one of them")
        if self.own_data and not self.values:
            raise UsageError("--input and --output-dir need values", next_step="Omit --no-values")


_SCORED = ("score", "threshold", "max_nodes", "parts", "add_groups", "period_ms")
"""Options that only the partition by score uses."""


@dataclass(frozen=True)
class PipelineOptions:
    """The division of a network over core groups, and its run."""

    cores: int | None = option(None, "Number of cores, divided evenly among the groups.", metavar="N")
    groups: str | None = option(
        None,
        "Core groups: their number (1 if only --cores is given), or the cores of each, such as 0-3/4,5/6.",
        metavar="GROUPS",
    )
    inputs: int | None = option(
        None, "Number of inputs in the stream; at least 4 for each group.", metavar="N", min=1, max=10_000
    )
    partition: PartitionMethod = option(
        "both",
        "How to divide the network: by predicted time (balanced), by the split score of shares (score) or of absolute"
        " workload (absolute), or by predicted time and by score (both).",
    )
    score: tuple[str, ...] = option(
        (),
        "Coefficient of the split score: compute, storage, routing, static or dynamic; may be repeated.",
        metavar="NAME=NUMBER",
    )
    threshold: float | None = option(None, "Split where the score exceeds this value.", metavar="SCORE")
    max_nodes: int | None = option(None, "Largest number of nodes in a part.", metavar="N")
    parts: int | None = option(
        None,
        "Largest number of parts; several share a group if there are more parts than groups (default: one for each"
        " group, or as many as --max-nodes requires).",
        metavar="N",
        min=1,
    )
    start: str | None = option(None, "Node at which the traversal of the network starts.", metavar="NODE")
    add_groups: bool = option(False, "Add core groups if the network does not fit in the existing ones.")
    core_storage_bytes: int | None = option(
        None,
        "Storage per core in bytes, for both the split score and the capacity (default: NB, SB and a share of the"
        " last-level cache for the score; a share of DDR for the capacity).",
        flag="--core-storage",
        metavar="BYTES",
        min=1,
        max=2**40,
    )
    period_ms: float | None = option(
        None, "Longest computation of a group for one input, in milliseconds.", metavar="MS"
    )
    weights: Literal["resident", "fetched"] = option(
        "resident",
        "Weights that fit in the SB of their core stay there from input to input (resident), or are fetched for each"
        " input (fetched).",
    )
    values: bool = option(True, _NO_VALUES)
    cycle_budget: int | None = _cycle_budget()

    @property
    def by_score(self) -> bool:
        """Whether any option concerns the partition by score."""
        return self.partition in ("score", "absolute") or not {*_SCORED, "start"}.isdisjoint(changed(self))

    def check(self) -> None:
        """Raise UsageError for options that contradict each other, and if neither groups nor cores are given."""
        if self.groups is None and self.cores is None:
            why = "A pipeline divides a network over core groups"
            step = "Add --groups, or use `harness npu run` for one core"
            raise UsageError("Neither --groups nor --cores is given", why=why, next_step=step)
        given = [flag(self, name) for name in changed(self) if name in _SCORED]
        if self.partition == "balanced" and given:
            why = "The balanced partition uses no score"
            raise UsageError(f"--partition balanced contradicts {' and '.join(given)}", why=why)
        if self.parts is not None and self.add_groups:
            why = "--parts puts several parts on the existing groups, --add-groups adds groups instead"
            raise UsageError("--parts contradicts --add-groups", why=why, next_step="Omit one of them")


@dataclass(frozen=True)
class SplitOptions:
    """The extent of a comparison of splits."""

    cores: int = option(MISSING, "Cores of one chip that share the work of every layer.", metavar="N")
    layer: tuple[str, ...] = option(
        (), "Compare only the layer with this name or this ONNX node; may be repeated.", metavar="NAME"
    )
    verify: bool = option(
        True,
        "Also simulate every candidate event by event. Every way to split the whole network is compiled in any case.",
        flag="--verify/--no-verify",
    )
