"""A program from an edited listing: new code, with the ports, memories and setup of the program it came from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from device_agents.emulated_npu.isa.assembly import assemble
from device_agents.emulated_npu.isa.instructions import INSTRUCTION_BYTES
from device_agents.emulated_npu.isa.program import Program
from harness.errors import InputError, reason_of
from harness.files import read_file
from harness.npu.error_translation import errors_of_user
from harness.text import printable

_MAX_LISTING_BYTES = 1 << 28
_LABELS = re.compile(r"\s*([A-Za-z_]\w*:\s*)*")


def assembled(listing: Path, base: Program) -> Program:
    """Return the base with the code of a listing, as `disassemble` prints it and as a person may have edited it.

    With as many instructions as before, each keeps its layer; otherwise the comments of the listing name the layers.
    Raises InputError if the listing cannot be read, or, naming the line, if it does not assemble.
    """
    try:
        text = read_file(listing, _MAX_LISTING_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = reason_of(error) if isinstance(error, OSError) else "It is not UTF-8 text"
        step = "Name a file with the output of `harness npu disassemble`"
        raise InputError(f"{printable(str(listing))} cannot be read", why=why, next_step=step) from error
    with errors_of_user():
        code = assemble(text)
    layer_of = base.layer_of
    if len(code) != len(layer_of) * INSTRUCTION_BYTES:
        layer_of = _commented_layers(text, {printable(name): index for index, name in enumerate(base.layers)})
    return replace(base, code=code, layer_of=layer_of)


def _commented_layers(text: str, layers: Mapping[str, int]) -> tuple[int, ...]:
    """Return the layer of each instruction: that of the last comment on its own line that names one, or -1."""
    found, layer = [], -1
    for line in text.splitlines():
        statement, _, comment = line.partition("#")
        if _LABELS.sub("", statement, count=1).strip():
            found.append(layer)
        elif not statement.strip():
            layer = layers.get(comment.strip(), layer)
    return tuple(found)
