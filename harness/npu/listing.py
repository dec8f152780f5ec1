"""A program as assembly text, with comments that name the layer of each stretch."""

from __future__ import annotations

from collections.abc import Iterator

from device_agents.emulated_npu.isa.assembly import disassemble
from device_agents.emulated_npu.isa.program import Program, Setup
from harness.npu.error_translation import errors_of_user
from harness.text import printable


def listing(part: Program | Setup) -> str:
    """Return the assembly text of a program or of its setup; raises InputError if the code does not decode."""
    with errors_of_user():
        return "".join(_with_layers(disassemble(part.code), part))


def as_comments(text: str) -> str:
    """Return the text of a setup as comments, which may follow that of the program."""
    head = "# Setup, which runs once when the program is loaded:\n" if text else ""
    return head + "".join(f"# {line}" for line in text.splitlines(keepends=True))


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
