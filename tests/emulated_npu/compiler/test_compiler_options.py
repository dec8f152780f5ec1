"""The declaration of the compiler's options: flags, defaults and contradictions."""

from typing import Any

import pytest

from device_agents.emulated_npu.compiler.options import DEFAULT, FIXES_LAYERS, TAKES_MEMORY, Options, flag
from device_agents.emulated_npu.emulator_errors import ContradictoryOptions


def test_flags_come_from_the_fields() -> None:
    """A field's flag is its name with dashes; a switch that is on by default is switched off by its flag."""
    assert [flag(DEFAULT, name) for name in ("dft_block", "fences", "reorder")] == [
        "--dft-block",
        "--fences",
        "--no-reorder",
    ]


def test_given_options_are_named_by_trait() -> None:
    """Options that differ from their defaults are listed by what they affect, in the order of the declaration."""
    options = Options(halo="retain", tile=(4, 4), fences=True, reorder=False, dft_block=9)
    assert options.given(FIXES_LAYERS) == ("--halo", "--tile", "--fences")
    assert options.given(TAKES_MEMORY) == ("--halo", "--tile", "--dft-block")
    assert DEFAULT.given(FIXES_LAYERS) == DEFAULT.given(TAKES_MEMORY) == ()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"halo": "refetch", "chains": "whole"}, "--halo refetch contradicts --chains whole"),
        (
            {"dft_block": 9, "dft_kernels": "ddr", "conv_algorithm": "direct"},
            "--dft-block 9 and --dft-kernels ddr contradict --conv-algorithm direct",
        ),
        (
            {"dft_block": 9, "dft_kernels": "ddr", "tile": (4, 4), "fences": True},
            "--dft-block 9 and --dft-kernels ddr contradict --tile and --fences",
        ),
    ],
    ids=str,
)
def test_contradictions_name_both_sides(values: dict[str, Any], message: str) -> None:
    """Options that contradict each other are refused by their flags, with a next step."""
    with pytest.raises(ContradictoryOptions, match=message) as caught:
        Options(**values).check()
    assert caught.value.next_step


@pytest.mark.parametrize(
    "values",
    [{}, {"dft_block": 9, "dft_kernels": "ddr"}, {"conv_algorithm": "odd-dft", "dft_block": 9, "fences": True}],
)
def test_options_that_agree_are_accepted(values: dict[str, Any]) -> None:
    """Blocks and kernels of the DFT go with automatic and with forced DFT."""
    Options(**values).check()
