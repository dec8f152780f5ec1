"""How convolutions are computed, for the reports of `npu compile` and `npu run`: by DFT, or directly all the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.cli.npu_source import CompiledModel
from harness.text import printable

_SHOWN = 8
_WIDTH = 48


def convolution_fields(source: CompiledModel | None) -> dict[str, list[dict[str, Any]] | None]:
    """The convolutions that are computed by DFT; where that is forced, also those that cannot be, with the reason."""
    from device_agents.emulated_npu.compiler.odd_dft.obstacles import direct_convolutions
    from device_agents.emulated_npu.reports.dft_counters import dft_counters

    if source is None:
        return dict.fromkeys(("by_dft", "stayed_direct"))
    compiled = source.compiled
    is_forced = compiled.options.conv_algorithm == "odd-dft"
    direct = direct_convolutions(compiled.graph) if is_forced else ()
    by_dft = [
        {
            "layer": one.name,
            "block_length": one.length,
            "blocks": one.blocks,
            "kernel_level": one.kernel_level.name.lower(),
            "bins": one.bins,
            "real_multiplications": one.multiplications,
            "kernel_dfts": one.kernel_transforms,
        }
        for one in (dft_counters(compiled) if compiled.graph.dft else ())
    ]
    return {"by_dft": by_dft, "stayed_direct": [{"layer": one.name, "reason": one.reason} for one in direct]}


def convolution_lines(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The convolutions by DFT, those that could not be although it is forced, and what is done once for them."""
    by_dft, direct = found["by_dft"] or (), found["stayed_direct"] or ()
    for label, one in zip(("by DFT", *("",) * len(by_dft)), by_dft[:_SHOWN], strict=False):
        what = f"{one['blocks']:,} blocks of {one['block_length']}, {one['bins']:,} bins each"
        work = f"{one['real_multiplications']:,} real multiplications"
        kernels = f"{one['kernel_dfts']:,} kernel DFTs in {one['kernel_level'].upper()}"
        yield label, f"{printable(one['layer'], _WIDTH)}: {what}, {work}, {kernels}"
    if len(by_dft) > _SHOWN:
        yield "", f"and {len(by_dft) - _SHOWN} more; --json has them all"
    if direct:
        shown = [f"{printable(one['layer'], _WIDTH)} ({one['reason']})" for one in direct[:_SHOWN]]
        rest = len(direct) - len(shown)
        yield "stay direct", ", ".join(shown) + (f" and {rest} more; --json has them all" if rest else "")
    if found["setup_cycles"]:
        yield "setup", f"{found['setup_cycles']:,.0f} cycles, once when the program is loaded"
