"""A program as assembly text, with the layer that each stretch belongs to as comments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness.text import printable

if TYPE_CHECKING:
    from device_agents.emulated_npu.isa.program import Program, Setup


def listing(program: Program) -> str:
    """The assembly text of what runs; raises InvalidProgram where the code does not decode."""
    return _listed(program)


def setup_listing(program: Program) -> str:
    """What runs once, when the program is loaded, as text; empty where there is none. Raises as `listing`."""
    return _listed(program.setup)


def as_comments(text: str) -> str:
    """The text of a setup as comments, which may stand behind that of the program."""
    head = "# Setup, which runs once when the program is loaded:\n" if text else ""
    return head + "".join(f"# {line}" for line in text.splitlines(keepends=True))


def _listed(part: Program | Setup) -> str:
    from device_agents.emulated_npu.isa.assembly import disassemble

    return "".join(_with_layers(disassemble(part.code), part))


def _with_layers(text: str, part: Program | Setup) -> Iterator[str]:
    index, layer = 0, -1
    for line in text.splitlines(keepends=True):
        if line.startswith(" "):  # an instruction; labels begin at the margin
            own = part.layer_of[index]
            if own not in (layer, -1):
                layer = own
                yield f"# {printable(part.layers[layer])}\n"
            index += 1
        yield line
