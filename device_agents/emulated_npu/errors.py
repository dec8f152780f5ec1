"""What can go wrong in the emulated NPU, each with what, why and the next step.

::

    EmulatorError
    ├── InvalidMachine       the description of a machine is contradictory or incomplete
    ├── InvalidNetwork       the network is no valid ONNX, or its shapes are not known before it runs
    ├── UnsupportedOperator  the network has a node that this compiler does not know
    ├── DoesNotFit           a layer or network demands more of a memory than the machine has
    ├── InvalidProgram       the bytes are no program: corrupted, unknown opcode, jump out of it
    └── ExecutionFault       a program did what the machine forbids: an access outside a memory, …
        ├── Deadlock         both queues wait for each other
        └── BudgetExceeded   more instructions than the budget allows: an endless loop
"""

from __future__ import annotations


class EmulatorError(Exception):
    """Base: `str()` is what happened; `why` and `next_step` may be empty."""

    def __init__(self, what: str, why: str = "", next_step: str = "") -> None:
        super().__init__(what)
        self.what, self.why, self.next_step = what, why, next_step


class InvalidMachine(EmulatorError):
    """The description of a machine is contradictory, incomplete or not TOML."""


class InvalidNetwork(EmulatorError):
    """The network is not valid ONNX, or a shape or an element type is not known before it runs."""


class UnsupportedOperator(EmulatorError):
    """A node that the compiler does not know; names the node and the operator."""


class DoesNotFit(EmulatorError):
    """A layer or network demands more of a memory than there is; says demand, limit and the parameter that mends it.

    `memory` and `demand_bytes` are empty and 0 where it is not one demand of one memory.
    """

    def __init__(self, what: str, why: str = "", next_step: str = "", memory: str = "", demand_bytes: int = 0) -> None:
        super().__init__(what, why, next_step)
        self.memory, self.demand_bytes = memory, demand_bytes


class InvalidProgram(EmulatorError):
    """Bytes that are no program of this instruction set."""


class ExecutionFault(EmulatorError):
    """A program did what the machine forbids; names the instruction."""


class Deadlock(ExecutionFault):
    """Queues wait for each other; names the instructions at the heads of both."""


class BudgetExceeded(ExecutionFault):
    """More instructions or cycles than the budget allows."""
