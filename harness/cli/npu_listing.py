"""A program as assembly text, with the layer that each stretch belongs to as comments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness.text import printable

if TYPE_CHECKING:
    from device_agents.emulated_npu.isa.program import Program


def listing(program: Program) -> str:
    """The assembly text; raises InvalidProgram where the code does not decode."""
    from device_agents.emulated_npu.isa.assembly import disassemble

    return "".join(_with_layers(disassemble(program.code), program))


def _with_layers(text: str, program: Program) -> Iterator[str]:
    index, layer = 0, -1
    for line in text.splitlines(keepends=True):
        if line.startswith(" "):  # an instruction; labels begin at the margin
            own = program.layer_of[index]
            if own not in (layer, -1):
                layer = own
                yield f"# {printable(program.layers[layer])}\n"
            index += 1
        yield line
