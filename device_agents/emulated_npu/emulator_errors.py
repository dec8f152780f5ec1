"""Exceptions of the emulated NPU; each carries what happened, why, and the next step.

::

    EmulatorError
    ├── ContradictoryOptions  two options of the compiler contradict each other
    ├── InvalidMachine       a machine description is incomplete or contradicts itself
    │   └── ContradictoryMachine  every value is allowed, but two of them contradict each other
    ├── InvalidModel         a network is not valid ONNX, or a shape is unknown before it runs
    ├── UnsupportedOperator  the compiler does not support a node of the network
    ├── DoesNotFit           a layer or network needs more memory than the machine has
    │   └── ChipTooSmall     the core groups on a chip together need more external memory than it has
    ├── InvalidPartition     the input of a partition over core groups contradicts itself
    ├── InvalidProgram       the bytes are not a program: damaged, unknown opcode, jump out of the code
    └── ExecutionFault       a program did something the machine forbids, such as an access outside a memory
        ├── Deadlock         the queues wait for each other
        └── BudgetExceeded   the program took more instructions, cycles or elements than its budget
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self


class EmulatorError(Exception):
    """Base class: `str()` is what happened; `why` and `next_step` may be empty."""

    def __init__(self, what: str, why: str = "", next_step: str = "") -> None:
        super().__init__(what)
        self.what, self.why, self.next_step = what, why, next_step

    def at(self, place: str) -> Self:
        """Return the same error with the place in front: a core, an instruction, a file."""
        return type(self)(f"{place}: {self.what}", self.why, self.next_step)


class ContradictoryOptions(EmulatorError):
    """Two options of the compiler contradict each other."""


class InvalidMachine(EmulatorError):
    """A machine description is not TOML, is incomplete, or contradicts itself."""


class ContradictoryMachine(InvalidMachine):
    """Every value of a machine description is allowed, but two of them contradict each other."""


class InvalidModel(EmulatorError):
    """A network is not valid ONNX, or a shape or an element type is unknown before it runs."""


class UnsupportedOperator(EmulatorError):
    """The compiler does not support a node; the message names the node and its operator."""


class DoesNotFit(EmulatorError):
    """A layer or network needs more memory than there is; names demand, limit and the parameter to change.

    `memory` and `demand_bytes` are empty and 0 if the error is not about one demand on one memory.
    """

    def __init__(self, what: str, why: str = "", next_step: str = "", memory: str = "", demand_bytes: int = 0) -> None:
        super().__init__(what, why, next_step)
        self.memory, self.demand_bytes = memory, demand_bytes


class ChipTooSmall(DoesNotFit):
    """The core groups on a chip together need more DDR than it has; `demands` are their bytes by number."""

    def __init__(self, chip: int, demands: Mapping[int, int], limit_bytes: int) -> None:
        total = sum(demands.values())
        needed = ", ".join(f"{size} for group {number}" for number, size in demands.items())
        super().__init__(
            f"Chip {chip} needs {total} bytes of DDR: {needed}",
            f"there are {limit_bytes}",
            "Raise bytes of [ddr] of the machine, or form groups on more chips",
            "DDR",
            total,
        )
        self.chip, self.limit_bytes = chip, limit_bytes


class InvalidPartition(EmulatorError):
    """A graph, core list, coefficient or threshold contradicts itself; names the value and its limit."""


class InvalidProgram(EmulatorError):
    """The bytes are not a program of this instruction set."""


class ExecutionFault(EmulatorError):
    """A program did something the machine forbids; names the instruction."""


class Deadlock(ExecutionFault):
    """The queues wait for each other; names the instructions at their heads."""


class BudgetExceeded(ExecutionFault):
    """The program took more instructions or cycles than its budget, or a view is larger than the emulator allows."""
