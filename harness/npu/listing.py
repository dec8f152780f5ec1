"""A program as assembly text with comments that name the layers, and a program from such a text after editing."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from device_agents.emulated_npu.isa.assembly import assemble, disassemble
from device_agents.emulated_npu.isa.instructions import INSTRUCTION_BYTES
from device_agents.emulated_npu.isa.program import Program, Setup
from harness.files import read_input_text
from harness.npu.error_translation import errors_of_user
from harness.text import printable

_MAX_LISTING_BYTES = 1 << 28
_LABELS = re.compile(r"\s*([A-Za-z_]\w*:\s*)*")


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


def assembled(listing: Path, base: Program) -> Program:
    """Return the base with the code of a listing, as `disassemble` prints it and as a person may have edited it.

    With as many instructions as before, each keeps its layer; otherwise the comments of the listing name the layers.
    Raises InputError if the listing cannot be read, or, naming the line, if it does not assemble.
    """
    step = "Name a file with the output of `harness npu disassemble`"
    text = read_input_text(listing, _MAX_LISTING_BYTES, step)
    with errors_of_user():
        code = assemble(text)
    layer_of = base.layer_of
    if len(code) != len(layer_of) * INSTRUCTION_BYTES:
        layer_of = _commented_layers(text, {printable(name): index for index, name in enumerate(base.layers)})
    return replace(base, code=code, layer_of=layer_of)


def _commented_layers(text: str, layers: Mapping[str, int]) -> tuple[int, ...]:
    """Return the layer of each instruction: that of the last comment on its own line that names one, or -1."""
    layer_of, layer = [], -1
    for line in text.splitlines():
        statement, _, comment = line.partition("#")
        if _LABELS.sub("", statement, count=1).strip():
            layer_of.append(layer)
        elif not statement.strip():
            layer = layers.get(comment.strip(), layer)
    return tuple(layer_of)
