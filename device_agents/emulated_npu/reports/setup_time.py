"""The setup of a program as a program of its own, for timing; it runs once, when the program is loaded."""

from __future__ import annotations

from dataclasses import replace

from device_agents.emulated_npu.isa.program import NO_SETUP, Program


def setup_alone(program: Program) -> Program | None:
    """Return the setup as a program without inputs and outputs; None if there is no setup."""
    setup = program.setup
    if not setup.code:
        return None
    return replace(
        program, code=setup.code, layers=setup.layers, layer_of=setup.layer_of, inputs=(), outputs=(), setup=NO_SETUP
    )
