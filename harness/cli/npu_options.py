"""Options of the `harness npu` commands, and what their texts mean."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, get_args

import typer

from harness.cli.npu_errors import errors_of_user
from harness.errors import UsageError

if TYPE_CHECKING:
    from device_agents.emulated_npu.compiler.options import Options
    from device_agents.emulated_npu.machine import Machine

DEFAULT_PRESET = "edge"

Model = Annotated[
    str, typer.Argument(metavar="MODEL.onnx", help="An ONNX file, or builtin:NAME (builtin:resnet50, …).")
]
ModelOrProgram = Annotated[
    str,
    typer.Argument(metavar="MODEL.onnx|PROGRAM", help="An ONNX file, builtin:NAME, or a file of `npu compile -o`."),
]
Preset = Annotated[
    str | None, typer.Option("--preset", help="Machine that comes along: edge (default), nvdla-256, systolic-32, …")
]
MachineFile = Annotated[
    Path | None, typer.Option("--machine", help="TOML file of a machine of your own, in place of --preset.")
]
Chains = Annotated[
    str, typer.Option("--chains", help="Where chains end: auto, layers (after every one) or whole (nowhere).")
]
Halo = Annotated[
    str,
    typer.Option("--halo", help="Halo between tiles: auto, retain, retain-columns, recompute, or refetch (no chains)."),
]
Tile = Annotated[
    str | None, typer.Option("--tile", help="Height and width of the tiles of a chain's last output, like 18x16.")
]
Residency = Annotated[
    str,
    typer.Option("--residency", help="What stays on chip while the rest streams: auto, weights, features, smaller."),
]
NoReorder = Annotated[bool, typer.Option("--no-reorder", help="Leave loads where they are; hoist none over computes.")]
Fences = Annotated[bool, typer.Option("--fences", help="Let no layer begin before the one before it has ended.")]
ConvAlgorithm = Annotated[
    str,
    typer.Option("--conv-algorithm", help="Convolutions: auto (as predicted to be faster), direct, or odd-dft."),
]
DftBlock = Annotated[
    int | None, typer.Option("--dft-block", help="Length of the DFT's blocks, an odd number (default: as predicted).")
]
DftKernels = Annotated[
    str, typer.Option("--dft-kernels", help="Memory that keeps the kernels' DFTs: auto, llc, or ddr.")
]
CycleBudget = Annotated[
    int | None,
    typer.Option("--cycle-budget", min=1, max=10**15, help="Give up on a program that takes more cycles than this."),
]

Cores = Annotated[
    int | None, typer.Option("--cores", help="Run on this many cores: one group of them, or --groups of them.")
]
Groups = Annotated[
    str | None,
    typer.Option("--groups", help="Core groups: how many (of one core each, or --cores), or their cores: 0-3/4,5/6."),
]
Inputs = Annotated[
    int | None,
    typer.Option(
        "--inputs",
        min=1,
        max=10_000,
        help="Inputs that follow each other through the groups; at least 4 for each group.",
    ),
]
PartitionMethod = Annotated[
    str, typer.Option("--partition", help="Partition over the groups: both, balanced, score (of shares) or absolute.")
]
Score = Annotated[
    list[str] | None,
    typer.Option("--score", help="Coefficient of the split score: compute, storage, routing, static, dynamic=NUMBER."),
]
Threshold = Annotated[float | None, typer.Option("--threshold", help="Split where the score exceeds this.")]
MaxNodes = Annotated[int | None, typer.Option("--max-nodes", help="Split where a group would get more nodes.")]
Start = Annotated[str | None, typer.Option("--start", help="Node to start the visit of the network from.")]
AddGroups = Annotated[
    bool, typer.Option("--add-groups", help="Add core groups where those there are do not hold the network.")
]
Period = Annotated[
    float | None,
    typer.Option("--period-ms", help="A group takes no more nodes than it can compute in this time."),
]
CoreStorage = Annotated[
    int | None,
    typer.Option("--core-storage", min=1, max=2**40, help="Bytes that a core may hold (default: its part of DDR)."),
]

_TILE = re.compile(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})\Z")
_LAYERS = ("chains", "halo", "tile", "residency", "fences")
"""Options about the layers of the network as they are: with them the compiler takes no other algorithm by itself."""
_Choice = TypeVar("_Choice", bound=str)


def read_options(
    *,
    chains: str,
    halo: str,
    tile: str | None,
    residency: str,
    no_reorder: bool,
    fences: bool,
    conv_algorithm: str = "auto",
    dft_block: int | None = None,
    dft_kernels: str = "auto",
) -> Options:
    """The options of the compiler; raises UsageError for a word that means nothing and for contradictions."""
    from device_agents.emulated_npu.compiler import options

    if halo == "refetch" and chains == "whole":
        why = "Refetching runs every layer by itself, which is the opposite of one chain"
        raise UsageError("--halo refetch contradicts --chains whole", why=why, next_step="Leave one of them out")
    read = options.Options(
        chains=_choice("--chains", chains, get_args(options.ChainChoice)),
        halo=_choice("--halo", halo, get_args(options.HaloChoice)),
        tile=_tile(tile),
        residency=_choice("--residency", residency, get_args(options.ResidencyChoice)),
        reorder=not no_reorder,
        fences=fences,
        conv_algorithm=_choice("--conv-algorithm", conv_algorithm, get_args(options.ConvolutionChoice)),
        dft_block=dft_block,
        dft_kernels=_choice("--dft-kernels", dft_kernels, get_args(options.LevelChoice)),
    )
    _check_dft(read)
    return read


def _check_dft(read: Options) -> None:
    """Raises UsageError for blocks and kernels of a DFT that is never computed."""
    from device_agents.emulated_npu.compiler.options import DEFAULT

    given = [f"--dft-block {read.dft_block}"] * (read.dft_block is not None)
    given += [f"--dft-kernels {read.dft_kernels}"] * (read.dft_kernels != "auto")
    if not given:
        return
    named, verb = " and ".join(given), "contradicts" if len(given) == 1 else "contradict"
    if read.conv_algorithm == "direct":
        why = "Blocks and kernel DFTs are those of convolutions by DFT"
        raise UsageError(f"{named} {verb} --conv-algorithm direct", why=why, next_step="Leave one of them out")
    others = [f"--{name}" for name in _LAYERS if getattr(read, name) != getattr(DEFAULT, name)]
    if read.conv_algorithm == "auto" and others:
        why = "Where layers are cut or chained as told, convolutions are direct unless the DFT is told, too"
        step = "Add --conv-algorithm odd-dft"
        raise UsageError(f"{named} {verb} {' and '.join(others)}", why=why, next_step=step)


def _choice(option: str, text: str, choices: Sequence[_Choice]) -> _Choice:
    for choice in choices:
        if text == choice:
            return choice
    raise UsageError(f"{option} {text[:40]} is unknown", next_step=f"Choose from {', '.join(choices)}")


def _tile(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    found = _TILE.match(text)
    if not found:
        why = "It is a height and a width, both positive"
        raise UsageError(f"--tile {text[:40]} is not HxW", why=why, next_step="Write --tile 18x16")
    return int(found[1]), int(found[2])


def choose_machine(preset: str | None, file: Path | None, default: str = DEFAULT_PRESET) -> Machine:
    """The machine of --preset or --machine; raises UsageError for both, InputError for one that is invalid."""
    from device_agents.emulated_npu.machine import load_preset, read_machine

    if preset is not None and file is not None:
        raise UsageError("--preset and --machine exclude each other", next_step="Give one of them")
    with errors_of_user():
        return load_preset(default if preset is None else preset) if file is None else read_machine(file)
