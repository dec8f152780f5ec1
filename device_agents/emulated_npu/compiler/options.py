"""What a user may force; everything else the compiler chooses by predicted time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

HaloChoice = Literal["auto", "retain", "retain-columns", "recompute", "refetch"]
ChainChoice = Literal["auto", "layers", "whole"]
ResidencyChoice = Literal["auto", "weights", "features", "smaller"]
ConvolutionChoice = Literal["auto", "direct", "odd-dft"]
LevelChoice = Literal["auto", "llc", "ddr"]


@dataclass(frozen=True)
class Options:
    """Choices for experiments (S3.7, S3.8).

    `chains`: where chains end: by predicted time, after every layer, or nowhere. `halo`: kept in the auxiliary
    buffer in both directions or along a row of tiles alone, computed again, or fetched again (layer by layer).
    `tile`: height and width of the tiles of a chain's last output. `residency`: what stays on chip while the other
    streams past in a layer that has not room for both: weights, features, or the smaller of them. `reorder`: loads
    are hoisted over computes. `fences`: nothing of a layer begins before all of the layer before it has ended, and
    every layer is a chain. `conv_algorithm`: how convolutions are computed: each as predicted to be faster, directly,
    or by DFT of odd blocks wherever that is possible (S4.7); `dft_block`: the length of all blocks, an odd number;
    `dft_kernels`: the memory that keeps the DFTs of the kernels (S4.5).
    """

    chains: ChainChoice = "auto"
    halo: HaloChoice = "auto"
    tile: tuple[int, int] | None = None
    residency: ResidencyChoice = "auto"
    reorder: bool = True
    fences: bool = False
    conv_algorithm: ConvolutionChoice = "auto"
    dft_block: int | None = None
    dft_kernels: LevelChoice = "auto"


DEFAULT = Options()
