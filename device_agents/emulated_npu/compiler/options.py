"""The compiler's options, each declared once as a field of `Options`.

A field states the name, the choices (a Literal), the default and the help text. The command line builds its options
from the fields, and error messages take the names from them. A new option needs one field here, and the code of the
compiler that reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from device_agents.emulated_npu.emulator_errors import ContradictoryOptions

HaloChoice = Literal["auto", "retain", "retain-columns", "recompute", "refetch"]
ChainChoice = Literal["auto", "layers", "whole"]
ResidencyChoice = Literal["auto", "weights", "features", "smaller"]
ConvolutionChoice = Literal["auto", "direct", "odd-dft"]
LevelChoice = Literal["auto", "llc", "ddr"]

FIXES_LAYERS = "fixes_layers"
"""Trait of options that fix how layers are cut or chained: with them, `auto` computes convolutions directly."""

TAKES_MEMORY = "takes_memory"
"""Trait of options that may be the reason why something does not fit into a memory."""


def option(default: Any, help_text: str, *traits: str, **presentation: Any) -> Any:
    """Declare an option as a dataclass field.

    `presentation`: min and max of a number, the metavar, a `flag` that differs from the field's name, or a
    `completion` function that lists the possible values.
    """
    return field(default=default, metadata={"help": help_text, "traits": traits, **presentation})


def flag(options: Any, name: str) -> str:
    """Return the command-line flag of a field: --dft-block, or --no-reorder for a switch that is on by default."""
    declared = next(each for each in fields(options) if each.name == name)
    negated = "no-" if declared.default is True else ""
    return str(declared.metadata.get("flag") or f"--{negated}{name.replace('_', '-')}")


def changed(options: Any) -> list[str]:
    """Return the names of the fields that differ from their defaults, in the order of the declaration."""
    return [each.name for each in fields(options) if getattr(options, each.name) != each.default]


@dataclass(frozen=True)
class Options:
    """Choices that a user may fix; the compiler makes all others by predicted time."""

    chains: ChainChoice = option(
        "auto",
        "Where chains of layers end: as predicted to be fastest (auto), after each layer (layers), or nowhere (whole).",
        FIXES_LAYERS,
        TAKES_MEMORY,
    )
    halo: HaloChoice = option(
        "auto",
        "Halo between tiles: kept on chip (retain), kept within a row of tiles (retain-columns), computed again"
        " (recompute), or fetched again (refetch), which ends chains after every layer.",
        FIXES_LAYERS,
        TAKES_MEMORY,
    )
    tile: tuple[int, int] | None = option(
        None, "Height and width of the tiles of a chain's last output, such as 18x16.", FIXES_LAYERS, TAKES_MEMORY
    )
    residency: ResidencyChoice = option(
        "auto",
        "What stays on chip if the buffers cannot hold both: weights, features, or the smaller of them.",
        FIXES_LAYERS,
        TAKES_MEMORY,
    )
    reorder: bool = option(True, "Keep loads in their order; do not hoist them over computation.")
    cached_weights: bool = option(True, "Do not keep weights of later layers in the last-level cache.")
    fences: bool = option(False, "Start each layer only after the previous one has ended.", FIXES_LAYERS)
    conv_algorithm: ConvolutionChoice = option(
        "auto",
        "How to compute convolutions: directly (direct), by DFT (odd-dft), or as predicted to be faster (auto).",
        TAKES_MEMORY,
    )
    dft_block: int | None = option(
        None,
        "Length of the DFT's blocks, an odd number (default: the length that is predicted to be fastest).",
        TAKES_MEMORY,
        metavar="N",
    )
    dft_kernels: LevelChoice = option("auto", "Memory that holds the DFTs of the kernels.", TAKES_MEMORY)

    @property
    def single_layers(self) -> bool:
        """Whether every layer is a chain of its own."""
        return self.chains == "layers" or self.halo == "refetch" or self.fences

    def given(self, trait: str) -> tuple[str, ...]:
        """Return the flags of the options with this trait that differ from their defaults."""
        traits = {each.name: each.metadata["traits"] for each in fields(self)}
        return tuple(flag(self, name) for name in changed(self) if trait in traits[name])

    def check(self) -> None:
        """Raise ContradictoryOptions if two options contradict each other."""
        if self.halo == "refetch" and self.chains == "whole":
            why = "With --halo refetch every layer runs separately, not in one chain"
            raise ContradictoryOptions("--halo refetch contradicts --chains whole", why, "Omit one of them")
        self.check_dft()

    def check_dft(self) -> None:
        """Raise ContradictoryOptions for options of the DFT if no convolution is computed by DFT."""
        given = [f"--dft-block {self.dft_block}"] * (self.dft_block is not None)
        given += [f"--dft-kernels {self.dft_kernels}"] * (self.dft_kernels != "auto")
        if not given:
            return
        named = f"{' and '.join(given)} {'contradicts' if len(given) == 1 else 'contradict'}"
        if self.conv_algorithm == "direct":
            why = "Blocks and kernel DFTs exist only in convolutions by DFT"
            raise ContradictoryOptions(f"{named} --conv-algorithm direct", why, "Omit one of them")
        fixed = " and ".join(self.given(FIXES_LAYERS))
        if self.conv_algorithm == "auto" and fixed:
            why = f"{fixed} force direct convolution unless --conv-algorithm odd-dft is given"
            raise ContradictoryOptions(f"{named} {fixed}", why, "Add --conv-algorithm odd-dft")


DEFAULT = Options()
OF_DEVICE = Options(cached_weights=False)
"""Those of npu01. Weights in the cache arrive many chains ahead of their use, which no probe shorter than the network
shows."""
