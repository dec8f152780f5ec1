"""The setup of a program by itself, to be timed: it runs once, when the program is loaded (S4.5)."""

from __future__ import annotations

from dataclasses import replace

from device_agents.emulated_npu.isa.program import NO_SETUP, Program


def setup_alone(program: Program) -> Program | None:
    """The setup as a program without inputs and outputs; None where there is none."""
    setup = program.setup
    if not setup.code:
        return None
    return replace(
        program, code=setup.code, layers=setup.layers, layer_of=setup.layer_of, inputs=(), outputs=(), setup=NO_SETUP
    )
