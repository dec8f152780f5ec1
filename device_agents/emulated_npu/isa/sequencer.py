"""The control unit: executes registers, slots and jumps, and yields the commands of a program in order.

Execution and timing both take their commands from here; loops are unrolled on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from device_agents.emulated_npu.emulator_errors import BudgetExceeded, ExecutionFault
from device_agents.emulated_npu.isa.encoding import decode
from device_agents.emulated_npu.isa.instructions import (
    DESCRIPTOR_SLOTS,
    REGISTERS,
    SETTINGS_SLOTS,
    ControlInstruction,
    DataInstruction,
    Instruction,
    Opcode,
    OperandReference,
)
from device_agents.emulated_npu.isa.settings_words import settings_of_words, settings_words
from device_agents.emulated_npu.unit_commands import (
    MAX_RANK,
    Command,
    DataType,
    Descriptor,
    Fence,
    Function,
    Item,
    Operand,
    Post,
    Queue,
    Space,
    Wait,
)
from device_agents.emulated_npu.unit_settings import Settings

DEFAULT_BUDGET = 20_000_000
"""The number of instructions after which a program counts as an endless loop."""

ReadElement = Callable[[Space, DataType, int], int]
"""Returns the element of a type at an address of a memory, once all queues have drained."""


# Python 3.11 looks members of enumerations up slowly; these are compared for most instructions.
_HALT, _AXIS, _SET, _DESCRIPTOR = Opcode.HALT, Opcode.AXIS, Opcode.SET, Opcode.DESCRIPTOR
_MODES = {function: function.rule.modes for function in Function if function.rule.modes}


class DescriptorSlots:
    """The descriptor slots of a run; equal contents give one object, which makes comparison fast."""

    def __init__(self) -> None:
        self._headers: list[tuple[Space, DataType, int] | None] = [None] * DESCRIPTOR_SLOTS
        self._dims = [[0] * MAX_RANK for _ in range(DESCRIPTOR_SLOTS)]
        self._strides = [[0] * MAX_RANK for _ in range(DESCRIPTOR_SLOTS)]
        self._ready: list[Descriptor | None] = [None] * DESCRIPTOR_SLOTS  # until the next write
        self._known: dict[tuple[Space, DataType, tuple[int, ...], tuple[int, ...]], Descriptor] = {}

    def set_header(self, number: int, space: Space, dtype: DataType, rank: int) -> None:
        """Write the fields of a DESCRIPTOR instruction; the axes stay as they are."""
        self._headers[number], self._ready[number] = (space, dtype, rank), None

    def set_axis(self, number: int, axis: int, dim: int, stride: int) -> None:
        """Write the fields of an AXIS instruction."""
        self._dims[number][axis], self._strides[number][axis], self._ready[number] = dim, stride, None

    def read(self, number: int, pc: int) -> Descriptor:
        """Return the descriptor in a slot; raise ExecutionFault, naming the instruction `pc`, if it was never set."""
        ready = self._ready[number]
        if ready is not None:
            return ready
        header = self._headers[number]
        if header is None:
            raise ExecutionFault(f"instruction {pc} uses descriptor slot {number}, which no DESCRIPTOR has set")
        space, dtype, rank = header
        dims = tuple(self._dims[number][:rank])
        if 0 in dims:
            axis = dims.index(0)
            raise ExecutionFault(f"instruction {pc} uses descriptor slot {number}, whose axis {axis} no AXIS has set")
        key = (space, dtype, dims, tuple(self._strides[number][:rank]))
        if key not in self._known:
            self._known[key] = Descriptor(*key)
        self._ready[number] = found = self._known[key]
        return found


class SettingsSlots:
    """The settings slots of a run; slot 0 always holds Settings(). Equal contents give one object."""

    def __init__(self) -> None:
        self._words: list[list[int]] = [[] for _ in range(SETTINGS_SLOTS)]
        self._ready: list[Settings | None] = [Settings(), *[None] * (SETTINGS_SLOTS - 1)]  # until the next write
        # Keyed by words, not values: -0.0 equals 0.0, and NaN does not equal itself.
        self._known: dict[tuple[int, ...], Settings] = {}

    def set_word(self, number: int, word: int, bits: int) -> None:
        """Write the word of a SETTINGS instruction; the first write sets the other words to those of Settings()."""
        words = self._words[number] = self._words[number] or list(_PLAIN_WORDS)
        words[word], self._ready[number] = bits, None

    def read(self, number: int, pc: int) -> Settings:
        """Return the settings in a slot; raise ExecutionFault, naming the instruction `pc`, if it was never set."""
        ready = self._ready[number]
        if ready is not None:
            return ready
        key = tuple(self._words[number])
        if not key:
            raise ExecutionFault(f"instruction {pc} uses settings slot {number}, which no SETTINGS has set")
        if key not in self._known:
            self._known[key] = settings_of_words(key)
        self._ready[number] = found = self._known[key]
        return found


_PLAIN_WORDS = settings_words(Settings())


class IssuedStep(NamedTuple):
    """One item that the control unit issues, and the number of CONFIG and CONTROL instructions before it (`control`).

    `pc` is the index of its instruction. The last step of a program has no item: its pc is that of HALT, which
    `control` counts.
    """

    pc: int
    item: Item | None
    control: int


def sequence(
    program: bytes | Sequence[Instruction],
    *,
    layer_of: Sequence[int] = (),
    budget_instructions: int = DEFAULT_BUDGET,
    registers_from_memory: ReadElement | None = None,
) -> Iterator[IssuedStep]:
    """Yield the items of a program (code or decoded instructions) in issue order, loops unrolled.

    With `registers_from_memory`, the caller must apply all items up to a Fence before it takes the next item. Commands
    carry the layer that `layer_of` gives their instruction.

    Raises InvalidProgram immediately for code that does not decode. While it yields, it raises BudgetExceeded after
    `budget_instructions`, and ExecutionFault, naming the instruction, for a slot that was never set, for running off
    the end, and for LOAD_REGISTER without `registers_from_memory`.
    """
    instructions = decode(program) if isinstance(program, bytes) else program
    if layer_of and len(layer_of) != len(instructions):
        raise ValueError(f"{len(layer_of)} layers for {len(instructions)} instructions")
    layers = layer_of or (-1,) * len(instructions)
    return _ControlUnit(instructions, layers, registers_from_memory).steps(budget_instructions)


class _ControlUnit:
    def __init__(self, instructions: Sequence[Instruction], layers: Sequence[int], read: ReadElement | None) -> None:
        self._instructions, self._layers, self._read = instructions, layers, read
        self._registers = [0] * REGISTERS
        self._descriptors, self._settings = DescriptorSlots(), SettingsSlots()

    def steps(self, budget: int) -> Iterator[IssuedStep]:
        instructions = self._instructions
        items = {pc: item for pc, one in enumerate(instructions) if (item := _synchronisation(one, self._layers[pc]))}
        pc = control = 0
        for _ in range(budget):
            if pc >= len(instructions):
                what = f"runs off its end after instruction {pc - 1}" if pc else "has no instructions"
                raise ExecutionFault(f"the program {what}", "it has no HALT there", "End the program with HALT")
            instruction = instructions[pc]
            if isinstance(instruction, DataInstruction):
                yield IssuedStep(pc, self._command(pc, instruction), control)
                pc, control = pc + 1, 0
                continue
            opcode = instruction.opcode
            if opcode is _HALT:
                yield IssuedStep(pc, None, control + 1)
                return
            item = items.get(pc)
            if item is not None:
                yield IssuedStep(pc, item, control)
                control = 0
            if item is None or opcode is Opcode.LOAD_REGISTER:
                pc, control = self._configure(pc, instruction), control + 1
            else:
                pc += 1
        what = f"the program is at instruction {pc} after {budget} instructions"
        why = "it loops without end, or is longer than the budget allows"
        raise BudgetExceeded(what, why, "Correct the loop, or run a smaller network")

    def _configure(self, pc: int, instruction: ControlInstruction) -> int:
        """Apply a CONFIG instruction or a jump; return the index of the next instruction."""
        opcode, x, y, z, word, immediate = instruction
        registers = self._registers
        if opcode is _AXIS:
            self._descriptors.set_axis(x, y, word, immediate)
        elif opcode is _SET:
            registers[x] = immediate
        elif opcode is _DESCRIPTOR:
            self._descriptors.set_header(x, Space(y), DataType(z), word)
        elif opcode is Opcode.ADD_IMMEDIATE:
            registers[x] = _wrap(registers[y] + immediate)
        elif opcode is Opcode.SETTINGS:
            self._settings.set_word(x, y, immediate)
        elif opcode is Opcode.ADD:
            registers[x] = _wrap(registers[y] + registers[z])
        elif opcode is Opcode.LOAD_REGISTER:
            registers[x] = self._loaded(pc, Space(word), DataType(z), _wrap(registers[y] + immediate))
        elif opcode is Opcode.BRANCH_LESS:
            return word if registers[x] < registers[y] else pc + 1
        elif opcode is Opcode.JUMP or registers[x]:  # the last one is BRANCH_NOT_ZERO
            return word
        return pc + 1

    def _loaded(self, pc: int, space: Space, dtype: DataType, address: int) -> int:
        if self._read is None:
            what = f"instruction {pc} loads a register from memory"
            why = "the time of this program depends on values that only a functional run computes"
            raise ExecutionFault(what, why, "run it functionally")
        return _wrap(self._read(space, dtype, address))

    # IO and CP: registers and slots become operands and settings.

    def _command(self, pc: int, instruction: DataInstruction) -> Command:
        function, target, first, second, third, fourth, slot, accumulate, peer, own_queue = instruction
        settings = self._settings.read(slot, pc)
        if (modes := _MODES.get(function)) and settings.mode not in modes:
            raise ExecutionFault(f"instruction {pc}: {function.name} has no mode {settings.mode}")
        return Command(
            function,
            self._operand(pc, target),
            None if first is None else self._operand(pc, first),
            None if second is None else self._operand(pc, second),
            None if third is None else self._operand(pc, third),
            None if fourth is None else self._operand(pc, fourth),
            settings,
            accumulate,
            peer,
            self._layers[pc],
            own_queue,
        )

    def _operand(self, pc: int, reference: OperandReference) -> Operand:
        return Operand(self._descriptors.read(reference.slot, pc), self._registers[reference.register])


def _synchronisation(instruction: Instruction, layer: int) -> Item | None:
    """Return the item of a WAIT, POST or FENCE (LOAD_REGISTER also fences); None for other instructions."""
    if isinstance(instruction, DataInstruction):
        return None
    opcode, x, y, _, word, _ = instruction
    if opcode is Opcode.WAIT:
        return Wait(Queue(x), y, word, layer)
    if opcode is Opcode.POST:
        return Post(Queue(x), y, word, layer)
    if opcode in (Opcode.FENCE, Opcode.LOAD_REGISTER):
        return Fence(layer)
    return None


def _wrap(value: int) -> int:
    """Return the 64-bit two's complement of a number."""
    return ((value + 2**63) & (2**64 - 1)) - 2**63
