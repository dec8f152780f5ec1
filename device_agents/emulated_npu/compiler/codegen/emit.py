"""The code generation stage: from items to binary instructions, with loops, registers and slots (S2.4, S2.5).

In a loop, an address has a register that ADD_IMMEDIATE advances at the end of the body; operands with the same address
and strides share it. If registers are scarce, addresses with equal strides share a register with the distance covered
so far, and ADD_IMMEDIATE computes each from it before use. Constants of a loop are set before it as far as there is
room. The contents of all other registers are unknown at the beginning of a body, because it runs several times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from device_agents.emulated_npu.compiler.codegen.addressing import (
    ZERO,
    Address,
    Addressing,
    CodeItem,
    LoopNest,
    LoopStrides,
    Words,
)
from device_agents.emulated_npu.compiler.codegen.register_file import Residency, Slots
from device_agents.emulated_npu.compiler.codegen.rolling import advance, roll
from device_agents.emulated_npu.isa.encoding import encode
from device_agents.emulated_npu.isa.instructions import (
    DESCRIPTOR_SLOTS,
    REGISTERS,
    SETTINGS_SLOTS,
    DataInstruction,
    Instruction,
    Opcode,
    OperandReference,
    control,
)
from device_agents.emulated_npu.isa.settings_words import settings_words
from device_agents.emulated_npu.unit_commands import MAX_RANK, Command, Descriptor, Fence, Item, Operand, Wait
from device_agents.emulated_npu.unit_settings import Settings

_PLAIN_WORDS = settings_words(Settings())  # always in settings slot 0
# Registers and slots that no loop pins, so that there is room for the five operands of a command.
_WORKING_REGISTERS, _WORKING_DESCRIPTORS, _WORKING_SETTINGS = 8, 8, 2


def emit(items: Sequence[Item]) -> tuple[bytes, tuple[int, ...]]:
    """Return code that issues exactly these items, and the hardware layer of every instruction.

    Requires: items in the order in which a core issues them.
    Ensures: the decoded code, with its loops unrolled, issues the same items. CONTROL and CONFIG instructions belong to
    the layer of the next item in the code, the end of a loop to the layer of its body's first item, and HALT to the
    layer of the last item. Raises InvalidProgram for an item that has no encoding.
    """
    generator = _Generator()
    generator.generate(generator.addressing.parts(roll(items)))
    generator.append(control(Opcode.HALT))
    generator.label(items[-1].layer if items else -1)
    return encode(generator.code), tuple(generator.layers)


class _Generator:
    def __init__(self) -> None:
        self.code: list[Instruction] = []
        self.layers: list[int] = []
        self.addressing = Addressing()
        self.append = self.code.append
        self._registers: Residency[Address] = Residency(range(1, REGISTERS))
        self._descriptors: Slots[Descriptor] = Slots(
            range(DESCRIPTOR_SLOTS),
            (None,) * (1 + MAX_RANK),
            _descriptor_words,
            _descriptor_instruction,
            _WORKING_DESCRIPTORS,
            self.code,
        )
        self._settings: Slots[Words] = Slots(
            range(1, SETTINGS_SLOTS),
            _PLAIN_WORDS,
            lambda words: words,
            lambda slot, index, word: control(Opcode.SETTINGS, slot, index, word),
            _WORKING_SETTINGS,
            self.code,
        )
        self._distances: dict[LoopStrides, int] = {}  # registers with the distance covered so far
        self._moving: dict[LoopStrides, list[int]] = {}  # all registers that the enclosing loops must advance
        self._counts: dict[int, int] = {}

    def generate(self, parts: Iterable[LoopNest | CodeItem]) -> None:
        """Generate code for loops and items in order."""
        for part in parts:
            if isinstance(part, CodeItem):
                self._item(part)
            else:
                self._loop(part)

    def label(self, layer: int) -> None:
        """Assign the instructions since the last label to a layer."""
        self.layers += [layer] * (len(self.code) - len(self.layers))

    def _item(self, use: CodeItem) -> None:
        item = use.item
        if isinstance(item, Command):
            target = self._reference(item.target, use.target)
            sources = (item.first, item.second, item.third, item.fourth)
            first, second, third, fourth = map(self._optional_reference, sources, use.sources)
            settings = 0 if use.settings == _PLAIN_WORDS else self._settings.slot(use.settings)
            references = (target, first, second, third, fourth)
            flags = item.accumulate, item.peer, item.own_queue
            self.append(DataInstruction(item.function, *references, settings, *flags))
        elif isinstance(item, Fence):
            self.append(control(Opcode.FENCE))
        else:
            opcode = Opcode.WAIT if isinstance(item, Wait) else Opcode.POST
            self.append(control(opcode, item.queue, item.semaphore, item.count))
        self.label(item.layer)

    def _reference(self, operand: Operand, address: Address) -> OperandReference:
        return OperandReference(self._register(address), self._descriptors.slot(operand.descriptor))

    def _optional_reference(self, operand: Operand | None, address: Address | None) -> OperandReference | None:
        return None if operand is None or address is None else self._reference(operand, address)

    def _register(self, address: Address) -> int:
        """Return the register that holds an address; set it if necessary."""
        if address == ZERO:
            return 0
        found = self._registers.find(address)
        if found is None:
            course, start = address
            found = self._registers.place(address)
            if course is None:
                self.append(control(Opcode.SET, found, start))
            else:
                self.append(control(Opcode.ADD_IMMEDIATE, found, self._distances[course], start))
        return found

    def _loop(self, nest: LoopNest) -> None:
        if nest.least_registers + _WORKING_REGISTERS > self._registers.capacity:
            self._unrolled(nest)
            return
        self._counts[nest.number] = nest.node.count
        own = nest.own
        still = self._enter_registers(nest, own)
        descriptors = self._descriptors.enter(nest.descriptors, [part.descriptors for part in nest.inner])
        settings = self._settings.enter(nest.settings, [part.settings for part in nest.inner])
        counting = self._counter(nest)
        self._registers.forget()
        begin = len(self.code)
        self.generate(nest.body)
        self._close(nest, counting, begin)
        self._descriptors.leave(descriptors)
        self._settings.leave(settings)
        self._registers.unpin(still)
        self._leave_registers(nest, own)
        self._registers.release(counting[1])

    def _unrolled(self, nest: LoopNest) -> None:
        """Generate the iterations one by one, for an outermost loop with more strides than registers.

        Inner loops always fit, because the outermost loop leaves them the registers that they need.
        """
        for iteration in range(nest.node.count):
            nodes = [advance(node, 0, iteration) for node in nest.node.body]
            self.generate(self.addressing.parts(nodes))

    def _enter_registers(self, nest: LoopNest, own: dict[LoopStrides, list[int]]) -> list[Address]:
        """Set the addresses that begin to advance in a loop; pin and return constant ones while there is room."""
        free = self._registers.capacity - _WORKING_REGISTERS - 1
        least = max((part.least_registers for part in nest.inner), default=0)
        most = max((part.most_registers for part in nest.inner), default=0)
        room = max(free - min(most, max(least, free // 2)) - len(own), 0)
        for course, starts in sorted(own.items(), key=lambda pair: len(pair[1])):
            if len(starts) - 1 <= room:
                room -= len(starts) - 1
                self._moving[course] = [self._set(start) for start in starts]
                for start, register in zip(starts, self._moving[course], strict=True):
                    self._registers.pin_at((course, start), register)
            else:
                self._distances[course] = self._set(0)
                self._moving[course] = [self._distances[course]]
        still = [address for address in nest.still if address != ZERO and not self._registers.is_pinned(address)][:room]
        for address in still:
            self._register(address)
            self._registers.pin(address)
        return still

    def _leave_registers(self, nest: LoopNest, own: dict[LoopStrides, list[int]]) -> None:
        """End the strides of a loop: their addresses are constant after it."""
        for course, starts in own.items():
            del self._moving[course]
            if course in self._distances:
                self._registers.release(self._distances.pop(course))
                continue
            for start in starts:
                end = start + course.steps[0] * nest.node.count
                self._registers.release(self._registers.withdraw((course, start)), (None, end))

    def _set(self, value: int) -> int:
        register = self._registers.reserve()
        self.append(control(Opcode.SET, register, value))
        return register

    def _counter(self, nest: LoopNest) -> tuple[int | None, int]:
        """Return the registers that end a loop: one that grows and its limit, or None and a counter."""
        for course, registers in self._moving.items():
            step = _step(course, nest.number)
            if step > 0:
                limit = self._registers.reserve()
                self.append(control(Opcode.ADD_IMMEDIATE, limit, registers[0], step * nest.node.count))
                return registers[0], limit
        return None, self._set(nest.node.count)

    def _close(self, nest: LoopNest, counting: tuple[int | None, int], begin: int) -> None:
        """Generate the end of a body: advance the addresses and branch back to the beginning."""
        for course, registers in self._moving.items():
            step = self._net_step(course, nest.number)
            for register in registers if step else ():
                self.append(control(Opcode.ADD_IMMEDIATE, register, register, step))
        growing, last = counting
        if growing is None:
            self.append(control(Opcode.ADD_IMMEDIATE, last, last, -1))
            self.append(control(Opcode.BRANCH_NOT_ZERO, last, begin))
        else:
            self.append(control(Opcode.BRANCH_LESS, growing, last, begin))
        self.label(self.layers[begin])

    def _net_step(self, course: LoopStrides, number: int) -> int:
        """Return the step left at the end of an iteration, after the inner loop has advanced the address."""
        if number not in course.loops:
            return 0
        inside = course.loops[course.loops.index(number) + 1 :]
        covered = self._counts[inside[0]] * _step(course, inside[0]) if inside else 0
        return _step(course, number) - covered


def _step(course: LoopStrides, number: int) -> int:
    return course.steps[course.loops.index(number)] if number in course.loops else 0


def _descriptor_words(descriptor: Descriptor) -> tuple[Any, ...]:
    """Return the header and the axes, each as the fields of its instruction."""
    axes = zip(range(MAX_RANK), descriptor.dims, descriptor.strides, strict=False)
    return (descriptor.space, descriptor.dtype, len(descriptor.dims)), *axes


def _descriptor_instruction(slot: int, index: int, word: tuple[int, ...]) -> Instruction:
    return control(Opcode.AXIS if index else Opcode.DESCRIPTOR, slot, *word)
